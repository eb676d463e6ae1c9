//! The peer: PyTorch's allocator out of its wheel, on the simulated GPU, in the program `judge`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::wheels::Wheels;

/// The wheels, of which the allocator and the headers are taken. Everything is pinned: the peer is
/// one version, and its results must not change under us.
const WHEELS: [&str; 4] = [
    "torch==2.11.0",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvml-dev==13.4.92",
];

const WANTED: [&str; 6] = [
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/include/c10/",
    "torch/include/torch/headeronly/",
    "torch/cuda/_memory_viz.py",
    "nvidia/cu13/include/",
];

/// The folder `judge` under Cargo's target folder, and what is in it.
pub(crate) struct Peer {
    folder: PathBuf,
}

impl Peer {
    pub(crate) fn new(target: &Path) -> Self {
        Self { folder: target.join("judge") }
    }

    /// The program that runs scripts on the peer.
    pub(crate) fn judge(&self) -> PathBuf {
        self.folder.join("bin/judge")
    }

    /// PyTorch's own viewer of memory snapshots.
    pub(crate) fn viewer(&self) -> PathBuf {
        self.wheel_files().join("torch/cuda/_memory_viz.py")
    }

    /// The folder of it all, in which runs may write.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn wheel_files(&self) -> PathBuf {
        self.folder.join("peer")
    }

    fn fetch(&self) -> Result<(), String> {
        let (what, files) = ("PyTorch's allocator", self.wheel_files());
        Wheels { what, pins: &WHEELS, wanted: &WANTED, files }.fetch()
    }

    /// The folder with the judge and the libraries that it runs with.
    pub(crate) fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The folder into which PyTorch's wheel was unpacked.
    pub(crate) fn torch(&self) -> PathBuf {
        self.wheel_files().join("torch")
    }

    /// CUDA's headers, which come with the peer.
    pub(crate) fn cuda_headers(&self) -> Result<PathBuf, String> {
        self.fetch()?;
        Ok(self.wheel_files().join("nvidia/cu13/include"))
    }

    /// Fetches the peer if it is not there, and builds the judge around it.
    pub(crate) fn build(&self, root: &Path, static_library: &Path) -> Result<(), String> {
        self.fetch()?;
        let bin = self.folder.join("bin");
        fs::create_dir_all(&bin).map_err(|error| format!("{}: {error}", bin.display()))?;
        for library in ["libc10.so", "libc10_cuda.so"] {
            let from = self.wheel_files().join("torch/lib").join(library);
            fs::copy(&from, bin.join(library))
                .map_err(|error| format!("{}: {error}", from.display()))?;
        }
        let runtime = bin.join("libcudart.so.13");
        link_runtime(root, static_library, &runtime)?;
        self.compile_judge(root, &runtime)
    }

    /// The judge's own search path comes before those of PyTorch's libraries, so that a CUDA that
    /// happens to be installed is not taken.
    fn compile_judge(&self, root: &Path, runtime: &Path) -> Result<(), String> {
        let files = self.wheel_files();
        let bin = self.folder.join("bin");
        let mut compile = Command::new("g++");
        compile
            .args(["-std=c++20", "-O2", "-Wall", "-Wextra", "-pthread"])
            .arg("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE")
            .arg("-isystem")
            .arg(files.join("torch/include"))
            .arg("-isystem")
            .arg(files.join("nvidia/cu13/include"))
            .arg(root.join("torch/judge.cpp"))
            .arg(bin.join("libc10_cuda.so"))
            .arg(bin.join("libc10.so"))
            .arg(runtime)
            .args(["-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags", "-o"])
            .arg(self.judge());
        run(&mut compile)
    }
}

/// All of the archive goes in, because nothing in the library itself calls what it exports.
fn link_runtime(root: &Path, archive: &Path, runtime: &Path) -> Result<(), String> {
    let map = root.join("crates/larder-cudart/libcudart.map");
    let mut link = Command::new("gcc");
    link.args(["-shared", "-Wl,-soname,libcudart.so.13", "-Wl,--gc-sections"])
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .args(["-Wl,--no-whole-archive", "-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"])
        .arg(runtime);
    run(&mut link)
}
