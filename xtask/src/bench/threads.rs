//! Many threads: what a malloc and a free cost where threads share one allocator, with processors
//! to spare and without, beside PyTorch's own allocator and beside ours with a plain mutex for its
//! lock.

use std::path::Path;
use std::process::Command;

use clap::Args;
use xshell::cmd;

use super::contestant::{Contestant, Run};
use super::figures::{self, digits};
use super::timing::{Rounds, Timing, least, median};
use super::workload::{self, HOT_BLOCK, VARLEN};
use crate::command::{self, Company};
use crate::file;
use crate::programs::{self, Programs};
use crate::repository::{Repository, cargo};
use crate::table::Table;

/// How much to measure, and with what.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How often each measurement is made.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Take the programs that lie beside this one, as in target/gpu/threads, and write nothing.
    #[arg(long = "laid-out")]
    is_laid_out: bool,
}

/// So many lines of the recording are run, so that a pass of sixteen threads does not take seconds.
const LINES: usize = 20_000;
/// Sixteen programs of 13 GiB fit.
const MEMORY_GIB: u64 = 4096;
const THREADS: [u64; 4] = [1, 2, 4, 16];
/// How long a measurement shall take.
const TARGET_NS: f64 = 1.2e8;

/// Where the threads may run, the one processor that they all may use, and how many busy processes
/// there are besides.
const SETTINGS: [(&str, Option<&str>, usize); 3] =
    [("all cores", None, 0), ("one core", Some("0"), 0), ("beside 3 busy processes", None, 3)];

const HEADINGS: &str = "workload, threads, where | PyTorch best | mutex median | mutex worst | \
     larder median | larder worst | medians, larder / mutex | worst, larder / mutex | \
     PyTorch best / larder worst";

/// Builds everything, measures, writes the section of the page and prints it.
pub(crate) fn run(repo: &Repository, options: Options) -> Result<(), String> {
    if options.is_laid_out {
        print!("{}", measure(&programs::beside()?, options.rounds)?.markdown());
        return Ok(());
    }
    let folder = repo.target.join("threads");
    lay_out(repo, &folder)?;
    let table = measure(&folder, options.rounds)?;
    let command = format!("cargo xtask threads --rounds {}", options.rounds);
    figures::write(repo, "threads", &command, &table)?;
    print!("{}", table.markdown());
    Ok(())
}

/// Puts everything that is needed into one folder, which can be taken elsewhere.
pub(crate) fn lay_out(repo: &Repository, folder: &Path) -> Result<(), String> {
    let Repository { target, shell, .. } = repo;
    eprintln!("==> building PyTorch's allocator, ours, and ours with a plain mutex");
    let built = Programs::build_with_newest(repo)?;
    file::create(folder)?;
    let (cargo, mutex) = (cargo(), target.join("mutex"));
    let build = cmd!(shell, "{cargo} build --release --quiet -p larder-cli");
    command::run(build.env("CARGO_TARGET_DIR", &mutex).env("RUSTFLAGS", "--cfg larder_mutex"))?;
    built.lay_out(folder)?;
    file::copy(&mutex.join("release/larder"), &folder.join("larder-mutex"))?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    file::copy(&this, &folder.join("threads"))?;
    for name in ["larder", "larder-mutex", "threads", "write_ops"] {
        command::run(cmd!(shell, "strip {folder}/{name}"))?;
    }
    lay_out_judge(repo, &built.judge, folder)?;
    if let Some(newest) = &built.newest {
        lay_out_judge(repo, newest, &folder.join(programs::NEWEST))?;
    }
    let scripts = target.join("bench");
    file::create(&scripts)?;
    let workloads = workload::collect(repo, &built, &scripts)?;
    workload::lay_out(&workloads, folder)?;
    for workload in workloads {
        if [HOT_BLOCK, VARLEN].contains(&workload.name.as_str()) {
            let text = file::read(&workload.script)?;
            let short: String = text.lines().take(LINES).flat_map(|line| [line, "\n"]).collect();
            file::write(&folder.join(format!("{}.ops", workload.name)), &short)?;
        }
    }
    Ok(())
}

/// A judge with the libraries that it runs with.
fn lay_out_judge(repo: &Repository, judge: &Path, folder: &Path) -> Result<(), String> {
    file::create(folder)?;
    let from = judge.parent().unwrap_or(Path::new("."));
    for name in ["judge", "libc10.so", "libc10_cuda.so", "libcudart.so.13", "libnvidia-ml.so.1"] {
        file::copy(&from.join(name), &folder.join(name))?;
    }
    command::run(cmd!(repo.shell, "strip --strip-unneeded {folder}/libcudart.so.13"))
}

/// Measures everything in turn, and makes the table of it.
fn measure(folder: &Path, rounds: u64) -> Result<Table, String> {
    let all = [
        Contestant::peer("PyTorch 2.11", &folder.join("judge")),
        Contestant::ours("plain mutex", &folder.join("larder-mutex")),
        Contestant::ours("larder", &folder.join("larder")),
    ];
    let mut table = Table::new(HEADINGS, 1);
    let timing = Timing { target_ns: TARGET_NS, rounds };
    for name in [HOT_BLOCK, VARLEN] {
        let script = folder.join(format!("{name}.ops"));
        for threads in THREADS {
            for (place, core, busy) in SETTINGS {
                let name = format!("{name}, {threads}, {place}");
                eprintln!("==> {name}");
                // Each does nothing, as fast as it can.
                let shell =
                    || Company::start(Command::new("sh").args(["-c", "while :; do :; done"]));
                let company: Vec<Company> = (0..busy).filter_map(|_| shell()).collect();
                let memory_gib = Some(MEMORY_GIB);
                let run = Run { threads, memory_gib, core, ..Run::of(&script) };
                let rounds = timing.measure(&all, run, name);
                drop(company);
                let row = row(&rounds).ok_or_else(|| format!("no figure for {}", rounds.name))?;
                table.push(&row);
            }
        }
    }
    Ok(table)
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
