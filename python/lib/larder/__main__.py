"""`python -m larder`: runs a program with Larder in the place of PyTorch's CUDA allocator.

The program is run by Python itself, in this very process, in an environment that has Larder
installed as soon as the program imports torch. So it is in every way the program that `python`
alone would run.

What it does not need it does not import: all of this comes before the program starts.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

from larder import children, environment
from larder.errors import Error, InstallError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


# That of the PyTorch in use.
OWN_TORCH = "torch"


def _listed(last: str) -> str:
    """The policies, as a sentence names them."""
    from larder import _native

    return f"{', '.join(_native.POLICIES)} {last} {OWN_TORCH}, as the PyTorch in use"


HELP = """\
usage: python -m larder [options] script.py [arguments]
       python -m larder [options] -m module [arguments]
       python -m larder [options] -c code [arguments]

Runs a program with Larder in the place of PyTorch's CUDA allocator, in it and in all processes
that it starts. The program itself needs no change.

options:
  --conf KEY:VALUE,...  Larder's own settings ({keys}),
                        in place of those in LARDER_CONF
  --policy NAME         who decides: {policies}; whatever LARDER_CONF says of it
  --compile             compile the C++ part for the installed PyTorch, unless the package
                        brings it, print its path, and end
  --env                 print the environment that does it, for a shell to read:
                        larder=$(python -m larder --env) && eval "$larder" && torchrun train.py
  --version             print Larder's version
  -h, --help            print this

environment:
  PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF
                        PyTorch's settings, as ever; where there are none at all, segments are
                        expandable
  LARDER_CONF           Larder's own settings: {keys}
  LARDER_DEVICE         is not for PyTorch programs: CUDA_VISIBLE_DEVICES chooses their GPUs
  LARDER_CACHE          where the compiled C++ part is kept; without it ~/.cache/larder
  LARDER_COMPILE        1 has the C++ part compiled where the package brings it
  CXX, CXXFLAGS         the compiler for it, and more flags
  CUDA_HOME             where CUDA's headers are
"""


COMMANDS = {
    "replay": "larder.replay(file)",
    "compare": "larder.compare(file)",
    "fit": "larder.fit(file)",
    "explain": "larder.explain(file)",
    "tune": "larder.tune(file)",
    "snapshot": "larder.Snapshot(file).save(path)",
}
"""What people may look for here: commands of the program `larder`, and what does the same in
Python.
"""


class Request:
    """What the command line asks for."""

    def __init__(self) -> None:
        self.conf: str | None = None
        self.policy: str | None = None
        self.does = "run"
        self.program: list[str] = []

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
                request._set(name, value)
            elif word in ("-h", "--help"):
                request.does = "help"
                break
            elif word == "--version":
                request.does = "version"
                break
            elif word in ("--env", "--compile"):
                if request.does not in ("run", word[2:]):
                    raise UsageError(
                        f"--{request.does} and {word} are two requests: make one at a time"
                    )
                request.does = word[2:]
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
        request._refuse_program()
        return request

    def _set(self, name: str, value: str) -> None:
        before = getattr(self, name[2:])
        if before not in (None, value):
            raise UsageError(f"{name} stands twice, as '{before}' and as '{value}'")
        setattr(self, name[2:], value)

    def _refuse_program(self) -> None:
        """A program is there to be run, and only then."""
        if self.does == "run" and not self.program:
            raise UsageError(
                "there is no program to run; python -m larder --help says how to name one"
            )
        name = self.program[0] if self.program else ""
        if name in COMMANDS and not os.path.exists(name):
            raise UsageError(
                f"'{name}' is no program to run: the command is `larder {name}`, and in Python "
                f"it is {COMMANDS[name]}"
            )
        if self.does in ("env", "compile") and self.program:
            raise UsageError(f"--{self.does} runs no program: leave out '{' '.join(self.program)}'")

    def check(self) -> str:
        """Refuses what cannot be, from the command line or from the environment; else Larder's own
        settings.
        """
        environment.check_device()
        conf = self._settings()
        environment.check_torch()
        return conf

    def arrange(self) -> None:
        """Puts what is asked for into the environment."""
        conf = self.check()
        if self.conf is not None or self.policy is not None:
            os.environ[environment.OWN] = conf
        children.arrange(os.environ)

    def _settings(self) -> str:
        """Larder's own settings: those of the command line, or else those of the environment."""
        name = environment.OWN if self.conf is None else "--conf"
        conf = os.environ.get(environment.OWN, "") if self.conf is None else self.conf
        if self.policy is None:
            environment.check_own(name, conf)
            return conf
        from larder import _native

        if self.policy not in (*_native.POLICIES, OWN_TORCH):
            raise UsageError(
                f"--policy: there is no policy '{self.policy}'; there are {_listed('and')}"
            )
        if self.conf is not None:
            environment.check_own(name, conf)
            named = [value for key, value in _entries(conf) if key == "policy"]
            if named not in ([], [self.policy]):
                raise UsageError(
                    f"--conf names the policy {named[0]}, and --policy names {self.policy}"
                )
        others = ",".join(f"{key}:{value}" for key, value in _entries(conf) if key != "policy")
        environment.check_own(name, others)
        return ",".join(part for part in (others, f"policy:{self.policy}") if part)


