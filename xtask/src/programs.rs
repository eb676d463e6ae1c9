//! The programs that run beside each other, PyTorch's allocator and ours, and what they run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::file;
use crate::peer::Peer;
use crate::torch::{self, Torch};

/// The program that writes scripts.
const WRITE_OPS: &str = "write_ops";

/// The folder of the newest judge, beside programs that were laid out.
pub(crate) const NEWEST: &str = "newest";

/// The programs that take part.
pub(crate) struct Programs {
    pub(crate) judge: PathBuf,
    pub(crate) larder: PathBuf,
    write_ops: PathBuf,
    /// The judge's PyTorch.
    pub(crate) torch: Torch,
    /// The judge with the newest PyTorch, where that is asked for besides.
    pub(crate) newest: Option<PathBuf>,
}

impl Programs {
    /// Builds both sides, with the oldest peer.
    pub(crate) fn build(root: &Path, cargo: &Path, target: &Path) -> Result<Self, String> {
        Self::build_with(root, cargo, target, torch::OLDEST)
    }

    /// Builds both sides, with a peer of this version.
    pub(crate) fn build_with(
        root: &Path,
        cargo: &Path,
        target: &Path,
        torch: Torch,
    ) -> Result<Self, String> {
        build(root, cargo, target, &["-p", "larder-cudart"])?;
        build(root, cargo, target, &["-p", "larder-cli", "--bin", "larder"])?;
        build(root, cargo, target, &["-p", "larder-study", "--example", "write_ops"])?;
        let release = target.join("release");
        let peer = Peer::of(target, torch);
        peer.build(root, &release.join("liblarder_cudart.a"))?;
        Ok(Self {
            judge: peer.judge(),
            larder: release.join("larder"),
            write_ops: release.join("examples/write_ops"),
            torch,
            newest: None,
        })
    }

    /// These programs, and the newest PyTorch's judge.
    pub(crate) fn with_newest(self, root: &Path, target: &Path) -> Result<Self, String> {
        let peer = Peer::of(target, torch::NEWEST);
        peer.build(root, &target.join("release/liblarder_cudart.a"))?;
        Ok(Self { newest: Some(peer.judge()), ..self })
    }

    /// The programs beside this one, where they were laid out to be taken elsewhere, with a judge
    /// of this version.
    pub(crate) fn beside(torch: Torch) -> Result<Self, String> {
        let folder = beside()?;
        let program = |name| folder.join(name);
        let newest = folder.join(NEWEST).join("judge");
        Ok(Self {
            judge: program("judge"),
            larder: program("larder"),
            write_ops: program(WRITE_OPS),
            torch,
            newest: newest.is_file().then_some(newest),
        })
    }

    /// Copies ours into a folder that is taken elsewhere.
    pub(crate) fn lay_out(&self, folder: &Path) -> Result<(), String> {
        file::copy(&self.larder, &folder.join("larder"))?;
        file::copy(&self.write_ops, &folder.join(WRITE_OPS))
    }

    /// Writes the script that belongs to a seed; the most bytes that are live in it.
    pub(crate) fn write_seed(&self, seed: u64, flavour: &str, out: &Path) -> Result<u64, String> {
        let mut write = Command::new(&self.write_ops);
        write.args(["seed", &seed.to_string(), flavour]);
        if self.torch.marks_captures() {
            write.arg("marked");
        }
        peak_bytes(write.arg(out))
    }

    /// Writes what a recorded program did, and the addresses that it got; the most bytes that are
    /// live in it.
    pub(crate) fn write_trace(
        &self,
        file: &Path,
        out: &Path,
        addresses: &Path,
    ) -> Result<u64, String> {
        let mut write = Command::new(&self.write_ops);
        peak_bytes(write.arg("trace").arg(file).arg(out).arg(addresses))
    }
}

/// The most bytes that are live in a script, which its writer prints.
fn peak_bytes(write: &mut Command) -> Result<u64, String> {
    let output = write.output().map_err(|error| format!("write_ops: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.trim().parse().map_err(|_| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// The folder of this very program.
pub(crate) fn beside() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(program.parent().unwrap_or(Path::new(".")).to_owned())
}

/// Builds something of the workspace, optimised.
pub(crate) fn build(
    root: &Path,
    cargo: &Path,
    target: &Path,
    arguments: &[&str],
) -> Result<(), String> {
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--quiet"]).args(arguments).current_dir(root);
    command::run(command.env("CARGO_TARGET_DIR", target))
}

/// Where Cargo builds, and where runs may write.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || root.join("target"),
        |path| {
            // Cargo takes it from where it was called; this program may be somewhere else.
            std::path::absolute(&path).unwrap_or_else(|_| PathBuf::from(path))
        },
    )
}

/// The recorded programs that come with the repository, and those beside it where there are some.
pub(crate) fn recordings(root: &Path) -> Vec<PathBuf> {
    recordings_in(&[root.join("workloads"), root.join("../shared/traces")])
}

/// The recorded programs and scripts in folders.
pub(crate) fn recordings_in(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in folders {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        files.extend(entries.map(|entry| entry.path()).filter(|path| {
            let name = path.to_string_lossy();
            name.ends_with(".ops") || name.ends_with(".pickle.gz") || name.ends_with(".pickle")
        }));
    }
    files.sort();
    files
}
