"""The libraries of other people that clients.py, serving.py and neighbours.py run, for a machine
without a network.

    python bundle.py pack FOLDER     fetches the wheels of bundle.txt, lays them out in parts
    python bundle.py unpack FOLDER   on the machine with the card: installs what it lacks

A line of bundle.txt is a name with its version, and may name files that are left out, because what
runs here does not need them and they are large. A library that the machine has stays, in the
version that it has, unless its line ends with `!`.
"""

import argparse
import fnmatch
import importlib.metadata
import io
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

PINS = pathlib.Path(__file__).with_suffix(".txt")
PART_BYTES = 44 << 20
# The machine's Python, and systems whose wheels run there.
PYTHON = "3.12"
SYSTEMS = [
    "manylinux1",
    "manylinux2014",
    *(f"manylinux_2_{minor}" for minor in (5, 12, 17, 24, 26, 27, 28, 31, 34)),
]


class Pin:
    """A line: `name==version [!] [-pattern …]`."""

    def __init__(self, line):
        self.requirement, *rest = line.split()
        self.replaces = "!" in rest
        self.left_out = [word[1:] for word in rest if word.startswith("-")]

    @property
    def name(self):
        return plain_name(self.requirement.split("==")[0])


def plain_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    lines = (line.partition("#")[0].strip() for line in PINS.read_text().splitlines())
    return [Pin(line) for line in lines if line]


def name_of(wheel):
    return plain_name(pathlib.PurePath(wheel).name.split("-")[0])


def pack(folder):
    """The wheels without what is left out, as one archive in parts."""
    wanted = {pin.name: pin for pin in pins()}
    with tempfile.TemporaryDirectory() as fetched:
        systems = [word for system in SYSTEMS for word in ("--platform", f"{system}_x86_64")]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--only-binary=:all:", "--python-version", PYTHON, *systems, "--dest", fetched]
        subprocess.run([*command, *(pin.requirement for pin in wanted.values())], check=True)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for wheel in sorted(pathlib.Path(fetched).glob("*.whl")):
                for pattern in wanted[name_of(wheel)].left_out:
                    leave_out(wheel, pattern)
                tar.add(wheel, arcname=wheel.name)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("part-*"):
        old.unlink()
    whole = archive.getvalue()
    for number, begin in enumerate(range(0, len(whole), PART_BYTES)):
        (folder / f"part-{number:02}").write_bytes(whole[begin : begin + PART_BYTES])
    print(f"{len(wanted)} wheels, {len(whole) >> 20} MiB, in {number + 1} parts of {folder}")


def leave_out(wheel, pattern):
    with zipfile.ZipFile(wheel) as source:
        names = fnmatch.filter(source.namelist(), pattern)
        assert names, f"{wheel.name} has no {pattern}"
        kept = [
            (entry, source.read(entry))
            for entry in source.infolist()
            if entry.filename not in names
        ]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:
        for entry, content in kept:
            out.writestr(entry.filename, content)


def unpack(folder):
    parts = sorted(folder.glob("part-*"))
    if not parts:
        sys.exit(
            f"{folder} has no parts: `bundle.py pack {folder}` makes them where there is a network"
        )
    replaced = {pin.name for pin in pins() if pin.replaces}
    present = {plain_name(found.name) for found in importlib.metadata.distributions()}
    packages = pathlib.Path(sysconfig.get_path("purelib"))
    installed = []
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as tar:
        for member in tar:
            name = name_of(member.name)
            if name in present and name not in replaced:
                continue
            with zipfile.ZipFile(tar.extractfile(member)) as wheel:
                install(wheel, packages)
            installed.append(name)
    print("installed:", " ".join(installed))


def install(wheel, packages):
    """What pip would do of it for an import: a wheel's own folders go where Python looks."""
    for name in wheel.namelist():
        top, _, rest = name.partition("/")
        if not top.endswith(".data"):
            wheel.extract(name, packages)
        elif rest.startswith(("purelib/", "platlib/")) and not name.endswith("/"):
            target = packages / rest.partition("/")[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(name))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("deed", choices=["pack", "unpack"])
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    (pack if options.deed == "pack" else unpack)(options.folder)


if __name__ == "__main__":
    main()
