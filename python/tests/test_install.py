"""Installation: into whatever PyTorch there is, or one sentence and nothing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

import larder
from stand_in import STAND_IN, FakeTorch, Run, Script

INSTALL = """
import sys
import larder
try:
    larder.torch.install()
except larder.Error as error:
    print(type(error).__name__, error)
print(larder.torch.is_installed())
"""


def told(run_python: Run, script: Script, environment: dict[str, str] | None = None) -> str:
    """What a program says that could not install Larder."""
    done = run_python(script(INSTALL), environment=environment)
    sentence, installed = done.stdout.splitlines()
    assert installed == "False"
    return sentence


def test_it_is_installed_once(run_python: Run, script: Script, fake_torch: FakeTorch) -> None:
    fake_torch.make()
    done = run_python(
        script(INSTALL + "larder.torch.install()\nprint(larder.torch.is_installed())")
    )
    assert done.stdout == "True\nTrue\n", done.stderr
    assert len(fake_torch.installs()) == 1
    assert fake_torch.versions() == {larder.__version__}, (
        "the C++ part calls the package's own library"
    )


def test_torch_may_be_there_before(run_python: Run, script: Script, fake_torch: FakeTorch) -> None:
    fake_torch.make()
    assert run_python(script("import torch\n" + INSTALL)).stdout == "True\n"


def test_a_stream_can_be_forgotten_once_it_is_installed(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    forget = """
class Stream:
    device_index, cuda_stream = 0, 77
def forget(stream):
    try:
        print(larder.torch.forget_stream(stream))
    except (larder.Error, ValueError) as error:
        print(type(error).__name__, error)
forget(Stream)
larder.torch.install()
forget(Stream)
Stream.cuda_stream = 0
forget(Stream)
"""
    done = run_python(script("import larder\n" + forget))
    before, forgotten, refused = done.stdout.splitlines()
    assert before.startswith("InstallError Larder is not installed in this process"), done.stderr
    assert (forgotten, refused) == ("None", "ValueError stream 0 cannot be used so")


def test_plain_memory_ends_where_its_block_does(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    ask = """
def ask(body):
    try:
        with larder.torch.plain_memory():
            body()
        print("done")
    except Exception as error:
        print(type(error).__name__, error)
