//! Bench: PyTorch's own allocator and ours, measured in turn with the same scripts.
//!
//! The figures on the page are those of one run, so that they can be held against each other.

mod chart;
mod contestant;
mod figures;
mod free_blocks;
mod instructions;
pub(crate) mod report;
pub(crate) mod threads;
pub(crate) mod tight;
mod timing;
mod workload;

use clap::Args;
use contestant::{Contestant, Run};
use figures::{Figures, ratio};
use timing::{Rounds, Timing};
use workload::{HOT_BLOCK, RANDOM_SIZES, VARLEN, Workload};

use crate::programs::{self, Programs};
use crate::repository::Repository;
use crate::table::Table;
use crate::{file, torch};

/// How many entries of a history are kept. The ring is full long before a measurement ends.
const ENTRIES: u64 = 100_000;

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How often each measurement is made, of which the median is shown; 7 without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// A look in a few minutes: 3 rounds, short measurements; nothing is written.
    #[arg(long = "quick")]
    is_quick: bool,
    /// Take the programs that lie beside this one, as in target/gpu/threads; time the scripts
    /// alone, and write nothing.
    #[arg(long = "laid-out")]
    is_laid_out: bool,
    /// Time the policies larder and tight alone, in turn, with one thread, and write nothing:
    /// minutes for many rounds.
    #[arg(long = "own")]
    is_own: bool,
}

/// Builds both sides, measures everything, writes the tables and the chart and prints the times.
pub(crate) fn run(repo: &Repository, options: Options) -> Result<(), String> {
    let (target_ns, rounds) = if options.is_quick { (5e7, 3) } else { (3e8, 7) };
    let timing = Timing { target_ns, rounds: options.rounds.unwrap_or(rounds) };
    let folder = repo.target.join("bench");
    let (programs, workloads) = if options.is_laid_out {
        (Programs::beside(torch::OLDEST)?, workload::laid_out(&programs::beside()?)?)
    } else {
        eprintln!("==> building both sides");
        let programs = Programs::build_with_newest(repo)?;
        file::create(&folder)?;
        let workloads = workload::collect(repo, &programs, &folder)?;
        (programs, workloads)
    };
    if options.is_own {
        compare_own(&programs, &workloads, timing);
        return Ok(());
    }
    let all = Contestant::all(&programs);
    let times = time_all(&all, &workloads, timing);
    let medians: Vec<Figures> = times.iter().map(Rounds::medians).collect();
    let least: Vec<Figures> = times.iter().map(Rounds::least).collect();
    let table = |heading, rows: &[Figures]| figures::table(heading, &all, rows);
    print!("{}", table("ns per operation", &medians).markdown());
    print!("\nthe least of the rounds:\n{}", table("ns per operation", &least).markdown());
    if options.is_laid_out || options.is_quick {
        return Ok(());
    }
    let command = format!("cargo xtask bench --rounds {}", timing.rounds);
    let write = |section, heading, rows: &[Figures]| {
        figures::write(repo, section, &command, &table(heading, rows))
    };
    write("time", "workload", &medians)?;
    write("least time", "workload", &least)?;
    let titles: Vec<&str> = all.iter().map(|one| one.title).collect();
    file::write(&repo.root.join("docs/benchmarks.svg"), chart::draw(&titles, &medians))?;
    if instructions::can_count() {
        let count = |workload: &Workload| {
            eprintln!("==> instructions of {}", workload.name);
            instructions::count(&all, workload)
        };
        write("instructions", "workload", &workloads.iter().map(count).collect::<Vec<_>>())?;
    } else {
        eprintln!("==> valgrind is not installed; no instructions are counted");
    }
    write("free blocks", "beside", &free_blocks::compare(&all, &folder, timing)?)?;
    write("history", "workload", &compare_history(&all, &workloads, timing))
}

fn time_all(all: &[Contestant], workloads: &[Workload], timing: Timing) -> Vec<Rounds> {
    let mut rows = Vec::new();
    for workload in workloads {
        for &threads in workload.threads() {
            let name = workload.row(threads);
            eprintln!("==> time of {name}");
            rows.push(timing.measure(all, Run { threads, ..Run::of(&workload.script) }, name));
        }
    }
    rows
}

/// Larder's own two policies against each other, and nothing else, so that there can be many
/// rounds.
fn compare_own(programs: &Programs, workloads: &[Workload], timing: Timing) {
    let all = Contestant::under(programs, &["larder", "tight"]);
    let headings = "tight / larder | of the medians | of the least | of each round";
    let mut table = Table::new(headings, 1);
    let mut times = Vec::new();
    for workload in workloads {
        eprintln!("==> time of {}", workload.name);
        let rounds = timing.measure(&all, Run::of(&workload.script), workload.name.clone());
        let over = |figures: &Figures| ratio(figures.values[1], figures.values[0]);
        let each = ratio(rounds.ratio(1, 0), Some(1.0));
        let (medians, least) = (over(&rounds.medians()), over(&rounds.least()));
        table.push(&[rounds.name.clone(), medians, least, each]);
        times.push(rounds.medians());
    }
    let times = figures::table("ns per operation", &all, &times);
    print!("{}\n{}", times.markdown(), table.markdown());
}

/// What it costs to remember: for some workloads three rows, off, on, and what the difference comes
/// to for one event. A malloc is one event and a free is two, and a script has as many of the one
/// as of the other.
fn compare_history(all: &[Contestant], workloads: &[Workload], timing: Timing) -> Vec<Figures> {
    let chosen = [HOT_BLOCK, RANDOM_SIZES, VARLEN];
    let mut rows = Vec::new();
    for workload in workloads.iter().filter(|workload| chosen.contains(&workload.name.as_str())) {
        eprintln!("==> history of {}", workload.name);
        let measure = |history, state: &str| {
            let name = format!("{}, {state}", workload.name);
            // The least: in a difference what disturbs the machine would count twice.
            timing.measure(all, Run { history, ..Run::of(&workload.script) }, name).least()
        };
        let (off, on) = (measure(None, "off"), measure(Some(ENTRIES), "on"));
        let pairs = off.values.iter().zip(&on.values);
        let events = pairs.map(|(off, on)| on.zip(*off).map(|(on, off)| (on - off) / 1.5));
        let (name, values) = (format!("{}, an event", workload.name), events.collect());
        rows.extend([off, on, Figures { name, values }]);
    }
    rows
}
