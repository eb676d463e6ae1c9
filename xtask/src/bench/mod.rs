//! Bench: what is measured for docs/benchmarks.md, and how it gets there. Programs that measure
//! mallocs and frees are larder-testkit's.

pub(crate) mod report;
pub(crate) mod tight;

use std::fs;
use std::path::Path;
use std::thread;

use clap::Args;
use xshell::cmd;

use crate::command::{output, run as run_command};
use crate::peer::Peer;
use crate::programs::{self, Programs};
use crate::repository::Repository;
use crate::{docs, file, torch};

/// How much to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How often each measurement is made, of which the median is shown; 7 without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// A look in a few minutes: 3 rounds, short measurements; nothing is written.
    #[arg(long = "quick")]
    is_quick: bool,
    /// Time the policies larder and tight alone, in turn, with one thread, and write nothing:
    /// minutes for many rounds.
    #[arg(long = "own")]
    is_own: bool,
}

/// Builds both sides, measures everything, writes the tables and the chart and prints the times.
pub(crate) fn run(repo: &Repository, options: Options) -> Result<(), String> {
    let [scripts, out] = ["scripts", "tables"].map(|name| repo.target.join("bench").join(name));
    eprintln!("==> building both sides");
    let newest = Peer { repo, torch: torch::NEWEST }.build_judge()?;
    let programs = Programs::build(repo, torch::OLDEST)?;
    programs.write_scripts(&scripts)?;
    let bench = programs.compare("bench").arg("--newest").arg(newest).arg("--scripts").arg(scripts);
    let rounds = options.rounds.map(|rounds| format!("--rounds={rounds}"));
    let looks = [(options.is_quick, "--quick"), (options.is_own, "--own")];
    let looks: Vec<_> = looks.iter().filter_map(|&(is_on, word)| is_on.then_some(word)).collect();
    let bench = bench.args(rounds).args(&looks);
    if !looks.is_empty() {
        return run_command(bench);
    }
    let _ = fs::remove_dir_all(&out);
    run_command(bench.arg("--out").arg(&out))?;
    let command = format!("cargo xtask bench --rounds {}", options.rounds.unwrap_or(7));
    for section in ["time", "least time", "instructions", "free blocks", "history"] {
        // Without valgrind no instructions were counted.
        if let Ok(table) = fs::read_to_string(out.join(format!("{section}.md"))) {
            write(repo, section, &command, &table)?;
        }
    }
    file::copy(&out.join("chart.svg"), &repo.root.join("docs/benchmarks.svg"))
}

/// Measures what mallocs and frees cost where threads share an allocator, and writes that.
pub(crate) fn threads(repo: &Repository, rounds: u64) -> Result<(), String> {
    let testkit = programs::lay_out(repo, &repo.target.join("threads"))?;
    let rounds = rounds.to_string();
    let table = output(cmd!(repo.shell, "{testkit} threads --rounds {rounds}"))?;
    print!("{table}");
    write(repo, "threads", &format!("cargo xtask threads --rounds {rounds}"), &table)
}

/// Writes a table into its section of the page, under the machine and the day, as far as they
/// explain figures, and the command. The machine's name is not there: it explains nothing.
fn write(repo: &Repository, section: &str, command: &str, table: &str) -> Result<(), String> {
    let day = output(cmd!(repo.shell, "date -u +%F")).unwrap_or_default();
    let compiler = output(cmd!(repo.shell, "rustc --version")).unwrap_or_default();
    let compiler: Vec<&str> = compiler.split(' ').take(2).collect();
    let facts = fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let model = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let (model, day) = (model.map_or("a processor", |(_, model)| model), day.trim());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let compiler = compiler.join(" ");
    let machine = format!("{day}, {model}, {cores} cores, {compiler}, by `{command}`.");
    docs::write(repo, docs::BENCHMARKS, section, &format!("{machine}\n\n{table}"))
}
