//! Dry runs of real PyTorch programs, compared with what a card was asked for.

use std::fs;
use std::path::Path;

use clap::Args;
use xshell::cmd;

use crate::command::{output, run as act};
use crate::repository::Repository;
use crate::{file, torch};

/// What the card's machine had when the programs were recorded there: with other versions they ask
/// for other things.
const PINS: [&str; 7] = [
    "torch==2.11.0",
    "torchvision==0.26.0",
    "transformers==5.17.0",
    "accelerate==1.15.0",
    "numpy==2.4.6",
    "nvidia-cuda-crt==13.0.88",
    "setuptools==81.0.0",
];

/// Asks a Python where its packages are.
const WHERE: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";

/// What is asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Programs of torch/card/needs.py; without any, all of them.
    programs: Vec<String>,
}

/// Builds what a dry run needs, with a whole PyTorch of some gigabytes, and runs the programs.
pub(crate) fn run(repo: &Repository, options: &Options) -> Result<(), String> {
    let Repository { target, shell, .. } = repo;
    let folder = target.join("dryrun");
    let (venv, libraries) = (folder.join("venv"), folder.join("lib"));
    let made_of = PINS.join("\n");
    file::unless_complete(&folder.join("complete"), &made_of, || {
        act(cmd!(shell, "python3 -m venv --clear {venv}"))?;
        act(cmd!(shell, "{venv}/bin/pip install --quiet --no-cache-dir {PINS...}"))
    })?;
    file::create(&libraries)?;
    repo.build("-p larder-dryrun")?;
    repo.build("-p larder-python")?;
    let card = "liblarder_dryrun.so";
    file::copy(&target.join("release").join(card), &libraries.join(card))?;
    let packages = output(cmd!(shell, "{venv}/bin/python -c {WHERE}"))?;
    let packages = Path::new(packages.trim());
    let part = libraries.join(format!("dry-{}.so", torch::OLDEST.minor));
    compile(repo, packages, &part)?;
    let site = folder.join("site");
    let _ = fs::remove_dir_all(&site);
    act(cmd!(shell, "cp -r python/lib {site}"))?;
    let native = target.join("release/liblarder_native.so");
    file::copy(&native, &site.join("larder/_native.abi3.so"))?;
    let (out, programs) = (folder.join("out"), &options.programs);
    let check = cmd!(shell, "{venv}/bin/python torch/dry_check.py {out} {programs...}");
    act(check.env("PYTHONPATH", &site).env("LARDER_DRYRUN_FOLDER", &libraries))
}

/// The part that knows values, for the PyTorch in a folder of packages. The card's functions it
/// finds in the process, where they come before all others.
fn compile(repo: &Repository, packages: &Path, part: &Path) -> Result<(), String> {
    act(cmd!(
        repo.shell,
        "g++ -std=c++20 -O2 -Wall -Wextra -Werror -fPIC -shared -pthread -fvisibility=hidden
        -isystem {packages}/torch/include -isystem {packages}/torch/include/torch/csrc/api/include
        -isystem {packages}/nvidia/cu13/include torch/dry.cpp {packages}/torch/lib/libc10_cuda.so
        {packages}/torch/lib/libc10.so {packages}/torch/lib/libtorch_cpu.so -o {part}"
    ))
}
