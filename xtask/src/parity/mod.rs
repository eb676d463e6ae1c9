//! Parity: PyTorch's own allocator and ours on the same simulated GPU, fed with the same scripts.
//!
//! Every statistic, every count of device calls, every placement, and every entry of the history
//! and block of the final snapshot but for times must be equal. Where the peer
//! gives up, or where its own result depends on the addresses of its records, the script is set
//! aside; what is steady in it must be equal all the same.

mod contest;
mod outcome;
mod settings;
mod texts;
mod viewer;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use contest::{Case, Ring, Sides, Verdict};
use settings::{FLAVOURS, RECORDED, memory_sizes, remembering};

use crate::peer::Peer;
use crate::programs::Programs;
use crate::repository::Repository;
use crate::torch::{self, Torch};
use crate::{backend, crew, file};

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
    /// Take the programs that lie beside this one, as in target/gpu/threads, and compare no
    /// recordings.
    #[arg(long = "laid-out")]
    is_laid_out: bool,
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
        "count", "through_interface", "is_laid_out", "is_random_only", "torch", "decided_as",
    ])]
    texts: Option<u64>,
}

/// The memory of the GPU on which the recordings were made, as far as it matters: none runs out.
const RECORDED_MEMORY_BYTES: u64 = 80 << 30;

/// What a worker takes up next.
enum Job {
    Seed(u64),
    File(PathBuf),
}

/// What came of all cases so far.
#[derive(Debug, Default)]
struct Totals {
    compared: u64,
    gave_up: u64,
    unsteady: u64,
    different: u64,
}

impl Totals {
    /// Prints the sums; true if nothing differs.
    fn say(&self) -> bool {
        let Totals { compared, gave_up, unsteady, different } = self;
        println!("set aside: {gave_up} where the peer gives up, {unsteady} where it is unsteady");
        let set_aside = gave_up + unsteady;
        println!("{compared} scripts compared, {set_aside} set aside, {different} differences");
        *different == 0
    }
}

impl Seeds {
    fn jobs(self) -> Vec<Job> {
        (0..self.count).map(|at| Job::Seed(self.from.wrapping_add(at))).collect()
    }

    fn sides<'a>(self, programs: &'a Programs, backend: Option<&'a Path>) -> Sides<'a> {
        let decided_as = self.decided_as.unwrap_or(self.torch);
        Sides { programs, backend, policy: decided_as.policy() }
    }
}

/// Builds both sides, runs all scripts and prints the result; fails if anything differs.
pub(crate) fn run(repo: &Repository, seeds: Seeds) -> Result<(), String> {
    let is_same = if let Some(count) = seeds.texts {
        texts::run(repo, seeds.from, count)?
    } else if seeds.is_laid_out {
        let folder = std::env::temp_dir().join("larder-parity");
        let programs = Programs::beside(seeds.torch)?;
        compare_all(&seeds.jobs(), &seeds.sides(&programs, None), &folder)?.say()
    } else {
        compare_here(repo, seeds)?
    };
    if is_same { Ok(()) } else { Err("the two sides differ".to_owned()) }
}

fn compare_here(repo: &Repository, seeds: Seeds) -> Result<bool, String> {
    let programs = Programs::build(repo, seeds.torch)?;
    let recordings = if seeds.is_random_only { Vec::new() } else { repo.recordings() };
    let mut jobs: Vec<Job> = recordings.into_iter().map(Job::File).collect();
    jobs.extend(seeds.jobs());
    let backend = || backend::for_judge(Peer { repo, torch: seeds.torch });
    let backend = seeds.through_interface.then(backend).transpose()?;
    let sides = seeds.sides(&programs, backend.as_deref());
    let totals = compare_all(&jobs, &sides, &repo.target.join("judge"))?;
    // Snapshots are shown by the viewer of the oldest, whoever made them.
    let is_plain = !seeds.through_interface && !seeds.is_random_only && seeds.decided_as.is_none();
    if is_plain && seeds.torch == torch::OLDEST {
        println!("{}", viewer::check(repo, &programs)?);
    }
    Ok(totals.say())
}

fn compare_all(jobs: &[Job], sides: &Sides<'_>, folder: &Path) -> Result<Totals, String> {
    let differences = folder.join("differences");
    // Scripts of an earlier run would be taken for findings of this one.
    let _ = fs::remove_dir_all(&differences);
    file::create(&differences)?;
    let totals = Mutex::new(Totals::default());
    crew::each(jobs, folder, |job, scratch| {
        let (scratch, differences) = (scratch.to_owned(), differences.clone());
        let ring = Ring { sides, scratch, differences };
        match job {
            Job::Seed(seed) => compare_seed(&ring, *seed, &totals),
            Job::File(file) => compare_file(&ring, file, &totals),
        }
    })?;
    Ok(totals.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// All flavours of a seed's script, under all their settings, on a large and a small device.
fn compare_seed(ring: &Ring<'_>, seed: u64, totals: &Mutex<Totals>) -> Result<(), String> {
    let script = ring.scratch.join("script.ops");
    for (word, settings) in FLAVOURS {
        let peak_bytes = ring.sides.programs.write_seed(seed, word, &script)?;
        for memory_bytes in memory_sizes(peak_bytes, seed) {
            for (number, &conf) in settings.iter().enumerate() {
                let name = format!("seed {seed} {word} {number}");
                // What is remembered differs from version to version whoever decides.
                let is_counted = ring.sides.is_counted();
                let remembering = remembering(seed, number as u64).filter(|_| !is_counted);
                let (script, remembering) = (script.as_path(), remembering.as_deref());
                let recording = None;
                let case = Case { name, script, recording, conf, memory_bytes, remembering };
                settle(ring.judge(&case)?, totals);
            }
        }
    }
    Ok(())
}

/// A file: at the addresses of its recording, and at the lowest ones.
fn compare_file(ring: &Ring<'_>, file: &Path, totals: &Mutex<Totals>) -> Result<(), String> {
    let (script, addresses) = (ring.scratch.join("file.ops"), ring.scratch.join("file.addresses"));
    let peak_bytes = ring.sides.programs.write_trace(file, &script, &addresses)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_recording = fs::metadata(&addresses).is_ok_and(|facts| facts.len() > 0);
    for (number, conf) in RECORDED.into_iter().enumerate() {
        let name = format!("{name} {number}");
        let remembering = remembering(0, number as u64);
        let case = |recording, memory_bytes| {
            let (name, remembering) = (name.clone(), remembering.as_deref());
            Case { name, script: &script, recording, conf, memory_bytes, remembering }
        };
        if is_recording {
            let recording = Some((file, addresses.as_path()));
            settle(ring.judge(&case(recording, RECORDED_MEMORY_BYTES))?, totals);
        }
        settle(ring.judge(&case(None, RECORDED_MEMORY_BYTES))?, totals);
        // The least that holds what is live, and a little more.
        let tight_bytes = (peak_bytes + peak_bytes / 32).max(2 << 20);
        settle(ring.judge(&case(None, tight_bytes))?, totals);
    }
    Ok(())
}

/// Counts a verdict, and says at once what differs.
fn settle(verdict: Verdict, totals: &Mutex<Totals>) {
    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
    match verdict {
        Verdict::Equal => totals.compared += 1,
        Verdict::PeerGaveUp => totals.gave_up += 1,
        Verdict::PeerUnsteady => totals.unsteady += 1,
        Verdict::Different(report) => {
            totals.compared += 1;
            totals.different += 1;
            println!("{report}");
        }
    }
}
