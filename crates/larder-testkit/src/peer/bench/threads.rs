//! Many threads: what a malloc and a free take where threads share one allocator, with processors
//! to spare and without, beside PyTorch's own allocator and beside ours with a plain mutex for its
//! lock.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Args;

use super::contestant::{Contestant, Run};
use super::figures::{digits, markdown};
use super::timing::{Rounds, Timing, least, median};
use super::workload::{HOT_BLOCK, VARLEN, write};
use crate::peer::{Programs, beside, crew};

/// What is measured, and how often.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    programs: Programs,
    /// A build of larder with a plain mutex.
    #[arg(long, value_name = "PATH", default_value_os_t = beside("larder-mutex"))]
    mutex: PathBuf,
    /// The folder of the scripts.
    #[arg(long, value_name = "DIR", default_value_os_t = beside("scripts"))]
    scripts: PathBuf,
    /// How often each measurement is made.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// So many lines of the recording are run, so that a pass of sixteen threads does not take seconds.
const LINES: usize = 20_000;
/// Sixteen programs of 13 GiB fit.
const MEMORY_GIB: u64 = 4096;
const THREADS: [u64; 4] = [1, 2, 4, 16];
/// How long a measurement shall take.
const TARGET_NS: f64 = 1.2e8;

/// Where the threads may run, the one processor that they all may use, and how many threads
/// are busy besides.
const SETTINGS: [(&str, Option<&str>, usize); 3] =
    [("all cores", None, 0), ("one core", Some("0"), 0), ("beside 3 busy threads", None, 3)];

const HEADINGS: &str = "workload, threads, where | PyTorch best | mutex median | mutex worst | \
     larder median | larder worst | medians, larder / mutex | worst, larder / mutex | \
     PyTorch best / larder worst";

/// Measures everything in turn, and makes a table of it.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    let Options { programs, mutex, scripts, rounds, .. } = options;
    let all = [
        Contestant::peer("PyTorch 2.11", &programs.judge),
        Contestant::ours("plain mutex", mutex),
        Contestant::ours("larder", &programs.larder),
    ];
    let scratch = std::env::temp_dir().join("larder-threads");
    crew::create(&scratch)?;
    let timing = Timing { target_ns: TARGET_NS, rounds: *rounds };
    let mut rows = Vec::new();
    for name in [HOT_BLOCK, VARLEN] {
        let script = &shorten(&scripts.join(format!("{name}.ops")), &scratch)?;
        for threads in THREADS {
            for (place, core, busy) in SETTINGS {
                let name = format!("{name}, {threads}, {place}");
                eprintln!("==> {name}");
                let memory_gib = Some(MEMORY_GIB);
                let run = Run { threads, memory_gib, core, ..Run::of(script) };
                let rounds = beside_busy(busy, || timing.measure(&all, run, name));
                let row = row(&rounds).ok_or_else(|| format!("no figure for {}", rounds.name))?;
                rows.push(row);
            }
        }
    }
    Ok(markdown(HEADINGS, &rows))
}

/// The beginning of a script.
fn shorten(script: &Path, scratch: &Path) -> Result<PathBuf, String> {
    let text = std::fs::read_to_string(script);
    let text = text.map_err(|error| format!("{}: {error}", script.display()))?;
    let short: String = text.lines().take(LINES).flat_map(|line| [line, "\n"]).collect();
    let out = scratch.join(script.file_name().unwrap_or_default());
    write(&out, short)?;
    Ok(out)
}

/// Does something while so many threads do nothing, as fast as they can.
fn beside_busy<T>(busy: usize, act: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| while !black_box(is_over.load(Ordering::Relaxed)) {});
        }
        let done = act();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// The peer's best against our worst.
fn row(rounds: &Rounds) -> Option<Vec<String>> {
    let worst = |times: &[f64]| times.iter().copied().max_by(f64::total_cmp);
    let [peer, mutex, larder] = &rounds.times[..] else { return None };
    let (best, mutex_median, median) = (least(peer)?, median(mutex)?, median(larder)?);
    let (mutex_worst, worst) = (worst(mutex)?, worst(larder)?);
    let figures = [best, mutex_median, mutex_worst, median, worst].map(digits);
    let ratios = [median / mutex_median, worst / mutex_worst, best / worst];
    let ratios = ratios.map(|ratio| format!("{ratio:.2}"));
    Some([&[rounds.name.clone()][..], &figures, &ratios].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_the_worst_against_the_best() {
        let times = vec![vec![900.0, 600.0], vec![100.0, 80.0], vec![90.0, 120.0]];
        let cells = row(&Rounds { name: "x".to_owned(), times }).unwrap();
        assert_eq!(cells, ["x", "600", "90.0", "100", "105", "120", "1.17", "1.20", "5.00"]);
    }
}
