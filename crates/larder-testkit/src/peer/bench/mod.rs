//! Bench: what a malloc and a free take on both, measured in turn with the same scripts.
//!
//! The figures are those of one run, so that they can be held against each other.

mod chart;
mod contestant;
mod figures;
mod free_blocks;
mod instructions;
pub(crate) mod threads;
mod timing;
mod workload;

use std::path::PathBuf;

use clap::Args;
use contestant::{Contestant, Run};
use figures::{Figures, ratio};
use timing::{Rounds, Timing};
use workload::{HOT_BLOCK, RANDOM_SIZES, VARLEN, Workload, write};

use crate::peer::{Programs, beside, crew};

/// How many entries of a history are kept. The ring is full long before a measurement ends.
const ENTRIES: u64 = 100_000;

/// What is measured, and how much.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    programs: Programs,
    /// The judge of the newest PyTorch, which takes part if it is there.
    #[arg(long, value_name = "PATH", default_value_os_t = beside("newest/judge"))]
    newest: PathBuf,
    /// The folder of the scripts.
    #[arg(long, value_name = "DIR", default_value_os_t = beside("scripts"))]
    scripts: PathBuf,
    /// Count instructions, look beside free blocks and with histories too, and write each table and
    /// a chart into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How often each measurement is made, of which the median is shown; 7 without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// A look in a few minutes: 3 rounds, short measurements.
    #[arg(long = "quick", conflicts_with = "out")]
    is_quick: bool,
    /// Time the policies larder and tight alone, in turn, with one thread: minutes for many rounds.
    #[arg(long = "own", conflicts_with = "out")]
    is_own: bool,
}

/// Measures, and says the times.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    let Options { programs, newest, scripts, out, .. } = options;
    let (target_ns, rounds) = if options.is_quick { (5e7, 3) } else { (3e8, 7) };
    let timing = Timing { target_ns, rounds: options.rounds.unwrap_or(rounds) };
    let scratch = std::env::temp_dir().join("larder-bench");
    crew::create(&scratch)?;
    let workloads = workload::collect(scripts, &scratch)?;
    if options.is_own {
        return Ok(compare_own(programs, &workloads, timing));
    }
    let all = Contestant::all(programs, newest);
    let times = time_all(&all, &workloads, timing);
    let medians: Vec<Figures> = times.iter().map(Rounds::medians).collect();
    let least: Vec<Figures> = times.iter().map(Rounds::least).collect();
    let table = |heading, rows: &[Figures]| figures::table(heading, &all, rows);
    let said = table("ns per operation", &medians)
        + "\nthe least of the rounds:\n"
        + &table("ns per operation", &least);
    let Some(out) = out else { return Ok(said) };
    crew::create(out)?;
    let titles: Vec<&str> = all.iter().map(|one| one.title).collect();
    write(&out.join("chart.svg"), chart::draw(&titles, &medians))?;
    let section = |name: &str, heading, rows: &[Figures]| {
        write(&out.join(format!("{name}.md")), table(heading, rows))
    };
    section("time", "workload", &medians)?;
    section("least time", "workload", &least)?;
    if instructions::can_count() {
        let count = |workload: &Workload| {
            eprintln!("==> instructions of {}", workload.name);
            instructions::count(&all, workload)
        };
        section("instructions", "workload", &workloads.iter().map(count).collect::<Vec<_>>())?;
    } else {
        eprintln!("==> valgrind is not installed; no instructions are counted");
    }
    section("free blocks", "beside", &free_blocks::compare(&all, &scratch, timing)?)?;
    section("history", "workload", &compare_history(&all, &workloads, timing))?;
    Ok(said)
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
fn compare_own(programs: &Programs, workloads: &[Workload], timing: Timing) -> String {
    let all = Contestant::under(programs, &["larder", "tight"]);
    let headings = "tight / larder | of the medians | of the least | of each round";
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for workload in workloads {
        eprintln!("==> time of {}", workload.name);
        let rounds = timing.measure(&all, Run::of(&workload.script), workload.name.clone());
        let over = |figures: &Figures| ratio(figures.values[1], figures.values[0]);
        let each = ratio(rounds.ratio(1, 0), Some(1.0));
        let (medians, least) = (over(&rounds.medians()), over(&rounds.least()));
        ratios.push(vec![rounds.name.clone(), medians, least, each]);
        times.push(rounds.medians());
    }
    let times = figures::table("ns per operation", &all, &times);
    times + "\n" + &figures::markdown(headings, &ratios)
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
