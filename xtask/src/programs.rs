//! The programs that run beside each other, PyTorch's allocator and ours, and what they run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::ended;
use crate::command::said;
use crate::file;
use crate::peer::Peer;
use crate::repository::Repository;
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
    /// Builds both sides, with a peer of this version.
    pub(crate) fn build(repo: &Repository, torch: Torch) -> Result<Self, String> {
        let larder = repo.larder()?;
        let write_ops = repo.example("larder-study", WRITE_OPS)?;
        let judge = Peer { repo, torch }.build_judge()?;
        Ok(Self { judge, larder, write_ops, torch, newest: None })
    }

    /// Builds both sides, with the oldest peer, and the newest PyTorch's judge.
    pub(crate) fn build_with_newest(repo: &Repository) -> Result<Self, String> {
        let newest = Some(Peer { repo, torch: torch::NEWEST }.build_judge()?);
        Ok(Self { newest, ..Self::build(repo, torch::OLDEST)? })
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
    let output = ended(write)?;
    String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| said(&output))
}

/// The folder of this very program.
pub(crate) fn beside() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(program.parent().unwrap_or(Path::new(".")).to_owned())
}
