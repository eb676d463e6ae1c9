"""Processes that a program starts have Larder too."""

from __future__ import annotations

from pathlib import Path

import pytest

from stand_in import FakeTorch, Run, Script


@pytest.fixture(autouse=True)
def made(fake_torch: FakeTorch, clean_environment: None) -> None:
    fake_torch.make()


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_workers_of_multiprocessing_have_it(
    run_python: Run, script: Script, fake_torch: FakeTorch, method: str
) -> None:
    name = script(
        f"""
        import multiprocessing, os
        import torch, larder

        def work(number):
            # The worker finds this function in the main module, which it imports by its path.
            return number * 2, larder.torch.is_installed(), __name__

        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                print(pool.map(work, range(3)))
        """
    )
    done = run_python("-m", "larder", name)
    child = "__main__" if method == "fork" else "__mp_main__"
    assert done.stdout == str([(number * 2, True, child) for number in range(3)]) + "\n", (
        done.stderr
    )


def test_a_module_can_be_the_main_module_of_workers(run_python: Run, script: Script) -> None:
    script("", "package/__init__.py")
    script(
        """
        import multiprocessing, torch, larder

        def work(number):
            return larder.torch.is_installed()

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1]))
        """,
        "package/train.py",
    )
    done = run_python("-m", "larder", "-m", "package.train")
    assert done.stdout == "[True]\n", done.stderr


def test_other_pythons_have_it(run_python: Run, script: Script, fake_torch: FakeTorch) -> None:
    script("import torch, larder; print(larder.torch.is_installed())", "worker.py")
    name = script(
        """
        import subprocess, sys
        code = "import torch, larder; print(larder.torch.is_installed())"
        for words in (["worker.py"], ["-c", code]):
            ran = subprocess.run([sys.executable, *words], capture_output=True, text=True)
            sys.stdout.write(ran.stdout)
        """
    )
    done = run_python("-m", "larder", name, environment={"LARDER_CONF": "page_size_mb:2"})
    assert done.stdout == "True\nTrue\n", done.stderr
    assert fake_torch.installs() == ["page_size_mb:2"] * 2
    assert len(fake_torch.processes()) == 2


def test_workers_that_start_at_once_compile_once(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    script("import torch, larder; assert larder.torch.is_installed()", "worker.py")
    name = script(
        """
        import subprocess, sys
        words = [sys.executable, "worker.py"]
        workers = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(6)]
        for worker in workers:
            sys.stderr.write(worker.communicate()[1])
            assert worker.returncode == 0
        """
    )
    done = run_python("-m", "larder", name)
    assert done.returncode == 0
    assert done.stderr.count("compiling the C++ part") == 1, done.stderr
    assert len(fake_torch.processes()) == 6


def test_a_call_in_a_notebook_reaches_its_workers(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    name = script(
        """
        import os, subprocess, sys
        import larder
        larder.torch.install(children_too="no" not in sys.argv)
        larder.torch.install()
        code = "import torch, sys; print('larder.torch' in sys.modules)"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        print(ran.stdout.strip())
        """
    )
    assert run_python(name).returncode == 0
    assert len(fake_torch.processes()) == 2
    assert run_python(name, "no").returncode == 0
    assert len(fake_torch.processes()) == 3


def test_the_users_own_sitecustomize_still_runs(
    run_python: Run, script: Script, tmp_path: Path
) -> None:
    script("print('mine')", "mine/sitecustomize.py")
    name = script("import sitecustomize, sys; print(sitecustomize.__file__)")
    paths = str(tmp_path / "mine")
    code = f"import sys; sys.path.insert(0, {paths!r})"
    plain = run_python("-c", code)
    assert plain.returncode == 0
    import os

    import larder

    site = str(Path(larder.__file__).parents[1])
    everything = os.pathsep.join([paths, str(tmp_path / "site"), site])
    done = run_python("-m", "larder", name, environment={"PYTHONPATH": everything})
    # Once in the Python that reads our options, and once in the program.
    assert done.stdout == f"mine\nmine\n{tmp_path / 'mine' / 'sitecustomize.py'}\n", done.stderr


def test_a_child_that_cannot_have_it_ends(run_python: Run, script: Script) -> None:
    name = script(
        """
        import subprocess, sys
        code = "try:\\n    import torch\\nexcept Exception:\\n    pass\\nprint('went on')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        print(done.returncode, done.stdout, done.stderr)
        """
    )
    done = run_python(
        "-m", "larder", name, environment={"STAND_IN_REFUSES": "the stand-in refuses"}
    )
    assert "went on" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1 ")
    assert lines[-2] == "larder: Larder cannot be installed: the stand-in refuses"


def test_a_thread_that_cannot_have_it_ends_the_process(run_python: Run, script: Script) -> None:
    name = script(
        """
        import threading, importlib
        thread = threading.Thread(target=importlib.import_module, args=("torch",))
        thread.start()
        thread.join()
        print("went on")
        """
    )
    done = run_python(
        "-m", "larder", name, environment={"STAND_IN_REFUSES": "the stand-in refuses"}
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("larder: Larder cannot be installed: the stand-in refuses\n")


def test_an_import_of_torch_that_fails_can_be_tried_again(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    init = fake_torch.folder / "torch" / "__init__.py"
    init.write_text(
        "import os\nif os.environ.pop('BROKEN', ''): raise ImportError('broken')\n"
        + init.read_text()
    )
    name = script(
        """
        try:
            import torch
        except ImportError as error:
            print(error)
        import torch, larder, sys
        print(larder.torch.is_installed(), "exec_module" in vars(torch.__spec__.loader))
        names = [type(finder).__name__ for finder in sys.meta_path]
        print([name for name in names if "Torch" in name])
        """
    )
    done = run_python("-m", "larder", name, environment={"BROKEN": "1"})
    assert done.stdout == "broken\nTrue False\n[]\n", done.stderr


def test_a_python_that_does_not_know_larder_gets_it_all_the_same(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    """The package comes by its path where it is not installed."""
    name = script(
        """
        import os, subprocess, sys
        code = "import torch, sys; print(sys.modules['larder.torch'].is_installed())"
        child = subprocess.run([sys.executable, "-s", "-c", code], capture_output=True, text=True)
        print(child.stdout, child.stderr)
        """
    )
    done = run_python("-m", "larder", name)
    assert done.stdout.startswith("True\n"), done.stdout


@pytest.mark.parametrize("name", ["larder.py", "larder/__init__.py"])
def test_a_file_that_hides_the_package_is_named(
    run_python: Run, script: Script, fake_torch: FakeTorch, tmp_path: Path, name: str
) -> None:
    """It is the program's own, and importing it might do anything."""
    (fake_torch.folder / "torch" / "__init__.py").write_text("")
    hiding = (
        tmp_path / "folder" / script("print('imported')", f"folder/{name}").removeprefix("folder/")
    )
    done = run_python("-m", "larder", script("import torch; print('went on')", "folder/script.py"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"larder: {hiding} hides the package larder: give it another name\n"


def test_a_child_with_bad_settings_ends_as_the_command_does(
    run_python: Run, script: Script
) -> None:
    name = script(
        """
        import os, subprocess, sys
        os.environ["LARDER_CONF"] = "nonsense:1"
        done = subprocess.run([sys.executable, "-c", "import torch; print('went on')"])
        print(done.returncode)
        """
    )
    done = run_python("-m", "larder", name)
    assert done.stdout == "2\n"
    assert done.stderr.startswith(
        "larder: LARDER_CONF: 'nonsense' is not one of Larder's own settings"
    )
