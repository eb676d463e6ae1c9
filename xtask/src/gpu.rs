//! The folder `target/gpu`: everything that proves and measures on a machine with a GPU.

use std::path::{Path, PathBuf};

use clap::Args;
use xshell::cmd;

use crate::command::{self, ended, said};
use crate::peer::cuda_headers;
use crate::repository::Repository;
use crate::wheels::Wheels;
use crate::{file, programs, python, stand_in};

/// The compiler of kernels, which needs no GPU.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.88";
const KERNELS: &str = "crates/larder-proof/kernels";

/// Finds CUDA's libraries and tools in their usual places, and runs the program.
const SCRIPT: &str = "crates/larder-proof/run.sh";

/// The parts that a stand-in can show: not the driver's speed, not cuBLAS, not the sanitizer.
const STAND_IN_PARTS: &str =
    "conformance patterns views late-reader reuse buffers graphs share full driver-pool";
/// The parts that are run again as if the driver were older than the calls that CUDA 12.3 brought.
const OLD_STAND_IN_PARTS: &str = "conformance reuse";

/// What is done besides laying out the folder.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Compile the kernels anew before, with NVRTC out of its wheel, which needs no GPU.
    #[arg(long = "kernels")]
    compiles_kernels: bool,
    /// Instead, run the proof here, in short, on a stand-in for the driver; that shows that the
    /// calls are made as CUDA's header declares them and that the proof can pass.
    #[arg(long = "stand-in")]
    on_stand_in: bool,
    /// Other people's libraries too (vLLM and what it imports; torch/card/bundle.txt), in
    /// target/bundle, some 250 MB in parts of 44 MiB, for `target/gpu/run.sh torch clients`.
    #[arg(long = "bundle")]
    has_bundle: bool,
}

pub(crate) fn run(repo: &Repository, options: Options) -> Result<(), String> {
    let Repository { root, target, shell } = repo;
    if options.compiles_kernels {
        compile_kernels(repo)?;
    }
    repo.build("-p larder-proof")?;
    if options.on_stand_in {
        return run_on_stand_in(repo);
    }
    // Below the repository, wherever Cargo builds, so that the folder can be named there.
    let folder = root.join("target/gpu");
    file::create(&folder)?;
    let program = folder.join("larder-proof");
    file::copy(&target.join("release/larder-proof"), &program)?;
    command::run(cmd!(shell, "strip {program}"))?;
    command::run(cmd!(shell, "install --mode=755 {SCRIPT} {folder}/run.sh"))?;
    python::build_wheel(repo, &folder)?;
    programs::lay_out(repo, &folder.join("threads"))?;
    if options.has_bundle {
        command::run(cmd!(shell, "python3 torch/card/bundle.py pack target/bundle"))?;
    }
    println!("on the machine with the GPU: target/gpu/run.sh and target/gpu/run.sh torch");
    Ok(())
}

/// Runs the proof in short, with a library in the driver's place that works on the host's memory,
/// and the program that uses a real GPU with nothing but Larder.
fn run_on_stand_in(repo: &Repository) -> Result<(), String> {
    let Repository { target, shell, .. } = repo;
    // With no other crate's features: the streams are our own, not cudarc's.
    let plain = repo.example("larder", "10-real-gpu")?;
    let new = build_driver(repo, "stand-in", &[])?;
    let old = build_driver(repo, "stand-in-old", &["-DBEFORE_CUDA_12_3"])?;
    check_strictness(repo, &new)?;
    for (folder, parts) in [(new, STAND_IN_PARTS), (old, OLD_STAND_IN_PARTS)] {
        let parts = parts.split(' ');
        let _driver = shell.push_env("LD_LIBRARY_PATH", &folder);
        let proof = cmd!(shell, "{target}/release/larder-proof --short {parts...}");
        command::run(proof.env("OUT", folder.join("results")))?;
        command::run(shell.cmd(&plain))?;
    }
    Ok(())
}

/// Sees that the library ends a program that asks about a stream which is not its own, and no other
/// one.
fn check_strictness(repo: &Repository, folder: &Path) -> Result<(), String> {
    let (shell, headers) = (&repo.shell, cuda_headers(repo)?);
    command::run(cmd!(
        shell,
        "g++ -std=c++20 -O1 -Wall -Wextra -Werror -pthread -isystem {headers}
        crates/larder-proof/stand_in/trespass.cpp {folder}/libcuda.so.1 -o {folder}/trespass"
    ))?;
    let trespass = |which: &str| {
        let program = cmd!(shell, "{folder}/trespass {which}").env("LD_LIBRARY_PATH", folder);
        ended(&mut program.into()).map(|end| (end.status.success(), said(&end)))
    };
    let (ends_well, said) = trespass("none")?;
    if !ends_well {
        return Err(format!("the stand-in ended a program that did nothing wrong: {said}"));
    }
    for (which, why) in [
        // A thread that is interrupted may come to ask a little later than it meant to.
        ("beginning", "another thread is"),
        ("ending", "another thread is"),
        ("destroying", "destroy"),
        ("destroyed", "that is destroyed"),
    ] {
        let (ends_well, said) = trespass(which)?;
        if ends_well || !said.contains(why) {
            return Err(format!("the stand-in let the trespass `{which}` pass: {said}"));
        }
    }
    println!("strict: four trespasses ended their programs");
    Ok(())
}

/// The library in the driver's place, in a folder of its own.
fn build_driver(repo: &Repository, name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let folder = repo.target.join(name);
    file::create(&folder)?;
    let library = ("libcuda.so.1", &[stand_in::DRIVER][..], flags);
    stand_in::compile(repo, &cuda_headers(repo)?, library, &folder)?;
    Ok(folder)
}

/// Compiles the kernels with NVRTC out of its wheel, which stays under target/nvrtc.
fn compile_kernels(repo: &Repository) -> Result<(), String> {
    let (what, files) = ("NVRTC", repo.target.join("nvrtc"));
    let library = files.join("nvidia/cu13/lib/libnvrtc.so.13");
    Wheels { what, pins: &[NVRTC], wanted: &["nvidia/cu13/lib/"], files }.fetch(repo)?;
    command::run(cmd!(
        repo.shell,
        "python3 {KERNELS}/compile.py {library} {KERNELS}/kernels.cu {KERNELS}/kernels.ptx"
    ))
}
