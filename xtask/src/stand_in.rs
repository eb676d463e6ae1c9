//! Libraries in the places of CUDA's, for machines without a GPU.

use std::path::Path;

use xshell::cmd;

use crate::command::run;
use crate::repository::Repository;

/// The driver's, as the proof uses it.
pub(crate) const DRIVER: &str = "crates/larder-proof/stand_in/driver.cpp";

/// Compiles a library with CUDA's headers, under the name by which programs find it, with more
/// words for the compiler and the linker.
pub(crate) fn compile(
    repo: &Repository,
    headers: &Path,
    (name, sources, words): (&str, &[&str], &[&str]),
    folder: &Path,
) -> Result<(), String> {
    run(cmd!(
        repo.shell,
        "g++ -std=c++20 -O3 -Wall -Wextra -Werror -shared -fPIC -isystem {headers} {sources...}
        {words...} -Wl,-soname,{name} -o {folder}/{name}"
    ))
}

/// Compiles NVML's into a folder.
pub(crate) fn compile_nvml(repo: &Repository, headers: &Path, folder: &Path) -> Result<(), String> {
    compile(repo, headers, ("libnvidia-ml.so.1", &["torch/nvml.cpp"], &[]), folder)
}
