//! The class that puts Larder behind PyTorch's own interface, built against PyTorch's headers.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::peer::Peer;
use crate::programs::Programs;
use crate::programs::target_folder;
use crate::torch;

/// Builds it against the oldest PyTorch that it is for, which is the judge's, and the newest.
pub(crate) fn run(root: &Path, cargo: &Path) -> Result<(), String> {
    let target = target_folder(root);
    Programs::build(root, cargo, &target)?;
    let peer = Peer::new(&target);
    let bin = peer.bin();
    build(root, &peer, &bin)?;
    let newest = Peer::of(&target, torch::NEWEST);
    newest.fetch()?;
    build(root, &newest, &bin)?;
    println!("the backend builds against PyTorch {} and {}", torch::OLDEST, torch::NEWEST);
    Ok(())
}

/// The library for the judge's own PyTorch.
pub(crate) fn for_judge(root: &Path, peer: &Peer) -> Result<PathBuf, String> {
    build(root, peer, &peer.bin())
}

/// Builds it against a peer's PyTorch, into a folder with the simulated GPU. Every symbol must be
/// found in PyTorch's libraries or in the simulated GPU, which carries Larder's C interface too.
fn build(root: &Path, peer: &Peer, bin: &Path) -> Result<PathBuf, String> {
    let (torch, version) = (peer.torch(), peer.version());
    let library = bin.join(format!("larder-torch-{version}.so"));
    let mut compile = Command::new("g++");
    compile
        .args(["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
        .args(["-fvisibility=hidden", "-pthread"])
        .arg("-isystem")
        .arg(torch.join("include"))
        .arg("-isystem")
        .arg(peer.cuda_headers()?)
        .arg("-I")
        .arg(root.join("crates/larder-c/include"))
        .arg(root.join("torch/backend.cpp"))
        .arg(torch.join("lib/libc10_cuda.so"))
        .arg(torch.join("lib/libc10.so"))
        .arg(bin.join("libcudart.so.13"))
        .args(["-Wl,--no-undefined", "-Wl,-rpath,$ORIGIN", "-o"])
        .arg(&library);
    command::run(&mut compile)?;
    Ok(library)
}
