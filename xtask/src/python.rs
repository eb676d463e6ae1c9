//! The Python package: installed as its users install it, and its tests run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use xshell::{Cmd, cmd};

use crate::command::{output, run as run_command};
use crate::file;
use crate::repository::Repository;

/// What `pip` is told wherever it fetches.
pub(crate) const QUIET: [&str; 5] =
    ["--quiet", "--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=20"];

/// A folder with a virtual environment in it.
pub(crate) struct Environment<'a> {
    pub(crate) repo: &'a Repository,
    pub(crate) folder: PathBuf,
}

pub(crate) fn run(repo: &Repository) -> Result<(), String> {
    let environment = Environment::of_package(repo)?;
    let path = environment.path()?;
    // The tools are here already, so pip need not fetch them.
    let install = environment.python().args(["-m", "pip", "install"]).args(QUIET).args([
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        "./python",
    ]);
    // maturin is a program in the environment's own folder.
    run_command(install.env("PATH", path))?;
    let _package = repo.shell.push_dir("python");
    let tests = environment.python().args(["-m", "pytest", "--quiet", "--basetemp"]);
    run_command(tests.arg(environment.folder.join("tests")))
}

/// Builds the package as a wheel for this machine and its like, into a folder.
pub(crate) fn build_wheel(repo: &Repository, out: &Path) -> Result<(), String> {
    let environment = Environment::of_package(repo)?;
    let maturin = environment.folder.join("venv/bin/maturin");
    let _package = repo.shell.push_dir("python");
    run_command(cmd!(repo.shell, "{maturin} build --release --quiet --out {out}"))
}

impl<'a> Environment<'a> {
    /// The one in which the package is built and tested.
    fn of_package(repo: &'a Repository) -> Result<Self, String> {
        let environment = Self { repo, folder: repo.target.join("python") };
        environment.prepare(&pinned(repo)?)?;
        Ok(environment)
    }

    pub(crate) fn python(&self) -> Cmd<'a> {
        self.repo.shell.cmd(self.folder.join("venv/bin/python"))
    }

    /// Makes the virtual environment with these tools, unless it is there.
    pub(crate) fn prepare(&self, tools: &[String]) -> Result<(), String> {
        self.install(&tools.join("\n"), tools)
    }

    /// Makes the virtual environment by these words for `pip install`, unless it is there.
    pub(crate) fn install(&self, list: &str, words: &[String]) -> Result<(), String> {
        let version = output(cmd!(self.repo.shell, "python3 --version"))?;
        let made_of = &format!("{}\n{list}", version.trim());
        let venv = self.folder.join("venv");
        file::unless_complete(&self.folder.join("complete"), made_of, || {
            run_command(cmd!(self.repo.shell, "python3 -m venv --clear {venv}"))?;
            let pip = self.python().args(["-m", "pip", "install"]).args(QUIET).args(words);
            output(pip).map(drop).map_err(|why| {
                let (tools, folder) = (words.join(", "), self.folder.display());
                format!("{tools}: not in the cache under {folder}, and pip cannot fetch it: {why}")
            })
        })
    }

    /// The search path, with the environment's own programs first.
    pub(crate) fn path(&self) -> Result<OsString, String> {
        let own = self.folder.join("venv/bin");
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(own).chain(std::env::split_paths(&others));
        std::env::join_paths(all).map_err(|error| format!("PATH: {error}"))
    }
}

/// The tools that the package names with their versions, for the build and for the tests.
pub(crate) fn pinned(repo: &Repository) -> Result<Vec<String>, String> {
    let manifest = file::read(&repo.root.join("python/pyproject.toml"))?;
    let texts = manifest.split('"').skip(1).step_by(2);
    Ok(texts.filter(|text| text.contains("==")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_are_those_that_the_package_pins() {
        let tools = pinned(&Repository::here().unwrap()).unwrap();
        for tool in ["maturin==", "pytest==", "mypy=="] {
            assert!(tools.iter().any(|pin| pin.starts_with(tool)), "{tool} is not pinned");
        }
    }
}
