//! The class that puts Larder behind PyTorch's own interface, built against PyTorch's headers.

use std::path::{Path, PathBuf};

use xshell::cmd;

use crate::peer::{Peer, cuda_headers};
use crate::programs::Programs;
use crate::repository::Repository;
use crate::{command, torch};

/// Builds it against the oldest PyTorch that it is for, which is the judge's, and the newest.
pub(crate) fn run(repo: &Repository) -> Result<(), String> {
    Programs::build(repo, torch::OLDEST)?;
    let oldest = Peer::oldest(repo);
    for_judge(oldest)?;
    let newest = Peer { torch: torch::NEWEST, ..oldest };
    newest.fetch()?;
    build(newest, &oldest.bin())?;
    println!("the backend builds against PyTorch {} and {}", torch::OLDEST, torch::NEWEST);
    Ok(())
}

/// The library for the judge's own PyTorch.
pub(crate) fn for_judge(peer: Peer<'_>) -> Result<PathBuf, String> {
    build(peer, &peer.bin())
}

/// Builds it against a peer's PyTorch, into a folder with the simulated GPU. Every symbol must be
/// found in PyTorch's libraries or in the simulated GPU, which carries Larder's C interface too.
fn build(peer: Peer<'_>, bin: &Path) -> Result<PathBuf, String> {
    let (torch, cuda) = (peer.torch(), cuda_headers(peer.repo)?);
    let library = bin.join(format!("larder-torch-{}.so", peer.torch));
    command::run(cmd!(
        peer.repo.shell,
        "g++ -std=c++20 -O2 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden -pthread
        -isystem {torch}/include -isystem {cuda} -I crates/larder-c/include torch/backend.cpp
        {torch}/lib/libc10_cuda.so {torch}/lib/libc10.so {bin}/libcudart.so.13
        -Wl,--no-undefined -Wl,-rpath,$ORIGIN -o {library}"
    ))?;
    Ok(library)
}
