//! The project's own commands, run as `cargo xtask <command>`.
//!
//! The local recipe and the one that CI runs are the same program, so that a green run here means a
//! green run there. It must build first, and fast, on a fresh clone, so that it uses few crates.
#![forbid(unsafe_code)]

mod backend;
mod bench;
mod command;
mod differences;
mod docs;
mod dryrun;
mod file;
mod gpu;
mod headers;
mod page;
mod parity;
mod peer;
mod programs;
mod python;
mod repository;
mod request;
mod stand_in;
mod step;
mod table;
mod tidy;
mod tools;
mod torch;
mod verdicts;
mod wheel;
mod wheels;
mod world;

use std::process::ExitCode;

use clap::Parser;
use repository::{Repository, cargo};
use request::{Request, Task};
use step::Step;
use xshell::cmd;

fn main() -> ExitCode {
    let task = Request::parse().task;
    let failed = |sentence| (sentence, 1);
    match Repository::here().map_err(failed).and_then(|repository| perform(&repository, task)) {
        Ok(()) => ExitCode::SUCCESS,
        Err((sentence, code)) => {
            eprintln!("xtask: {sentence}");
            ExitCode::from(code)
        }
    }
}

/// Does what is asked for; else a sentence about why not, and the exit code.
fn perform(repo: &Repository, task: Task) -> Result<(), (String, u8)> {
    let result = match task {
        // The test runner's summary is the end of a whole run, so nothing is said after it.
        Task::Test => return step::run(Step::all(repo), false),
        Task::Lint => return step::run(Step::lints(repo), true),
        Task::Tidy(options) => tidy::run(repo, options),
        Task::Parity(seeds) => parity::run(repo, seeds),
        Task::Same { with } => parity::compare_builds(repo, &with),
        Task::Differences => differences::run(repo),
        Task::Bench(options) => bench::run(repo, options),
        Task::Threads { rounds } => bench::threads(repo, rounds),
        Task::Tight { traces } => bench::tight::run(repo, traces.as_deref()),
        Task::Page(page) if page.is_measured => bench::report::run(repo),
        Task::Page(page) => page::run(repo, page),
        Task::Model => check_model(repo),
        Task::Backend => backend::run(repo),
        Task::Verdicts(options) => verdicts::run(repo, &options),
        Task::Headers => headers::run(repo),
        Task::Python => python::run(repo),
        Task::Wheel(options) => wheel::run(repo, &options),
        Task::World(world) => world::run(repo, world.is_quick),
        Task::Dryrun(options) => dryrun::run(repo, &options),
        Task::Gpu(options) => gpu::run(repo, options),
    };
    result.map_err(|sentence| (sentence, 1))
}

/// Runs the lock's model. It is built apart: loom puts its own atomics and threads in place of the
/// standard library's.
fn check_model(repo: &Repository) -> Result<(), String> {
    let cargo = cargo();
    let test = cmd!(repo.shell, "{cargo} test --quiet -p larder-lock --lib --test model");
    let test = test.env("CARGO_TARGET_DIR", repo.target.join("loom"));
    command::run(test.env("RUSTFLAGS", "--cfg loom"))
}
