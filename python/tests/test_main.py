"""`python -m larder`: its options, and that the program is the one that `python` alone would
run.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import larder

from stand_in import FakeTorch, Run, Script

# What a program can see of how it was started.
PORTRAIT = """
import json, os, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path,
    "name": __name__,
    "file": globals().get("__file__"),
    "spec": getattr(globals().get("__spec__"), "name", None),
    "package": globals().get("__package__"),
    "globals": sorted(name for name in vars(main) if name not in ("main", "json", "os", "sys")),
    "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
    "flags": [
        sys.flags.optimize, sys.flags.dont_write_bytecode, sys.flags.utf8_mode, sys.flags.dev_mode
    ],
    "warnings": sys.warnoptions,
    "input": sys.stdin.read(),
}))
"""


def same(run_python: Run, *words: str, options: tuple[str, ...] = ()) -> str:
    """Runs the program with and without Larder; the output, which must be the same."""
    plain = run_python(*options, *words, input="typed")
    ours = run_python(*options, "-m", "larder", *words, input="typed")
    assert (ours.stdout, ours.stderr, ours.returncode) == (
        plain.stdout,
        plain.stderr,
        plain.returncode,
    )
    return ours.stdout


def test_a_script_sees_what_it_would_see(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    name = script(PORTRAIT, "folder/script.py")
    seen = same(run_python, name, "-x", "--conf", "a b", "")
    assert '["folder/script.py", "-x", "--conf", "a b", ""]' in seen
    assert '"input": "typed"' in seen


def test_a_module_sees_what_it_would_see(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    script("", "package/__init__.py")
    script(PORTRAIT, "package/__main__.py")
    script(PORTRAIT, "package/part.py")
    assert '"spec": "package.part"' in same(run_python, "-m", "package.part", "-m", "x")
    assert '"spec": "package.__main__"' in same(run_python, "-m", "package")


def test_code_folders_and_standard_input_run_too(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    script(PORTRAIT, "folder/__main__.py")
    assert '"argv": ["-c", "-m"]' in same(run_python, "-c", PORTRAIT, "-m")
    assert '"argv": ["folder", "x"]' in same(run_python, "folder", "x")
    done = run_python("-m", "larder", "-", "x", input="import sys; print(sys.argv)")
    assert done.stdout == "['-', 'x']\n"


@pytest.mark.parametrize(
    "options", [("-O",), ("-u", "-B"), ("-W", "error"), ("-X", "utf8"), ("-X", "dev"), ("-uB",)]
)
def test_pythons_own_options_reach_the_program(
    run_python: Run, script: Script, fake_torch: FakeTorch, options: tuple[str, ...]
) -> None:
    fake_torch.make()
    same(run_python, script(PORTRAIT), options=options)


def test_options_may_be_written_together(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    name = script(PORTRAIT)
    assert (
        run_python("-OBm", "larder", name, input="").stdout
        == run_python("-OB", name, input="").stdout
    )


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit(7)",
        "import sys; sys.exit('a sentence')",
        "def f():\n    raise KeyError('x')\nf()",
        "this is no Python",
        "import os; os.kill(os.getpid(), 15)",
    ],
)
def test_exits_and_tracebacks_are_the_programs(
    run_python: Run, script: Script, fake_torch: FakeTorch, text: str
) -> None:
    fake_torch.make()
    same(run_python, script(text))
    same(run_python, "missing.py")
    same(run_python, "-m", "missing_module")


def test_the_program_has_larder(run_python: Run, script: Script, fake_torch: FakeTorch) -> None:
    fake_torch.make()
    name = script("import torch, larder\nprint(larder.torch.is_installed())")
    done = run_python("-m", "larder", "--policy", "torch-2.11", "--conf=page_size_mb:2", name)
    assert done.stdout == "True\n", done.stderr
    assert done.stderr == "larder: compiling the C++ part for torch 2.11.0+cu130 (once)\n"
    again = run_python("-m", "larder", "--", name, environment={"LARDER_CONF": "policy:larder"})
    assert (again.stdout, again.stderr) == ("True\n", "")
    assert fake_torch.installs() == ["page_size_mb:2,policy:torch-2.11", "policy:larder"]


def test_a_program_without_torch_pays_next_to_nothing(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    name = script(
        "import sys; print([name for name in sys.modules if name.split('.')[0] in ('larder', "
        "'ctypes')])"
    )
    assert run_python("-m", "larder", name).stdout == "[]\n"
    assert fake_torch.installs() == []


def test_help_and_version(run_python: Run) -> None:
    for option in ("--help", "-h"):
        done = run_python("-m", "larder", option)
        assert done.returncode == 0 and done.stdout.startswith("usage: python -m larder")
    assert run_python("-m", "larder", "--version").stdout == f"larder {larder.__version__}\n"


def test_the_environment_is_printed_for_a_shell(
    run_python: Run, script: Script, fake_torch: FakeTorch, tmp_path: Path
) -> None:
    fake_torch.make()
    done = run_python("-m", "larder", "--policy", "larder", "--env")
    assert done.returncode == 0, done.stderr
    assert (
        "export LARDER_INSTALL=1\nexport LARDER_CONF=policy:larder\nexport PYTHONPATH="
        in done.stdout
    )
    name = script("import torch, larder; print(larder.torch.is_installed())")
    shell = ["sh", "-c", f'{done.stdout}\nexec "$0" "$@"', sys.executable, name]
    told = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert told.stdout == "True\n", told.stderr


@pytest.mark.parametrize(
    ("words", "environment", "conf"),
    [
        (["--policy", "torch-2.11"], "policy:larder", "policy:torch-2.11"),
        (
            ["--policy", "torch-2.11"],
            "page_size_mb:2 , policy:larder",
            "page_size_mb:2,policy:torch-2.11",
        ),
        (["--conf", "page_size_mb:4"], "policy:larder", "page_size_mb:4"),
        (
            ["--conf", "policy:larder,page_size_mb:4", "--policy", "larder"],
            "nonsense:1",
            "page_size_mb:4,policy:larder",
        ),
        ([], "policy:larder", "policy:larder"),
    ],
)
def test_the_command_line_goes_before_the_environment(
    run_python: Run, words: list[str], environment: str, conf: str
) -> None:
    done = run_python("-m", "larder", *words, "--env", environment={"LARDER_CONF": environment})
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = [line for line in done.stdout.splitlines() if "LARDER_CONF" in line]
    assert shlex.split(line) == ["export", f"LARDER_CONF={conf}"]


def test_a_shell_goes_on_only_if_there_is_an_environment(run_python: Run, tmp_path: Path) -> None:
    """By the line that the reference and the help give."""
    (line,) = [
        line.strip()
        for line in run_python("-m", "larder", "--help").stdout.splitlines()
        if "eval" in line
    ]
    page = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
    assert line in page
    line = line.replace("python -m", f"{shlex.quote(sys.executable)} -m").replace(
        "torchrun train.py", "echo $LARDER_INSTALL"
    )
    for conf, said in (("policy:larder", "1\n"), ("nonsense:1", "")):
        variables = {**os.environ, "LARDER_CONF": conf}
        done = subprocess.run(
            ["sh", "-c", line], env=variables, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.stdout == said, done.stderr


def test_the_cpp_part_can_be_compiled_beforehand(run_python: Run, fake_torch: FakeTorch) -> None:
    fake_torch.make()
    done = run_python("-m", "larder", "--compile")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_file()
    assert fake_torch.installs() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "there is no program to run"),
        (("--fast", "script.py"), "there is no option '--fast'"),
        (("-x",), "there is no option '-x'"),
        (
            ("compare", "x.pickle"),
            "the command is `larder compare`, and in Python it is larder.compare(file)",
        ),
        (("-m",), "-m wants a module"),
        (("-c",), "-c wants code"),
        (("--conf",), "--conf wants a value"),
        (
            ("--conf", "nonsense:1", "x.py"),
            "--conf: 'nonsense' is not one of Larder's own settings",
        ),
        (("--conf", "expandable_segments:True", "x.py"), "belong into PYTORCH_CUDA_ALLOC_CONF"),
        (
            ("--conf", "nonsense:1", "--compile"),
            "--conf: 'nonsense' is not one of Larder's own settings",
        ),
        (("--conf", "nonsense:1", "--policy", "larder", "--env"), "--conf: 'nonsense' is not one"),
        (
            ("--policy", "best", "x.py"),
            "--policy: there is no policy 'best'; there are larder, tight, torch-2.11,",
        ),
        (
            ("--conf", "policy:larder", "--policy", "torch-2.11", "x.py"),
            "--conf names the policy larder, and --policy names torch-2.11",
        ),
        (
            ("--conf", "policy:larder,policy:larder", "x.py"),
            "--conf: the setting 'policy' stands twice",
        ),
        (
            ("--policy", "larder", "--policy=torch-2.11", "x.py"),
            "--policy stands twice, as 'larder' and as 'torch-2.11'",
        ),
        (("--env", "--compile"), "--env and --compile are two requests"),
        (("--env", "x.py", "y"), "--env runs no program: leave out 'x.py y'"),
    ],
)
def test_a_command_line_that_cannot_be_gets_one_sentence(
    run_python: Run, fake_torch: FakeTorch, words: tuple[str, ...], sentence: str
) -> None:
    fake_torch.make()
    done = run_python("-m", "larder", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("larder: ") and sentence in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.mark.parametrize("option", ["-E", "-I", "-S"])
def test_options_that_keep_larder_out_are_refused(run_python: Run, option: str) -> None:
    site = Path(larder.__file__).parents[1]
    code = f"import sys, runpy; sys.path.insert(0, {str(site)!r}); sys.argv[1:] = ['x.py']; "
    code += "runpy.run_module('larder', run_name='__main__')"
    done = run_python(option, "-c", code)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"larder: python {option} keeps Larder from reaching the program: leave it out\n"
    )
