"""`python -m larder.dryrun`: starts the program with a simulated card in the place of CUDA's
libraries.

The loader has to find the card before all other libraries, so that Python is started once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from larder.dryrun import place
from larder.dryrun.options import CARDS, DEFAULT_CARD, HELP, VARIABLE, Options
from larder.errors import Error, InstallError

NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""The libraries that no PyTorch brings: they are looked for by name."""


def environment(options: Options, folder: str) -> dict[str, str]:
    """What the program's process finds."""
    library = place.library()
    for name in NAMES:
        os.symlink(library, os.path.join(folder, name))
    found = dict(os.environ)

    def first(name: str, value: str, separator: str) -> None:
        found[name] = separator.join(filter(None, [value, found.get(name)]))

    first("LD_PRELOAD", library, " ")
    first("LD_LIBRARY_PATH", folder, ":")
    found["TRITON_LIBCUDA_PATH"] = folder
    found["LARDER_DRY_CARD"] = options.card
    found["LARDER_DRY_CARDS"] = str(options.devices)
    if options.memory is not None:
        found["LARDER_DRY_MEMORY"] = str(options.memory)
    found.pop("CUDA_VISIBLE_DEVICES", None)
    if options.rank is not None:
        rank, ranks = str(options.rank), str(options.of)
        local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": rank}
        found |= {"RANK": rank, "WORLD_SIZE": ranks, **local}
        found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    found[VARIABLE] = options.text()
    return found


def main() -> int:
    """Does what the command line asks for; the exit code."""
    try:
        options = Options.parse(sys.argv[1:])
        if options.help:
            print(HELP.format(cards=", ".join(CARDS), card=DEFAULT_CARD), end="")
            return 0
        if sys.platform != "linux":
            raise InstallError("a dry run needs Linux, whose loader lets a card be played")
        with tempfile.TemporaryDirectory(prefix="larder-dryrun-") as folder:
            command = [sys.executable, "-m", "larder.dryrun.inside"]
            return subprocess.run(command, env=environment(options, folder)).returncode
    except Error as error:
        print(f"larder: {error}", file=sys.stderr)
        return 1 if isinstance(error, InstallError) else 2


if __name__ == "__main__":
    sys.exit(main())
