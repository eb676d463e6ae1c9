//! Parity: the same scripts on both.
//!
//! Every statistic, every count of device calls, every placement, and every entry of the history
//! and block of the final snapshot but for times must be equal. Where the peer gives up, or where
//! its own result depends on the addresses of its records, the script is set aside; what is steady
//! in it must be equal all the same.

mod contest;
pub(crate) mod flavour;
mod outcome;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::{Args, ValueEnum};
use contest::{Case, Ring, Sides, Verdict};
use flavour::{Flavour, RECORDED, memory_sizes, peak_bytes, remembering};
use larder_core::Policy;
use larder_sim::script::{Op, Script};

use crate::peer::{Programs, crew};

/// Which scripts are compared.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    programs: Programs,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    from: u64,
    /// How many random scripts of each flavour, each under all settings.
    #[arg(long, value_name = "N", default_value_t = 50)]
    seeds: u64,
    /// The policy that decides as the judge's PyTorch does.
    #[arg(long, value_name = "POLICY", default_value = "torch-2.11")]
    peer: Policy,
    /// Ours decides by this policy instead, to see how many scripts tell the two apart.
    #[arg(long, value_name = "POLICY")]
    policy: Option<Policy>,
    /// A library that puts ours behind PyTorch's own C++ interface.
    #[arg(long, value_name = "PATH", conflicts_with = "policy")]
    backend: Option<PathBuf>,
    /// A recording, the script of what it did, and the addresses in it: a line `SIZE ADDRESS` each.
    #[arg(long = "recording", num_args = 3, value_names = ["FILE", "SCRIPT", "ADDRESSES"])]
    recordings: Vec<PathBuf>,
    /// Where the runs write, and where scripts are kept that show a difference.
    #[arg(long, value_name = "DIR",
          default_value_os_t = std::env::temp_dir().join("larder-parity"))]
    scratch: PathBuf,
}

/// The memory of the GPU on which the recordings were made, as far as it matters: none runs out.
const RECORDED_MEMORY_BYTES: u64 = 80 << 30;

/// What a worker takes up next.
enum Job<'a> {
    Seed(u64),
    File { file: &'a Path, script: &'a Path, addresses: &'a Path },
}

/// What came of all cases so far.
#[derive(Debug, Default)]
struct Totals {
    compared: u64,
    gave_up: u64,
    unsteady: u64,
    different: u64,
}

/// Runs all scripts on both and says what came of it; fails if anything differs.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    let Options { programs, peer, backend, scratch, .. } = options;
    let ours = options.policy.as_ref().unwrap_or(peer).clone();
    let sides = Sides { programs, peer: peer.clone(), ours, backend: backend.as_deref() };
    let mut jobs = Vec::new();
    for recording in options.recordings.chunks_exact(3) {
        let [file, script, addresses] = [0, 1, 2].map(|at| recording[at].as_path());
        jobs.push(Job::File { file, script, addresses });
    }
    jobs.extend((0..options.seeds).map(|at| Job::Seed(options.from.wrapping_add(at))));
    let Totals { compared, gave_up, unsteady, different } = compare_all(&jobs, &sides, scratch)?;
    println!("set aside: {gave_up} where the peer gives up, {unsteady} where it is unsteady");
    let set_aside = gave_up + unsteady;
    let sums =
        format!("{compared} scripts compared, {set_aside} set aside, {different} differences");
    if different == 0 {
        return Ok(sums + "\n");
    }
    println!("{sums}");
    Err("the two sides differ".to_owned())
}

fn compare_all(jobs: &[Job<'_>], sides: &Sides<'_>, folder: &Path) -> Result<Totals, String> {
    let differences = folder.join("differences");
    // Scripts of an earlier run would be taken for findings of this one.
    let _ = fs::remove_dir_all(&differences);
    crew::create(&differences)?;
    let totals = Mutex::new(Totals::default());
    crew::each(jobs, folder, |job, scratch| {
        let (scratch, differences) = (scratch.to_owned(), differences.clone());
        let ring = Ring { sides, scratch, differences };
        match *job {
            Job::Seed(seed) => compare_seed(&ring, seed, &totals),
            Job::File { file, script, addresses } => {
                compare_file(&ring, file, script, addresses, &totals)
            }
        }
    })?;
    Ok(totals.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// All flavours of a seed's script, under all their settings, on a large and a small device.
fn compare_seed(ring: &Ring<'_>, seed: u64, totals: &Mutex<Totals>) -> Result<(), String> {
    let script = ring.scratch.join("script.ops");
    for flavour in Flavour::value_variants() {
        let ops = flavour.script(seed, &ring.sides.peer);
        write(&ops, &script)?;
        for memory_bytes in memory_sizes(peak_bytes(&ops), seed) {
            for (number, &conf) in flavour.settings().iter().enumerate() {
                let name = format!("seed {seed} {} {number}", flavour.word());
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

/// Writes a script.
pub(crate) fn write(ops: &[Op], out: &Path) -> Result<(), String> {
    let lines: Vec<String> = ops.iter().map(Op::to_string).collect();
    fs::write(out, lines.join("\n") + "\n").map_err(|error| format!("{}: {error}", out.display()))
}

/// A recording: at the addresses that are in it, and at the lowest ones.
fn compare_file(
    ring: &Ring<'_>,
    file: &Path,
    script: &Path,
    addresses: &Path,
    totals: &Mutex<Totals>,
) -> Result<(), String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", script.display());
    let text = fs::read_to_string(script).map_err(|error| named(&error))?;
    let peak_bytes = peak_bytes(&Script::parse(&text).map_err(|error| named(&error))?);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_recording = fs::metadata(addresses).is_ok_and(|facts| facts.len() > 0);
    for (number, conf) in RECORDED.into_iter().enumerate() {
        let name = format!("{name} {number}");
        let remembering = remembering(0, number as u64);
        let case = |recording, memory_bytes| {
            let (name, remembering) = (name.clone(), remembering.as_deref());
            Case { name, script, recording, conf, memory_bytes, remembering }
        };
        if is_recording {
            let recording = Some((file, addresses));
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