library = lambda: larder.torch._library
ask(print)
larder.torch.install()
ask(lambda: ask(lambda: 1 / 0))
ask(lambda: library().larder_torch_plain_end())
"""
    done = run_python(script("import larder\n" + ask))
    before, inner, outer, ended = done.stdout.splitlines()
    assert before.startswith("InstallError Larder is not installed in this process"), done.stderr
    assert (inner, outer) == ("ZeroDivisionError division by zero", "done")
    assert ended == "RuntimeError plain memory was not begun"


def test_no_torch(run_python: Run, script: Script) -> None:
    assert "PyTorch is not installed for " in told(run_python, script)
    done = run_python("-m", "larder", script("print('went on')"))
    assert done.returncode == 1 and done.stdout == ""
    assert (
        done.stderr.startswith("larder: PyTorch is not installed for ")
        and done.stderr.count("\n") == 1
    )
    # A folder of that name beside the program, as this repository has one, is no PyTorch.
    script("", "torch/notes.txt")
    done = run_python("-m", "larder", script("print('went on')"))
    assert done.returncode == 1 and "PyTorch is not installed for " in done.stderr, done


def test_a_torch_that_cannot_be_imported(run_python: Run, script: Script) -> None:
    script("raise ImportError('libcudart.so.13: no such file')", "site/torch/__init__.py")
    assert told(run_python, script) == (
        "InstallError PyTorch cannot be imported: libcudart.so.13: no such file"
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            {"version": "2.11.0+cpu", "cuda": None},
            "torch 2.11.0+cpu is made without CUDA: install one with CUDA",
        ),
        (
            {"version": "2.11.0+rocm7", "cuda": None, "hip": "7.0"},
            "torch 2.11.0+rocm7 is made for ROCm, and Larder is for CUDA",
        ),
        ({"version": "2.10.1"}, "torch 2.10.1 is too old: Larder needs torch 2.11 or newer"),
        ({"version": "dev"}, "torch says that it is version 'dev', which is none"),
        (
            {"used": True},
            "CUDA is already in use in this process: install Larder before the first use of CUDA",
        ),
        (
            {"allocator": "pluggable"},
            "PyTorch's CUDA allocator is already 'pluggable' in this process",
        ),
        (
            {"cuda": "99.0"},
            "the headers of CUDA 99, for which torch 2.11.0+cu130 is made, are not found",
        ),
        ({"source": "#error no"}, "the C++ part cannot be compiled for torch 2.11.0+cu130"),
        ({"source": "int x;"}, "is not Larder's C++ part"),
        (
            {"source": STAND_IN + 'extern "C" int nobody(); int y = nobody();'},
            "the C++ part cannot be loaded: ",
        ),
    ],
)
def test_a_torch_that_cannot_be_served_gets_one_sentence(
    run_python: Run, script: Script, fake_torch: FakeTorch, make: dict[str, object], sentence: str
) -> None:
    fake_torch.make(**make)  # type: ignore[arg-type]
    environment = {"PATH": "/usr/bin:/bin"}
    assert sentence in told(run_python, script, environment)
    done = run_python(
        "-m", "larder", "-c", "import torch; print('went on')", environment=environment
    )
    assert done.returncode == 1 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("larder: ") and sentence in last
    assert fake_torch.installs() == []


def test_a_cpp_part_that_refuses(run_python: Run, script: Script, fake_torch: FakeTorch) -> None:
    fake_torch.make()
    environment = {"STAND_IN_REFUSES": "the stand-in refuses"}
    sentence = "InstallError Larder cannot be installed: the stand-in refuses"
    assert told(run_python, script, environment) == sentence


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"LARDER_CONF": "nonsense:1"},
            "LARDER_CONF: 'nonsense' is not one of Larder's own settings, which are policy, "
            "page_size_mb, plain_captures, tight_views_percent, tight_soft, tight_most, "
            "tight_floor_mb, pinned, pinned_limit, pinned_ahead, pinned_idle_s, oom_snapshot, "
            "metrics; "
            "PyTorch's settings belong into PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            {"LARDER_CONF": "policy:larder, expandable_segments:True"},
            "LARDER_CONF: 'expandable_segments' is not one",
        ),
        (
            {"LARDER_CONF": "roundup_power2_divisions:[256:1,>:4]"},
            "LARDER_CONF: 'roundup_power2_divisions' is not one",
        ),
        ({"LARDER_CONF": "policy:best"}, "LARDER_CONF: there is no policy 'best'"),
        ({"LARDER_CONF": "page_size_mb:3"}, "LARDER_CONF: the setting 'page_size_mb' takes"),
        ({"LARDER_CONF": "page_size_mb"}, "LARDER_CONF: settings are written key:value"),
        (
            {"PYTORCH_ALLOC_CONF": "page_size_mb:2"},
            "PYTORCH_ALLOC_CONF: 'page_size_mb' is one of Larder's own settings, which belong "
            "into LARDER_CONF",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:few"},
            "PYTORCH_ALLOC_CONF: the setting 'max_split_size_mb' takes",
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "x"},
            "PYTORCH_CUDA_ALLOC_CONF: settings are written key:value",
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
            "PYTORCH_CUDA_ALLOC_CONF: backend:cudaMallocAsync is the driver's own pool, which "
            "has nothing of Larder in it; "
            "leave it out, or do not use Larder",
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "foo:1,foo:[a:2,b:3],backend:cudaMallocAsync"},
            "PYTORCH_CUDA_ALLOC_CONF: backend:cudaMallocAsync is the driver's own pool",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "foo:1,max_split_size_mb:5"},
            "PYTORCH_ALLOC_CONF: the setting 'max_split_size_mb'",
        ),
        (
            {"LARDER_DEVICE": "sim:80GiB"},
            "LARDER_DEVICE is 'sim:80GiB', and PyTorch programs need a real GPU: unset it",
        ),
        (
            {"LARDER_DEVICE": "cuda:0"},
            "LARDER_DEVICE is 'cuda:0', and PyTorch itself chooses its GPUs: unset it",
        ),
        ({"LARDER_DEVICE": ""}, "LARDER_DEVICE is '', which is no device: unset it"),
        ({"LARDER_DEVICE": "gpu"}, "LARDER_DEVICE is 'gpu', which is no device: unset it"),
    ],
)
def test_a_bad_setting_gets_one_sentence(
    run_python: Run, script: Script, fake_torch: FakeTorch, variables: dict[str, str], sentence: str
) -> None:
    fake_torch.make()
    # PyTorch's own settings are PyTorch's affair in a process that has it.
    if sentence.startswith("LARDER_"):
        assert told(run_python, script, variables).startswith(f"SettingsError {sentence}")
    for words in (["-c", "print('went on')"], ["--env"], ["--compile"]):
        done = run_python("-m", "larder", *words, environment=variables)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"larder: {sentence}")
    assert fake_torch.installs() == []


def test_a_bad_environment_is_told_before_anything_is_imported_or_compiled(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    (fake_torch.folder / "torch").mkdir(parents=True)
    (fake_torch.folder / "torch" / "__init__.py").write_text(
        "raise SystemExit('torch was imported')"
    )
    for variables in ({"LARDER_DEVICE": "sim:1GiB"}, {"LARDER_CONF": "nonsense:1"}):
        assert told(run_python, script, variables).startswith("SettingsError LARDER_")


@pytest.mark.parametrize("device", ["cuda", "process"])
def test_devices_that_pytorch_programs_may_have(
    run_python: Run, script: Script, fake_torch: FakeTorch, device: str
) -> None:
    fake_torch.make()
    assert run_python(script(INSTALL), environment={"LARDER_DEVICE": device}).stdout == "True\n"


def test_what_pytorch_says_of_its_settings_names_the_variable(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    said = (
        "PyTorch cannot read PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF: Unrecognized key 'foo'."
    )
    sources = (Path(larder.__file__).parent / "_backend" / "backend.cpp").read_text()
    assert said.partition("Unrecognized")[0] in sources, "the C++ part says it in this way"
    older, amd, newer = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    for names, told_as in (
        ([newer], newer),
        ([amd], amd),
        ([amd, newer], f"{amd} or {newer}"),
        ([older, amd, newer], older),
    ):
        variables = {**dict.fromkeys(names, "foo:1"), "STAND_IN_REFUSES": said}
        sentence = f"{told_as}: PyTorch cannot read it: Unrecognized key 'foo'."
        assert told(run_python, script, variables) == f"SettingsError {sentence}"
        done = run_python("-m", "larder", "-c", "import torch", environment=variables)
        assert (done.returncode, done.stderr) == (2, f"larder: {sentence}\n")


def test_settings_that_only_pytorch_knows_are_left_to_it(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    variables = {"PYTORCH_ALLOC_CONF": "a_setting_of_torch_3:True"}
    assert run_python(script(INSTALL), environment=variables).stdout == "True\n"
    code = "import torch, larder; print(larder.torch.is_installed())"
    assert run_python("-m", "larder", "-c", code, environment=variables).stdout == "True\n"


def test_a_child_may_have_the_drivers_own_allocator(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    """A program starts a process to try that allocator, as PyTorch's own tests do: it gets what it
    asks for.
    """
    fake_torch.make(allocator="cudaMallocAsync")
    code = "import torch, larder; print(larder.torch.is_installed())"
    done = run_python("-m", "larder", "-c", code)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert (
        done.stderr
        == "larder: this process asks for backend:cudaMallocAsync and goes without Larder\n"
    )
    sentence = "InstallError PyTorch's CUDA allocator is already 'cudaMallocAsync' in this process"
    assert told(run_python, script) == sentence


def test_of_pytorchs_two_variables_the_older_name_counts_alone(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    variables = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:few",
    }
    code = "import torch, larder; print(larder.torch.is_installed())"
    done = run_python("-m", "larder", "-c", code, environment=variables)
    assert done.stdout == "True\n", done.stderr