def _entries(conf: str) -> list[tuple[str, str]]:
    """The keys and values of a text; none of Larder's own has a comma in it."""
    parts = (part.partition(":") for part in conf.split(",") if part.strip())
    return [(key.strip(), value.strip()) for key, _, value in parts]


def refuse_isolation() -> None:
    """Larder reaches the program through the environment, which these options keep out."""
    flags = sys.flags
    for on, option in (
        (flags.isolated, "-I"),
        (flags.ignore_environment, "-E"),
        (flags.no_site, "-S"),
    ):
        if on:
            raise InstallError(
                f"python {option} keeps Larder from reaching the program: leave it out"
            )


def refuse_without_torch(program: list[str]) -> None:
    """A program that has no PyTorch cannot want another allocator in it."""
    places = list(sys.path)
    if program[0] not in ("-m", "-c", "-"):
        places.insert(0, os.path.dirname(os.path.abspath(program[0])))
    found = importlib.machinery.PathFinder.find_spec("torch", places)
    # A folder that happens to be called so is no package: it has no origin.
    if found is None or found.origin is None:
        raise InstallError(f"PyTorch is not installed for {sys.executable}: pip install torch")


def interpreter_options() -> list[str]:
    """The options that this Python was started with, for it to be started again."""
    words = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if (
        words[-2:-1]
        and words[-1] == "larder"
        and words[-2].startswith("-")
        and words[-2].endswith("m")
    ):
        # The last option may have others before its m, as in -um.
        others = words[-2][:-1]
        return words[:-2] + ([others] if others != "-" else [])
    # It was started in another way, by a tool that runs modules.
    import subprocess

    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return options


def run(request: Request) -> NoReturn:
    """Becomes the program."""
    request.arrange()
    refuse_isolation()
    refuse_without_torch(request.program)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *interpreter_options(), *request.program])


def print_environment(request: Request) -> None:
    """Prints what `run` would set, as a shell reads it."""
    import shlex

    request.arrange()
    for name in ("LARDER_INSTALL", "LARDER_CONF", "PYTHONPATH"):
        if name in os.environ:
            print(f"export {name}={shlex.quote(os.environ[name])}")


def main() -> int:
    """Does what the command line asks for; the exit code."""
    try:
        request = Request.parse(sys.argv[1:])
        if request.does == "help":
            from larder import _native

            print(HELP.format(keys=", ".join(_native.OWN_KEYS), policies=_listed("or")), end="")
        elif request.does == "version":
            from larder import _native

            print(f"larder {_native.__version__}")
        elif request.does == "env":
            print_environment(request)
        elif request.does == "compile":
            request.check()
            from larder import torch

            print(torch.compile_backend())
        else:
            run(request)
    except Error as error:
        print(f"larder: {error}", file=sys.stderr)
        return 1 if isinstance(error, InstallError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
