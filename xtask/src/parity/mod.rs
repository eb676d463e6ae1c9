//! Parity: PyTorch's own allocator and ours on the same simulated GPU. The contest is
//! larder-testkit's; here is what is built for it, and what else is held against PyTorch: how it
//! reads settings, and how it shows our snapshots.

mod texts;
mod viewer;

use std::path::{Path, PathBuf};

use clap::Args;
use xshell::Cmd;

use crate::peer::Peer;
use crate::programs::{self, Programs};
use crate::repository::Repository;
use crate::torch::{self, Torch};
use crate::{backend, command, file};

/// Which scripts to compare.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Seeds {
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) from: u64,
    /// How many random scripts of each flavour, each under all settings.
    #[arg(long = "seeds", value_name = "N", default_value_t = 50)]
    pub(crate) count: u64,
    /// Ours runs behind PyTorch's own C++ interface, as it does in a PyTorch program.
    #[arg(long, conflicts_with = "decided_as")]
    through_interface: bool,
    /// No recorded programs.
    #[arg(long = "random-only")]
    is_random_only: bool,
    /// Which PyTorch: 2.11, 2.12, 2.13, 2.14 or 2.15.
    #[arg(long, value_name = "VERSION", default_value = "2.11", value_parser = Torch::named)]
    pub(crate) torch: Torch,
    /// Ours decides as this other PyTorch, to see how many scripts tell the two apart.
    #[arg(long = "as", value_name = "VERSION", value_parser = Torch::named)]
    decided_as: Option<Torch>,
    /// Instead, N random settings texts, read by the own parser of each PyTorch and by ours:
    /// accepted, refused and meant alike.
    #[arg(long = "settings", value_name = "N", conflicts_with_all = [
        "count", "through_interface", "is_random_only", "torch", "decided_as",
    ])]
    texts: Option<u64>,
}

/// Builds both sides, runs all scripts and prints the result; fails if anything differs.
pub(crate) fn run(repo: &Repository, seeds: Seeds) -> Result<(), String> {
    if let Some(count) = seeds.texts {
        return texts::run(repo, seeds.from, count);
    }
    let Seeds { from, count, torch, decided_as, .. } = seeds;
    let programs = Programs::build(repo, torch)?;
    let folder = repo.target.join("judge");
    let mut contest = programs.compare("parity").arg("--scratch").arg(&folder);
    contest = contest.args(["--from", &from.to_string(), "--seeds", &count.to_string()]);
    contest = contest.args(["--peer", &torch.policy()]);
    if let Some(other) = decided_as {
        contest = contest.args(["--policy", &other.policy()]);
    }
    if seeds.through_interface {
        contest = contest.arg("--backend").arg(backend::for_judge(Peer { repo, torch })?);
    }
    if !seeds.is_random_only {
        contest = with_recordings(contest, repo, &programs, &folder.join("recordings"))?;
    }
    let is_plain = !seeds.through_interface && !seeds.is_random_only && decided_as.is_none();
    // Snapshots are shown by the viewer of the oldest, whoever made them.
    if is_plain && torch == torch::OLDEST {
        println!("{}", viewer::check(repo, &programs)?);
    }
    command::run(contest)
}

/// The contest over recordings too, each with the script of what it did.
fn with_recordings<'a>(
    mut contest: Cmd<'a>,
    repo: &Repository,
    programs: &Programs<'_>,
    folder: &Path,
) -> Result<Cmd<'a>, String> {
    file::create(folder)?;
    for (number, recording) in repo.recordings().into_iter().enumerate() {
        let [script, addresses]: [PathBuf; 2] =
            ["ops", "addresses"].map(|kind| folder.join(format!("{number}.{kind}")));
        programs.write_trace(&recording, &script, &addresses)?;
        contest = contest.arg("--recording").args([recording, script, addresses]);
    }
    Ok(contest)
}

/// Replays every recording with another build of `larder` and with this one.
pub(crate) fn compare_builds(repo: &Repository, other: &Path) -> Result<(), String> {
    let (testkit, larder) = (programs::testkit(repo)?, repo.larder()?);
    let same = repo.shell.cmd(testkit).arg("same").arg("--larder").arg(larder);
    let same = same.arg("--with").arg(other).arg("--scratch").arg(repo.target.join("same"));
    command::run(same.args(repo.recordings()))
}
