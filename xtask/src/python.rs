//! The Python package: installed as its users install it, and its tests run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::file;
use crate::programs::target_folder;

/// A folder under Cargo's target folder, with a virtual environment in it.
pub(crate) struct Environment {
    pub(crate) folder: PathBuf,
    pub(crate) target: PathBuf,
}

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let package = root.join("python");
    let target = target_folder(root);
    let environment = Environment { folder: target.join("python"), target };
    environment.prepare(&tools(&package)?)?;
    environment.install(&package)?;
    let mut tests = environment.python();
    tests.args(["-m", "pytest", "--quiet", "--basetemp"]).arg(environment.folder.join("tests"));
    command::run(tests.current_dir(&package))
}

/// Builds the package as a wheel for this machine and its like, into a folder.
pub(crate) fn build_wheel(root: &Path, out: &Path) -> Result<(), String> {
    let package = root.join("python");
    let target = target_folder(root);
    let environment = Environment { folder: target.join("python"), target };
    environment.prepare(&tools(&package)?)?;
    let mut maturin = Command::new(environment.folder.join("venv/bin/maturin"));
    maturin.args(["build", "--release", "--quiet", "--out"]).arg(out).current_dir(&package);
    command::run(maturin.env("CARGO_TARGET_DIR", &environment.target))
}

impl Environment {
    pub(crate) fn python(&self) -> Command {
        Command::new(self.folder.join("venv/bin/python"))
    }

    /// Makes the virtual environment with these tools, unless it is there.
    pub(crate) fn prepare(&self, tools: &[String]) -> Result<(), String> {
        let complete = self.folder.join("complete");
        let wanted = format!("{}\n{}", version()?.trim(), tools.join("\n"));
        let venv = self.folder.join("venv");
        if venv.is_dir() && fs::read_to_string(&complete).is_ok_and(|text| text == wanted) {
            return Ok(());
        }
        command::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = self.python();
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
        pip.args(["--retries=1", "--timeout=20"]).args(tools);
        command::output(&mut pip).map_err(|why| {
            let (tools, folder) = (tools.join(", "), self.folder.display());
            format!("{tools} are not in the cache under {folder}, and pip cannot fetch them: {why}")
        })?;
        file::write(&complete, wanted)
    }

    /// Installs the package from its folder. The tools are here already, so pip need not fetch
    /// them.
    fn install(&self, package: &Path) -> Result<(), String> {
        let mut pip = self.python();
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--no-build-isolation", "--no-deps", "--no-index", "--force-reinstall"])
            .arg(package)
            .env("CARGO_TARGET_DIR", &self.target)
            // maturin is a program in the environment's own folder.
            .env("PATH", self.path()?);
        command::run(&mut pip)
    }

    /// The search path, with the environment's own programs first.
    pub(crate) fn path(&self) -> Result<std::ffi::OsString, String> {
        let own = self.folder.join("venv/bin");
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(own).chain(std::env::split_paths(&others));
        std::env::join_paths(all).map_err(|error| format!("PATH: {error}"))
    }
}

/// The tools that a package pins.
fn tools(package: &Path) -> Result<Vec<String>, String> {
    let manifest = package.join("pyproject.toml");
    let text = file::read(&manifest)?;
    Ok(pinned(&text))
}

/// What the installed Python says of itself.
fn version() -> Result<String, String> {
    command::output(Command::new("python3").arg("--version"))
}

/// The tools that a `pyproject.toml` names with their versions, for the build and for the tests.
pub(crate) fn pinned(manifest: &str) -> Vec<String> {
    let texts = manifest.split('"').skip(1).step_by(2);
    texts.filter(|text| text.contains("==")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_are_those_that_the_package_pins() {
        let text =
            "requires = [\"maturin==1.2\"]\nname = \"x\"\ntest = [\"pytest==9\", \"mypy\"]\n";
        assert_eq!(pinned(text), ["maturin==1.2", "pytest==9"]);
        let manifest = crate::repository_root().join("python/pyproject.toml");
        let tools = pinned(&fs::read_to_string(manifest).unwrap());
        for tool in ["maturin==", "pytest==", "mypy=="] {
            assert!(tools.iter().any(|pin| pin.starts_with(tool)), "{tool} is not pinned");
        }
    }
}
