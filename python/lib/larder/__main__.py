"""`python -m larder`: runs a program with Larder in the place of PyTorch's CUDA allocator.

The program is run by Python itself, in this very process, in an environment that has Larder installed as
soon as the program imports torch. So it is in every way the program that `python` alone would run.
"""

from __future__ import annotations

import importlib.machinery
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from typing import NoReturn

from larder import _native, children, torch
from larder.errors import Error, InstallError, UsageError

HELP = f"""\
usage: python -m larder [options] script.py [arguments]
       python -m larder [options] -m module [arguments]
       python -m larder [options] -c code [arguments]

Runs a program with Larder in the place of PyTorch's CUDA allocator, in it and in all processes
that it starts. The program itself needs no change.

options:
  --conf KEY:VALUE,...  Larder's own settings; they go in place of those in LARDER_CONF
  --policy NAME         who decides: {' or '.join(_native.POLICIES)}
  --compile             compile the C++ part for the installed PyTorch, print its path, and end
  --env                 print the environment that does it, for a shell to read:
                        eval "$(python -m larder --env)"; torchrun train.py
  --version             print Larder's version
  -h, --help            print this

environment:
  PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF   PyTorch's settings, as ever
  LARDER_CONF           Larder's own settings
  LARDER_CACHE          where the compiled C++ part is kept; without it ~/.cache/larder
  CXX, CUDA_HOME        the compiler for it, and where CUDA's headers are
"""


@dataclass
class Request:
    """What the command line asks for."""

    conf: str | None = None
    policy: str | None = None
    does: str = "run"
    program: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, words: list[str]) -> Request:
        """Reads the options up to the program; the rest is the program's."""
        request = cls()
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if name in ("--conf", "--policy"):
                if not equals:
                    if not words:
                        raise UsageError(f"{name} wants a value")
                    value = words.pop(0)
                setattr(request, name[2:], value)
            elif word in ("-h", "--help", "--version", "--env", "--compile"):
                request.does = "help" if word == "-h" else word[2:]
            elif word in ("-m", "-c"):
                if not words:
                    raise UsageError(f"{word} wants {'a module' if word == '-m' else 'code'}")
                request.program = [word, *words]
                break
            elif word == "--":
                request.program = words
                break
            elif word.startswith("-") and word != "-":
                raise UsageError(f"there is no option '{word}'; python -m larder --help lists them")
            else:
                request.program = [word, *words]
                break
        if request.does == "run" and not request.program:
            raise UsageError("there is no program to run; python -m larder --help says how to name one")
        return request

    def arrange(self) -> None:
        """Puts what is asked for into the environment."""
        conf = os.environ.get("LARDER_CONF", "") if self.conf is None else self.conf
        if self.conf is not None:
            _native.check_settings("--conf", self.conf)
        if self.policy is not None:
            _native.check_settings("--policy", f"policy:{self.policy}")
            conf = ",".join(part for part in (conf.strip(" ,"), f"policy:{self.policy}") if part)
        if self.conf is not None or self.policy is not None:
            os.environ["LARDER_CONF"] = conf
        _native.check_environment()
        children.arrange(os.environ)


def refuse_isolation() -> None:
    """Larder reaches the program through the environment, which these options keep out."""
    flags = sys.flags
    for on, option in ((flags.isolated, "-I"), (flags.ignore_environment, "-E"), (flags.no_site, "-S")):
        if on:
            raise InstallError(f"python {option} keeps Larder from reaching the program: leave it out")


def refuse_without_torch(program: list[str]) -> None:
    """A program that has no PyTorch cannot want another allocator in it."""
    places = list(sys.path)
    if program[0] not in ("-m", "-c", "-"):
        places.insert(0, os.path.dirname(os.path.abspath(program[0])))
    if importlib.machinery.PathFinder.find_spec("torch", places) is None:
        raise InstallError(f"PyTorch is not installed for {sys.executable}: pip install torch")


def interpreter_options() -> list[str]:
    """The options that this Python was started with, for it to be started again."""
    words = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if words[-2:-1] and words[-1] == "larder" and words[-2].startswith("-") and words[-2].endswith("m"):
        # The last option may have others before its m, as in -um.
        others = words[-2][:-1]
        return words[:-2] + ([others] if others != "-" else [])
    # It was started in another way, by a tool that runs modules.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return options


def run(request: Request) -> NoReturn:
    """Becomes the program."""
    refuse_isolation()
    refuse_without_torch(request.program)
    request.arrange()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *interpreter_options(), *request.program])


def print_environment(request: Request) -> None:
    """Prints what `run` would set, as a shell reads it."""
    request.arrange()
    for name in ("LARDER_INSTALL", "LARDER_CONF", "PYTHONPATH"):
        if name in os.environ:
            print(f"export {name}={shlex.quote(os.environ[name])}")


def main() -> int:
    """Does what the command line asks for; the exit code."""
    try:
        request = Request.parse(sys.argv[1:])
        if request.does == "help":
            print(HELP, end="")
        elif request.does == "version":
            print(f"larder {_native.__version__}")
        elif request.does == "env":
            print_environment(request)
        elif request.does == "compile":
            print(torch.compile_backend())
        else:
            run(request)
    except Error as error:
        print(f"larder: {error}", file=sys.stderr)
        return 1 if isinstance(error, InstallError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
