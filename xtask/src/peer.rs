//! The peer: PyTorch's allocator out of its wheel, on the simulated GPU, in the program `judge`.

use std::path::PathBuf;

use xshell::cmd;

use crate::command::run;
use crate::repository::Repository;
use crate::torch::{self, Torch};
use crate::wheels::Wheels;
use crate::{file, stand_in};

/// The wheels, of which the oldest peer's allocator and the headers are taken. Everything is
/// pinned: a peer is one version, and its results must not change under us.
const WHEELS: [&str; 4] = [
    "torch==2.11.0",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvml-dev==13.4.92",
];

/// What is wanted of the oldest. Of later ones it is the allocators, the first five: the viewer and
/// CUDA's headers are the oldest's.
const WANTED: [&str; 7] = [
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/include/c10/",
    "torch/include/torch/headeronly/",
    "torch/include/ATen/core/CachingHostAllocator.h",
    "torch/cuda/_memory_viz.py",
    "nvidia/cu13/include/",
];

/// A version of PyTorch, as it lies in the folder `judge` under Cargo's target folder.
#[derive(Clone, Copy)]
pub(crate) struct Peer<'a> {
    pub(crate) repo: &'a Repository,
    pub(crate) torch: Torch,
}

impl<'a> Peer<'a> {
    pub(crate) fn oldest(repo: &'a Repository) -> Self {
        Self { repo, torch: torch::OLDEST }
    }

    fn folder(self, of_oldest: &str, of_later: &str) -> PathBuf {
        let folder = self.repo.target.join("judge");
        if self.torch == torch::OLDEST {
            return folder.join(of_oldest);
        }
        folder.join(format!("{of_later}-{}", self.torch))
    }

    /// The folder with the judge and the libraries that it runs with.
    pub(crate) fn bin(self) -> PathBuf {
        self.folder("bin", "bin")
    }

    fn wheel_files(self) -> PathBuf {
        self.folder("peer", "torch")
    }

    /// The folder into which PyTorch's wheel was unpacked.
    pub(crate) fn torch(self) -> PathBuf {
        self.wheel_files().join("torch")
    }

    /// Fetches what is not there.
    pub(crate) fn fetch(self) -> Result<(), String> {
        let (files, pin) = (self.wheel_files(), format!("torch=={}", self.torch));
        let what = format!("the allocator of PyTorch {}", self.torch);
        let (pins, wanted) = if self.torch == torch::OLDEST {
            (&WHEELS[..], &WANTED[..])
        } else {
            (&[pin.as_str()][..], &WANTED[..5])
        };
        Wheels { what: &what, pins, wanted, files }.fetch(self.repo)
    }

    /// Fetches the peer if it is not there, and builds the judge around it: the program that runs
    /// scripts on it.
    pub(crate) fn build_judge(self) -> Result<PathBuf, String> {
        self.build("judge")
    }

    /// The program that reads settings with the peer's own parser.
    pub(crate) fn build_settings_judge(self) -> Result<PathBuf, String> {
        self.build("settings_judge")
    }

    /// Builds a program, and puts the libraries that it runs with beside it. Its own search path
    /// comes before those of PyTorch's libraries, so that a CUDA that happens to be installed is
    /// not taken.
    fn build(self, name: &str) -> Result<PathBuf, String> {
        let Repository { target, shell, .. } = self.repo;
        self.repo.build("-p larder-cudart")?;
        self.fetch()?;
        let (bin, torch, cuda) = (self.bin(), self.torch(), cuda_headers(self.repo)?);
        file::create(&bin)?;
        for library in ["libc10.so", "libc10_cuda.so"] {
            file::copy(&torch.join("lib").join(library), &bin.join(library))?;
        }
        // All but the oldest need an NVML, and the oldest gives up where a real one does not know
        // the simulated GPU.
        stand_in::compile_nvml(self.repo, &cuda, &bin)?;
        // All of the archive goes in, because nothing in the library itself calls what it exports.
        run(cmd!(
            shell,
            "gcc -shared -Wl,-soname,libcudart.so.13 -Wl,--gc-sections
            -Wl,--version-script=crates/larder-cudart/libcudart.map
            -Wl,--whole-archive {target}/release/liblarder_cudart.a -Wl,--no-whole-archive
            -lpthread -ldl -lm -lgcc_s -o {bin}/libcudart.so.13"
        ))?;
        run(cmd!(
            shell,
            "g++ -std=c++20 -O2 -Wall -Wextra -pthread -DC10_CUDA_NO_CMAKE_CONFIGURE_FILE
            -isystem {torch}/include -isystem {cuda} torch/{name}.cpp
            {bin}/libc10_cuda.so {bin}/libc10.so {bin}/libcudart.so.13
            -Wl,-rpath,$ORIGIN -Wl,--disable-new-dtags -o {bin}/{name}"
        ))?;
        Ok(bin.join(name))
    }
}

/// CUDA's headers, which come with the oldest peer.
pub(crate) fn cuda_headers(repo: &Repository) -> Result<PathBuf, String> {
    let oldest = Peer::oldest(repo);
    oldest.fetch()?;
    Ok(oldest.wheel_files().join("nvidia/cu13/include"))
}
