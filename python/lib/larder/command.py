"""The command `larder`, as pip installs it: the same program that `cargo install` gives."""

from __future__ import annotations

import signal
import sys

from larder import _native

__all__ = ["main"]


def main() -> int:
    """Does what the command line asks for; the exit code."""
    # The program runs in Rust, where Python would not see Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.perform(["larder", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
