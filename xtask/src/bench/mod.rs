//! Bench: PyTorch's own allocator and ours, measured in turn with the same scripts.
//!
//! The figures on the page are those of one run, so that they can be held against each other.

mod chart;
mod contestant;
mod free_blocks;
mod history;
mod instructions;
mod machine;
mod own;
mod page;
mod reading;
pub(crate) mod report;
mod table;
pub(crate) mod threads;
pub(crate) mod tight;
mod timing;
mod workload;

use std::fs;
use std::path::Path;

use crate::programs::{self, Programs};
use machine::Machine;
use page::Results;
use table::{Figures, Table};
use timing::{Rounds, Timing};
use workload::{VARLEN, Workload};

/// How much to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) rounds: Option<u64>,
    pub(crate) is_quick: bool,
    /// The programs and scripts are those beside this one; only the times are taken, and nothing is written.
    pub(crate) is_laid_out: bool,
    /// Only Larder's own two policies are held against each other, and nothing is written.
    pub(crate) is_own: bool,
}

impl Options {
    fn timing(self) -> Timing {
        let (target_ns, usual) = if self.is_quick { (5e7, 3) } else { (3e8, 7) };
        Timing { target_ns, rounds: self.rounds.unwrap_or(usual) }
    }

    /// The command line that asks for the same.
    fn command(self) -> String {
        let mut command = "cargo xtask bench".to_owned();
        if let Some(rounds) = self.rounds {
            command.push_str(&format!(" --rounds {rounds}"));
        }
        if self.is_quick {
            command.push_str(" --quick");
        }
        command
    }
}

/// Builds both sides, measures everything, writes the page and the chart and prints the times.
pub(crate) fn run(root: &Path, cargo: &Path, options: Options) -> Result<(), String> {
    let timing = options.timing();
    if options.is_laid_out {
        let workloads = workload::laid_out(&programs::beside()?)?;
        let programs = Programs::beside(crate::torch::OLDEST)?;
        if options.is_own {
            print!("{}", own::compare(&programs, &workloads, timing).plain());
        } else {
            print_times(&time_all(&programs, &workloads, timing));
        }
        return Ok(());
    }
    let target = programs::target_folder(root);
    eprintln!("==> building both sides");
    let programs = Programs::build(root, cargo, &target)?.with_newest(root, &target)?;
    let folder = target.join("bench");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let workloads = workload::collect(root, &programs, &folder)?;
    if options.is_own {
        print!("{}", own::compare(&programs, &workloads, timing).plain());
        return Ok(());
    }
    // Before the measurements: a build beside them would disturb them.
    let own_free_blocks = own_free_blocks(root, cargo, &target)?;
    let rounds = time_all(&programs, &workloads, timing);
    print_times(&rounds);
    let results = Results {
        machine: Machine::read(),
        command: options.command(),
        is_quick: options.is_quick,
        rounds: timing.rounds,
        times: rounds.iter().map(|row| row.medians.clone()).collect(),
        least_times: rounds.iter().map(|row| row.least.clone()).collect(),
        spreads: rounds.into_iter().flat_map(|row| row.spreads).collect(),
        instructions: count_all(&programs, &workloads),
        own_free_blocks,
        free_blocks: free_blocks::compare(&programs, &folder, timing)?,
        history: history::compare(&programs, &workloads, timing),
        replayed: replay_all(&programs, &workloads, timing.rounds)?,
        large: if options.is_quick {
            None
        } else {
            programs::build(root, cargo, &target, &["-p", "larder-study", "--example", GROW])?;
            let grow = target.join("release/examples").join(GROW);
            Some(reading::replay_large(&programs, &grow, &workloads, &folder)?)
        },
    };
    let page = root.join("docs/benchmarks.md");
    let old = fs::read_to_string(&page).unwrap_or_default();
    workload::write(&page, &format!("{}{}", results.page(), kept(&old)))?;
    workload::write(&root.join("docs/benchmarks.svg"), &chart::draw(&results.times))?;
    Ok(())
}

fn print_times(rounds: &[Rounds]) {
    let print = |figures: fn(&Rounds) -> &Figures| {
        let figures: Vec<_> = rounds.iter().map(|row| figures(row).clone()).collect();
        print!("{}", Table::of_figures("ns per operation", &figures).plain());
    };
    print(|row| &row.medians);
    println!("\nthe least of the rounds:");
    print(|row| &row.least);
}

/// The sections that have commands of their own, in their order.
const KEPT: [&str; 4] =
    ["\n## A page\n", "\n## Tight\n", "\n## Many threads\n", "\n## On a card\n"];

/// The part of the page that is not measured here: it has a command of its own, or needs a card.
fn kept(page: &str) -> &str {
    let begin = KEPT.iter().filter_map(|section| page.find(section)).min();
    begin.map_or("", |at| &page[at..])
}

/// The example that makes a large snapshot out of a small one.
const GROW: &str = "grow_snapshot";

fn own_free_blocks(root: &Path, cargo: &Path, target: &Path) -> Result<String, String> {
    eprintln!("==> cargo bench -p larder-sim --bench free_blocks");
    free_blocks::own_bench(root, cargo, target)
}

fn time_all(programs: &Programs, workloads: &[Workload], timing: Timing) -> Vec<Rounds> {
    let mut rows = Vec::new();
    for workload in workloads {
        for &threads in workload.threads() {
            eprintln!("==> time of {}", workload.row(threads));
            rows.push(timing.measure(programs, workload, threads));
        }
    }
    rows
}

/// Counting is slow, but nothing else on the machine can disturb it.
fn count_all(programs: &Programs, workloads: &[Workload]) -> Option<Vec<Figures>> {
    if !instructions::can_count() {
        eprintln!("==> valgrind is not installed; no instructions are counted");
        return None;
    }
    let rows = workloads.iter().map(|workload| {
        eprintln!("==> instructions of {}", workload.name);
        instructions::count(programs, workload)
    });
    Some(rows.collect())
}

fn replay_all(
    programs: &Programs,
    workloads: &[Workload],
    rounds: u64,
) -> Result<Vec<reading::Replayed>, String> {
    let wanted = ["llama_generate", VARLEN];
    let found = workloads.iter().filter(|workload| wanted.contains(&workload.name.as_str()));
    reading::replay(programs, &found.collect::<Vec<_>>(), rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_elsewhere_stays_on_the_page() {
        let card = "\n## On a card\n\n| pairs |\n";
        assert_eq!(kept(&format!("# Benchmarks\n\n## Time\n{card}")), card);
        let threads = format!("\n## Many threads\n\n| hot |\n{card}");
        assert_eq!(kept(&format!("# Benchmarks\n\n## Time\n{threads}")), threads);
        let tight = format!("\n## Tight\n\n| gpt2 |\n{threads}");
        assert_eq!(kept(&format!("# Benchmarks\n\n## Time\n{tight}")), tight);
        assert_eq!(kept("# Benchmarks\n"), "");
    }

    #[test]
    fn a_quick_look_is_short_and_says_so() {
        let usual = Options::default();
        assert_eq!((usual.timing().rounds, usual.command().as_str()), (7, "cargo xtask bench"));
        let quick = Options { rounds: Some(2), is_quick: true, ..usual };
        assert_eq!(quick.timing().rounds, 2);
        assert!(quick.timing().target_ns < usual.timing().target_ns);
        assert_eq!(quick.command(), "cargo xtask bench --rounds 2 --quick");
    }
}
