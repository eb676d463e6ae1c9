//! The programs in which PyTorch's allocator and ours run beside each other, and what they run.

use std::fs;
use std::path::{Path, PathBuf};

use xshell::{Cmd, cmd};

use crate::command::run;
use crate::file;
use crate::peer::Peer;
use crate::repository::{Repository, cargo, is_script, stem};
use crate::torch::{self, Torch};

/// The programs that take part.
pub(crate) struct Programs<'a> {
    repo: &'a Repository,
    pub(crate) judge: PathBuf,
    pub(crate) larder: PathBuf,
    testkit: PathBuf,
    /// Writes what a recorded program did.
    write_trace: PathBuf,
}

impl<'a> Programs<'a> {
    /// Builds both sides, with a peer of this version.
    pub(crate) fn build(repo: &'a Repository, torch: Torch) -> Result<Self, String> {
        let larder = repo.larder()?;
        let testkit = testkit(repo)?;
        let write_trace = repo.example("larder-study", "write_trace")?;
        let judge = Peer { repo, torch }.build_judge()?;
        Ok(Self { repo, judge, larder, testkit, write_trace })
    }

    /// A command that holds the two sides against each other.
    pub(crate) fn compare(&self, command: &str) -> Cmd<'a> {
        let Self { repo, judge, larder, testkit, .. } = self;
        cmd!(repo.shell, "{testkit} {command} --judge {judge} --larder {larder}")
    }

    /// Writes the script that belongs to a seed.
    pub(crate) fn write_seed(&self, seed: u64, flavour: &str, out: &Path) -> Result<(), String> {
        let (testkit, seed) = (&self.testkit, seed.to_string());
        run(cmd!(self.repo.shell, "{testkit} script {seed} {flavour} {out}"))
    }

    /// Writes what a recorded program did, and the addresses that it got.
    pub(crate) fn write_trace(
        &self,
        file: &Path,
        out: &Path,
        addresses: &Path,
    ) -> Result<(), String> {
        let write = &self.write_trace;
        run(cmd!(self.repo.shell, "{write} {file} {out} {addresses}"))
    }

    /// Writes the scripts that are timed into a folder, by name. The same program recorded or
    /// stored twice is taken once.
    pub(crate) fn write_scripts(&self, folder: &Path) -> Result<(), String> {
        let _ = fs::remove_dir_all(folder);
        file::create(folder)?;
        let [script, addresses] = ["script", "addresses"].map(|kind| folder.with_extension(kind));
        let mut texts = Vec::new();
        for recording in self.repo.recordings() {
            self.write_trace(&recording, &script, &addresses)?;
            let text = file::read(&script)?;
            if !texts.contains(&text) {
                let name = stem(&recording);
                let name = if is_script(&recording) { name.replace('_', " ") } else { name };
                file::write(&folder.join(format!("{name}.ops")), &text)?;
                texts.push(text);
            }
        }
        let _ = (fs::remove_file(script), fs::remove_file(addresses));
        Ok(())
    }
}

/// Builds the program that tests and compares.
pub(crate) fn testkit(repo: &Repository) -> Result<PathBuf, String> {
    repo.build("-p larder-testkit")?;
    Ok(repo.target.join("release/larder-testkit"))
}

/// Puts everything that compares into one folder, which can be taken elsewhere: `testkit` there
/// finds the others beside itself. Among them is ours with a plain mutex for its lock.
pub(crate) fn lay_out(repo: &Repository, folder: &Path) -> Result<PathBuf, String> {
    let Repository { target, shell, .. } = repo;
    eprintln!("==> building PyTorch's allocator, ours, and ours with a plain mutex");
    let newest = Peer { repo, torch: torch::NEWEST }.build_judge()?;
    let built = Programs::build(repo, torch::OLDEST)?;
    let (cargo, mutex) = (cargo(), target.join("mutex"));
    let build = cmd!(shell, "{cargo} build --release --quiet -p larder-cli");
    run(build.env("CARGO_TARGET_DIR", &mutex).env("RUSTFLAGS", "--cfg larder_mutex"))?;
    let mutex = mutex.join("release/larder");
    file::create(folder)?;
    for (name, program) in
        [("larder", &built.larder), ("larder-mutex", &mutex), ("testkit", &built.testkit)]
    {
        file::copy(program, &folder.join(name))?;
        run(cmd!(shell, "strip {folder}/{name}"))?;
    }
    lay_out_judge(repo, &built.judge, folder)?;
    lay_out_judge(repo, &newest, &folder.join("newest"))?;
    built.write_scripts(&folder.join("scripts"))?;
    Ok(folder.join("testkit"))
}

/// A judge with the libraries that it runs with.
fn lay_out_judge(repo: &Repository, judge: &Path, folder: &Path) -> Result<(), String> {
    file::create(folder)?;
    for name in ["judge", "libc10.so", "libc10_cuda.so", "libcudart.so.13", "libnvidia-ml.so.1"] {
        file::copy(&judge.with_file_name(name), &folder.join(name))?;
    }
    run(cmd!(repo.shell, "strip --strip-unneeded {folder}/libcudart.so.13"))
}
