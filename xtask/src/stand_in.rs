//! Libraries in the places of CUDA's, for machines without a GPU.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;

/// A library that is compiled with CUDA's headers.
pub(crate) struct Library<'a> {
    /// The name by which programs find it.
    pub(crate) name: &'static str,
    pub(crate) sources: &'a [PathBuf],
    /// More words for the compiler and the linker.
    pub(crate) words: &'a [String],
}

impl Library<'_> {
    /// Compiles it into a folder.
    pub(crate) fn compile(&self, cuda_headers: &Path, folder: &Path) -> Result<(), String> {
        let mut compile = Command::new("g++");
        compile
            .args(["-std=c++20", "-O3", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
            .arg("-isystem")
            .arg(cuda_headers)
            .args(self.sources)
            .args(self.words)
            .arg(format!("-Wl,-soname,{}", self.name))
            .arg("-o")
            .arg(folder.join(self.name));
        command::run(&mut compile)
    }
}

/// The driver's, as the proof uses it.
pub(crate) fn driver(root: &Path) -> PathBuf {
    root.join("crates/larder-proof/stand_in/driver.cpp")
}

/// Compiles the program that does what the driver's must not let pass, against the one in a folder.
pub(crate) fn compile_trespass(
    root: &Path,
    cuda_headers: &Path,
    folder: &Path,
    program: &Path,
) -> Result<(), String> {
    let mut compile = Command::new("g++");
    compile
        .args(["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-isystem"])
        .arg(cuda_headers)
        .arg(root.join("crates/larder-proof/stand_in/trespass.cpp"))
        .arg(folder.join("libcuda.so.1"))
        .arg("-o")
        .arg(program);
    command::run(&mut compile)
}

/// Compiles NVML's into a folder.
pub(crate) fn compile_nvml(root: &Path, cuda_headers: &Path, folder: &Path) -> Result<(), String> {
    let sources = &[root.join("torch/nvml.cpp")];
    Library { name: "libnvidia-ml.so.1", sources, words: &[] }.compile(cuda_headers, folder)
}
