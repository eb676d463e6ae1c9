//! The peer: PyTorch's allocator out of its wheel, on the simulated GPU, in the program `judge`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::file;
use crate::stand_in;
use crate::torch::{self, Torch};
use crate::wheels::Wheels;

/// The wheels, of which the oldest peer's allocator and the headers are taken. Everything is
/// pinned: a peer is one version, and its results must not change under us.
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

/// What is wanted of the wheels of later versions. CUDA's headers are those of the oldest.
const WANTED_LATER: [&str; 4] = [
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/include/c10/",
    "torch/include/torch/headeronly/",
];

/// The folder `judge` under Cargo's target folder, and what is in it of one version.
pub(crate) struct Peer {
    folder: PathBuf,
    torch: Torch,
}

impl Peer {
    /// The oldest peer.
    pub(crate) fn new(target: &Path) -> Self {
        Self::of(target, torch::OLDEST)
    }

    /// A peer of this version.
    pub(crate) fn of(target: &Path, torch: Torch) -> Self {
        Self { folder: target.join("judge"), torch }
    }

    pub(crate) fn version(&self) -> Torch {
        self.torch
    }

    /// The program that runs scripts on the peer.
    pub(crate) fn judge(&self) -> PathBuf {
        self.bin().join("judge")
    }

    /// The program that reads settings with the peer's own parser.
    pub(crate) fn settings_judge(&self) -> PathBuf {
        self.bin().join("settings_judge")
    }

    /// PyTorch's own viewer of memory snapshots.
    pub(crate) fn viewer(&self) -> PathBuf {
        self.wheel_files().join("torch/cuda/_memory_viz.py")
    }

    /// The folder of it all, in which runs may write.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn is_oldest(&self) -> bool {
        self.torch == torch::OLDEST
    }

    fn wheel_files(&self) -> PathBuf {
        if self.is_oldest() {
            self.folder.join("peer")
        } else {
            self.folder.join(format!("torch-{}", self.torch))
        }
    }

    /// Fetches what is not there.
    pub(crate) fn fetch(&self) -> Result<(), String> {
        let files = self.wheel_files();
        if self.is_oldest() {
            let what = "PyTorch's allocator";
            return Wheels { what, pins: &WHEELS, wanted: &WANTED, files }.fetch();
        }
        let (what, pin) =
            (format!("the allocator of PyTorch {}", self.torch), format!("torch=={}", self.torch));
        Wheels { what: &what, pins: &[&pin], wanted: &WANTED_LATER, files }.fetch()
    }

    /// The folder with the judge and the libraries that it runs with.
    pub(crate) fn bin(&self) -> PathBuf {
        if self.is_oldest() {
            self.folder.join("bin")
        } else {
            self.folder.join(format!("bin-{}", self.torch))
        }
    }

    /// The folder into which PyTorch's wheel was unpacked.
    pub(crate) fn torch(&self) -> PathBuf {
        self.wheel_files().join("torch")
    }

    /// CUDA's headers, which come with the oldest peer.
    pub(crate) fn cuda_headers(&self) -> Result<PathBuf, String> {
        let oldest = Self { folder: self.folder.clone(), torch: torch::OLDEST };
        oldest.fetch()?;
        Ok(oldest.wheel_files().join("nvidia/cu13/include"))
    }

    /// Fetches the peer if it is not there, and builds the judge around it.
    pub(crate) fn build(&self, root: &Path, static_library: &Path) -> Result<(), String> {
        let runtime = self.prepare(root, static_library)?;
        self.compile(&root.join("torch/judge.cpp"), &runtime, &self.judge())
    }

    /// Fetches the peer, and builds the judge of settings alone.
    pub(crate) fn build_settings_judge(
        &self,
        root: &Path,
        static_library: &Path,
    ) -> Result<(), String> {
        let runtime = self.prepare(root, static_library)?;
        self.compile(&root.join("torch/settings_judge.cpp"), &runtime, &self.settings_judge())
    }

    /// Puts the libraries that a judge runs with into its folder; the path of the runtime among
    /// them.
    fn prepare(&self, root: &Path, static_library: &Path) -> Result<PathBuf, String> {
        self.fetch()?;
        let bin = self.bin();
        file::create(&bin)?;
        for library in ["libc10.so", "libc10_cuda.so"] {
            let from = self.wheel_files().join("torch/lib").join(library);
            fs::copy(&from, bin.join(library)).map_err(file::named(&from))?;
        }
        self.compile_nvml(root)?;
        let runtime = bin.join("libcudart.so.13");
        link_runtime(root, static_library, &runtime)?;
        Ok(runtime)
    }

    /// The stand-in for NVML, which the oldest does without.
    fn compile_nvml(&self, root: &Path) -> Result<(), String> {
        if self.is_oldest() {
            return Ok(());
        }
        stand_in::compile_nvml(root, &self.cuda_headers()?, &self.bin())
    }

    /// A judge's own search path comes before those of PyTorch's libraries, so that a CUDA that
    /// happens to be installed is not taken.
    fn compile(&self, source: &Path, runtime: &Path, program: &Path) -> Result<(), String> {
        let files = self.wheel_files();
        let bin = self.bin();
        let mut compile = Command::new("g++");
        compile
            .args(["-std=c++20", "-O2", "-Wall", "-Wextra", "-pthread"])
            .arg("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE")
            .arg("-isystem")
            .arg(files.join("torch/include"))
            .arg("-isystem")
            .arg(self.cuda_headers()?)
            .arg(source)
            .arg(bin.join("libc10_cuda.so"))
            .arg(bin.join("libc10.so"))
            .arg(runtime)
            .args(["-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags", "-o"])
            .arg(program);
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
