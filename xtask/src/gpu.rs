//! The folder `target/gpu`: everything that proves and measures on a machine with a GPU.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::bench;
use crate::command;
use crate::file;
use crate::peer::Peer;
use crate::programs::{self, target_folder};
use crate::python;
use crate::stand_in::{self, Library};
use crate::wheels::Wheels;

/// The compiler of kernels, which needs no GPU.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.88";
const KERNELS: &str = "crates/larder-proof/kernels";

/// Finds CUDA's libraries and tools in their usual places, and runs the program.
const SCRIPT: &str = "crates/larder-proof/run.sh";

/// Where other people's libraries are laid out, in parts that can be brought one by one.
const BUNDLE: &str = "target/bundle";

/// The parts that a stand-in can show: not the driver's speed, not cuBLAS, not the sanitizer.
const STAND_IN_PARTS: [&str; 10] = [
    "conformance",
    "patterns",
    "views",
    "late-reader",
    "reuse",
    "buffers",
    "graphs",
    "share",
    "full",
    "driver-pool",
];

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

pub(crate) fn run(root: &Path, cargo: &Path, options: Options) -> Result<(), String> {
    let target = target_folder(root);
    if options.compiles_kernels {
        compile_kernels(root, &target)?;
    }
    programs::build(root, cargo, &target, &["-p", "larder-proof"])?;
    if options.on_stand_in {
        // With no other crate's features: the streams are our own, not cudarc's.
        programs::build(root, cargo, &target, &["-p", "larder", "--example", PLAIN])?;
        return run_on_stand_in(root, &target);
    }
    // Below the repository, wherever Cargo builds, so that the folder can be named there.
    let folder = root.join("target/gpu");
    file::create(&folder)?;
    let program = folder.join("larder-proof");
    fs::copy(target.join("release/larder-proof"), &program).map_err(file::named(&program))?;
    command::run(Command::new("strip").arg(&program))?;
    let script = folder.join("run.sh");
    file::copy(&root.join(SCRIPT), &script)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .map_err(file::named(&script))?;
    python::build_wheel(root, &folder)?;
    bench::threads::lay_out(root, cargo, &folder.join("threads"))?;
    if options.has_bundle {
        let mut pack = Command::new("python3");
        pack.arg(root.join("torch/card/bundle.py")).arg("pack").arg(root.join(BUNDLE));
        command::run(&mut pack)?;
    }
    println!("on the machine with the GPU: target/gpu/run.sh and target/gpu/run.sh torch");
    Ok(())
}

/// The program that uses a real GPU with nothing but Larder.
const PLAIN: &str = "10-real-gpu";
/// The parts that are run again as if the driver were older than the calls that CUDA 12.3 brought.
const OLD_STAND_IN_PARTS: [&str; 2] = ["conformance", "reuse"];

/// Runs the proof in short, with a library in the driver's place that works on the host's memory.
fn run_on_stand_in(root: &Path, target: &Path) -> Result<(), String> {
    let new = build_driver(root, target, "stand-in", &[])?;
    let old = build_driver(root, target, "stand-in-old", &["-DBEFORE_CUDA_12_3"])?;
    check_strictness(root, target, &new)?;
    for (folder, parts) in [(new, &STAND_IN_PARTS[..]), (old, &OLD_STAND_IN_PARTS)] {
        let mut proof = Command::new(target.join("release/larder-proof"));
        proof.arg("--short").args(parts);
        command::run(proof.env("LD_LIBRARY_PATH", &folder).env("OUT", folder.join("results")))?;
        let mut plain = Command::new(target.join("release/examples").join(PLAIN));
        command::run(plain.env("LD_LIBRARY_PATH", &folder))?;
    }
    Ok(())
}

/// Sees that the library ends a program that asks about a stream which is not its own, and no other
/// one.
fn check_strictness(root: &Path, target: &Path, folder: &Path) -> Result<(), String> {
    let headers = Peer::new(target).cuda_headers()?;
    let program = folder.join("trespass");
    stand_in::compile_trespass(root, &headers, folder, &program)?;
    let trespass = |which: &str| {
        let run = Command::new(&program).arg(which).env("LD_LIBRARY_PATH", folder).output();
        let run = run.map_err(file::named(&program))?;
        Ok::<_, String>((run.status.success(), String::from_utf8_lossy(&run.stderr).into_owned()))
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
fn build_driver(root: &Path, target: &Path, name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let headers = Peer::new(target).cuda_headers()?;
    let folder = target.join(name);
    file::create(&folder)?;
    let words: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let sources = &[stand_in::driver(root)];
    Library { name: "libcuda.so.1", sources, words: &words }.compile(&headers, &folder)?;
    Ok(folder)
}

/// Compiles the kernels with NVRTC out of its wheel, which stays under target/nvrtc.
fn compile_kernels(root: &Path, target: &Path) -> Result<(), String> {
    let folder = target.join("nvrtc");
    let library = folder.join("nvidia/cu13/lib/libnvrtc.so.13");
    let (what, files) = ("NVRTC", folder);
    Wheels { what, pins: &[NVRTC], wanted: &["nvidia/cu13/lib/"], files }.fetch()?;
    let kernels = root.join(KERNELS);
    let mut compile = Command::new("python3");
    compile.arg(kernels.join("compile.py")).arg(&library);
    command::run(compile.arg(kernels.join("kernels.cu")).arg(kernels.join("kernels.ptx")))
}
