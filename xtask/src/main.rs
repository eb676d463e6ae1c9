//! The project's own commands, run as `cargo xtask <command>`.
//!
//! The local recipe and the one that CI runs are the same program, so that a green run here means a
//! green run there. It has no dependencies: it must build first, and fast, on a fresh clone.
#![forbid(unsafe_code)]

mod backend;
mod bench;
mod command;
mod differences;
mod docs;
mod gpu;
mod headers;
mod model;
mod page;
mod parity;
mod peer;
mod printed;
mod programs;
mod python;
mod request;
mod same;
mod stand_in;
mod step;
mod tidy;
mod torch;
mod verdicts;
mod wheel;
mod wheels;
mod world;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use page::{Page, Workshop};
use parity::Seeds;
use request::{Request, Task};
use step::{Runner, Step};

fn main() -> ExitCode {
    let arguments: Vec<String> =
        env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    match Request::parse(&arguments) {
        Ok(Request::Help(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Request::Run(task)) => perform(task),
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

fn perform(task: Task) -> ExitCode {
    let runner = Runner::new(repository_root());
    // The test runner's summary is the end of a whole run, so nothing is said after it.
    let says_last_time = task != Task::Test;
    let steps = match task {
        Task::Parity(seeds) => return compare(&runner, seeds),
        Task::Same(other) => {
            let cargo = Path::new(&runner.program);
            let equal = same::run(&runner.root, cargo, &other);
            return done(equal.and_then(|equal| {
                equal.then_some(()).ok_or_else(|| "the two builds differ".to_owned())
            }));
        }
        Task::Bench(options) => return measure(&runner, options),
        Task::Threads(options) => {
            let cargo = Path::new(&runner.program);
            return done(bench::threads::run(&runner.root, cargo, options));
        }
        Task::Tight(traces) => {
            let cargo = Path::new(&runner.program);
            return done(bench::tight::run(&runner.root, cargo, traces.as_deref()));
        }
        Task::Page(Page::Test) => {
            return done(page::test(&runner.root, Path::new(&runner.program)));
        }
        Task::Page(Page::Build) => return done(page::build_anew(&runner.root)),
        Task::Page(Page::Measure) => {
            let cargo = Path::new(&runner.program);
            let measured = Workshop::open(&runner.root)
                .and_then(|workshop| bench::report::run(&runner.root, cargo, &workshop));
            return done(measured);
        }
        Task::Model => return done(model::run(&runner.root, Path::new(&runner.program))),
        Task::Python => return done(python::run(&runner.root)),
        Task::Wheel(options) => return done(wheel::run(&runner.root, &options)),
        Task::World(world) => {
            return done(world::run(&runner.root, Path::new(&runner.program), world));
        }
        Task::Headers => return done(headers::run(&runner.root, Path::new(&runner.program))),
        Task::Differences => {
            return done(differences::run(&runner.root, Path::new(&runner.program)));
        }
        Task::Verdicts(options) => {
            return done(verdicts::run(&runner.root, Path::new(&runner.program), &options));
        }
        Task::Backend => return done(backend::run(&runner.root, Path::new(&runner.program))),
        Task::Gpu(what) => {
            return done(gpu::run(&runner.root, Path::new(&runner.program), what));
        }
        Task::Test => Step::all(&runner.root, runner.has_nextest()),
        Task::Lint => Step::lints(&runner.root),
        Task::Tidy => vec![Step::tidy()],
    };
    let result = runner.run(&steps, says_last_time);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

fn compare(runner: &Runner, seeds: Seeds) -> ExitCode {
    match parity::run(&runner.root, Path::new(&runner.program), seeds) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(sentence) => {
            eprintln!("xtask: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn measure(runner: &Runner, options: bench::Options) -> ExitCode {
    done(bench::run(&runner.root, Path::new(&runner.program), options))
}

/// Says what went wrong, if anything did.
fn done(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("xtask: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// The folder above this crate. Cargo says at run time where the crate is; the place known to the
/// compiler serves when the program is started by hand.
fn repository_root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
