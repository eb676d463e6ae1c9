//! The project's own commands, run as `cargo xtask <command>`.
//!
//! The local recipe and the one that CI runs are the same program, so that a green run here means a
//! green run there. It must build first, and fast, on a fresh clone, so that it uses few crates.
#![forbid(unsafe_code)]

mod backend;
mod bench;
mod command;
mod crew;
mod differences;
mod docs;
mod file;
mod gpu;
mod headers;
mod model;
mod page;
mod parity;
mod peer;
mod programs;
mod python;
mod random;
mod request;
mod same;
mod stand_in;
mod step;
mod tidy;
mod tools;
mod torch;
mod verdicts;
mod wheel;
mod wheels;
mod world;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use request::{Request, Task};
use step::{Runner, Step};

fn main() -> ExitCode {
    let runner = Runner::new(repository_root());
    match perform(&runner, Request::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err((sentence, code)) => {
            if !sentence.is_empty() {
                eprintln!("xtask: {sentence}");
            }
            ExitCode::from(code)
        }
    }
}

/// Does what is asked for; else a sentence about why not, and the exit code.
fn perform(runner: &Runner, task: Task) -> Result<(), (String, u8)> {
    let (root, cargo) = (&*runner.root, Path::new(&runner.program));
    let result = match task {
        // The test runner's summary is the end of a whole run, so nothing is said after it.
        Task::Test => return runner.run(&Step::all(runner.has_nextest()), false),
        Task::Lint => return runner.run(&Step::lints(), true),
        Task::Tidy(options) => tidy::run(root, options),
        Task::Parity(seeds) => parity::run(root, cargo, seeds),
        Task::Same { with } => same::run(root, cargo, &with),
        Task::Differences => differences::run(root, cargo),
        Task::Bench(options) => bench::run(root, cargo, options),
        Task::Threads(options) => bench::threads::run(root, cargo, options),
        Task::Tight { traces } => bench::tight::run(root, cargo, traces.as_deref()),
        Task::Page(page) if page.is_measured => bench::report::run(root, cargo),
        Task::Page(page) => page::run(root, cargo, page),
        Task::Model => model::run(root, cargo),
        Task::Backend => backend::run(root, cargo),
        Task::Verdicts(options) => verdicts::run(root, cargo, &options),
        Task::Headers => headers::run(root, cargo),
        Task::Python => python::run(root),
        Task::Wheel(options) => wheel::run(root, &options),
        Task::World(world) => world::run(root, cargo, world.is_quick),
        Task::Gpu(options) => gpu::run(root, cargo, options),
    };
    result.map_err(|sentence| (sentence, 1))
}

/// The folder above this crate. Cargo says at run time where the crate is; the place known to the
/// compiler serves when the program is started by hand.
fn repository_root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
