//! The Python package as a wheel for everybody: it needs no Rust, runs on any Linux with the glibc that it
//! names or a newer one, and brings the command `larder`, which is the package's own.
//!
//! Zig links it, because this machine's glibc is too new for others.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::programs::target_folder;
use crate::python::{Environment, pinned};

/// The oldest glibc on which it runs, which is Rust's own.
const GLIBC: &str = "2.17";
/// What builds and judges it, besides what the package itself pins.
const TOOLS: [&str; 3] = ["ziglang==0.17.0", "cargo-zigbuild==0.24.0", "auditwheel==6.8.2"];

/// What a program without Rust sees of the package.
const LOOK: &str = "
import larder
allocator = larder.Allocator('sim:1GiB')
print('import larder:', larder.__version__, 'in', larder.__file__)
";

/// Builds the wheel into target/wheels and tries it where there is no Rust.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let target = target_folder(root);
    let folder = target.join("wheel");
    let environment = Environment { folder: folder.clone(), target: target.clone() };
    let manifest = root.join("python/pyproject.toml");
    let text = fs::read_to_string(&manifest)
        .map_err(|error| format!("{}: {error}", manifest.display()))?;
    let maturin = pinned(&text).into_iter().filter(|pin| pin.starts_with("maturin=="));
    let tools: Vec<String> = maturin.chain(TOOLS.map(str::to_owned)).collect();
    environment.prepare(&tools)?;

    let module = build_module(root, &environment)?;
    let out = target.join("wheels");
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let wheel = out.join(module.file_name().unwrap_or_default());
    fs::copy(&module, &wheel).map_err(|error| format!("{}: {error}", wheel.display()))?;
    judge(&environment, &wheel)?;
    try_without_rust(root, &folder.join("fresh"), &wheel)?;
    println!("{}", wheel.display());
    Ok(())
}

/// The package with its native module.
fn build_module(root: &Path, environment: &Environment) -> Result<PathBuf, String> {
    let out = environment.folder.join("module");
    let _ = fs::remove_dir_all(&out);
    let tag = format!("manylinux_{}", GLIBC.replace('.', "_"));
    let mut maturin = Command::new(environment.folder.join("venv/bin/maturin"));
    maturin
        .args(["build", "--release", "--quiet", "--zig", "--auditwheel=check"])
        .args(["--compatibility", &tag, "--target", &format!("{ARCH}-unknown-linux-gnu")])
        .arg("--out")
        .arg(&out)
        .current_dir(root.join("python"));
    command::run(
        maturin.env("CARGO_TARGET_DIR", &environment.target).env("PATH", environment.path()?),
    )?;
    only_file(&out)
}

fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        _ => Err(format!("{} files are in {}, not one", files.len(), folder.display())),
    }
}

/// Whether everything in the wheel keeps to what its name promises.
fn judge(environment: &Environment, wheel: &Path) -> Result<(), String> {
    let mut show = environment.python();
    let said = show.args(["-m", "auditwheel", "show"]).arg(wheel).output();
    let said = said.map_err(|error| format!("auditwheel: {error}"))?;
    let words = String::from_utf8_lossy(&said.stdout);
    let tag = format!("manylinux_{}_{ARCH}", GLIBC.replace('.', "_"));
    if said.status.success() && is_consistent(&words, &tag) {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&said.stderr);
    Err(format!("{} is not {tag}: {}{}", wheel.display(), words.trim(), errors.trim()))
}

/// Whether auditwheel's answer gives the wheel this tag. The lines of its text are broken anywhere.
fn is_consistent(words: &str, tag: &str) -> bool {
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    words.contains(&format!("is consistent with the following platform tag: \"{tag}\""))
}

/// Installs the wheel into a new environment and uses it, with nothing else to be found.
fn try_without_rust(root: &Path, fresh: &Path, wheel: &Path) -> Result<(), String> {
    command::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(fresh))?;
    let bin = fresh.join("bin");
    let program = |name: &str| {
        let mut command = Command::new(bin.join(name));
        command.env_clear().env("PATH", &bin).current_dir(root.join("workloads"));
        command
    };
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
    command::run(program("python").args(install).arg(wheel))?;
    command::run(program("larder").arg("--version"))?;
    command::run(program("larder").args(["replay", "hot_block.ops"]))?;
    command::run(program("python").args(["-c", LOOK]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judges_words_are_read_across_lines() {
        let said =
            "x.whl is consistent\nwith the following platform tag:\n\"manylinux_2_17_x86_64\".\n";
        assert!(is_consistent(said, "manylinux_2_17_x86_64"));
        assert!(!is_consistent(said, "manylinux_2_28_x86_64"));
    }
}
