//! What the command line asks for.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::file;
use crate::page::Page;
use crate::{bench, dryrun, gpu, parity, tidy, verdicts, wheel};

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Request {
    #[command(subcommand)]
    pub(crate) task: Task,
}

/// Something that can be run.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Everything that CI checks, in CI's order; the tests come last.
    ///
    /// It stops at the first step that fails, with its exit code. The tests run under cargo-nextest
    /// where it is installed, otherwise under cargo test.
    Test,
    /// Formatting, clippy and documentation, with warnings denied.
    Lint,
    /// The rules of the source text that no other tool knows, and the links between pages.
    ///
    /// It reads the files that git tracks and the new ones that git does not ignore.
    Tidy(tidy::Options),
    /// PyTorch's own allocator beside ours, on random scripts and recorded programs.
    ///
    /// Both run on the same simulated GPU, ours under the policy that is named after PyTorch's
    /// version. Every statistic, every count of device calls and every placement is compared. A
    /// difference is printed with its seed, its settings and the shortest beginning of the
    /// script that shows it. Scripts on which the peer gives up or does not agree with
    /// itself are set aside and counted. It needs python3 with pip, gcc, g++ and, the first time,
    /// the network: PyTorch's wheel is fetched from the package index and what is needed of it
    /// kept under target/judge.
    Parity(parity::Seeds),
    /// Another build of `larder` beside this one: for a change that must not change what the
    /// allocator does.
    ///
    /// Every recorded program is replayed by both under every policy, with several settings, and
    /// every statistic, every placement and every entry of the history is compared. The first
    /// difference of each replay is printed by name. It takes a few minutes.
    Same {
        /// The other build, as `cp target/release/larder` made it before the change.
        #[arg(long, value_name = "PATH", value_parser = file::absolute)]
        with: PathBuf,
    },
    /// What each PyTorch's allocator gets wrong, shown by scripts of a few lines; writes the docs.
    ///
    /// It fails if a version has a defect that docs/differences.md says is mended in it, or the
    /// other way round. What it needs is what parity needs, and the wheels of all five
    /// versions.
    Differences,
    /// What a malloc and a free cost, PyTorch's own allocator beside ours; writes the docs.
    ///
    /// It times the scripts and recordings in workloads/, counts instructions where valgrind is
    /// installed, and times pairs beside many free blocks and with histories. Nothing else should
    /// run on the machine meanwhile. What it needs is what parity needs.
    Bench(bench::Options),
    /// What they cost where many threads share an allocator, beside a plain mutex; writes the docs.
    ///
    /// With 1, 2, 4 and 16 threads, on all cores, on one core, and beside three busy threads.
    /// What it needs is what parity needs, and taskset.
    Threads {
        /// How often each measurement is made.
        #[arg(long, value_name = "N", default_value_t = 10,
              value_parser = clap::value_parser!(u64).range(1..))]
        rounds: u64,
    },
    /// What the policy tight makes of recorded programs, beside the others; writes the docs.
    ///
    /// It is a measurement: whatever comes out, it ends well.
    Tight {
        /// The folder with the recordings; without it those that bench measures.
        #[arg(long, value_name = "DIR", value_parser = file::absolute)]
        traces: Option<PathBuf>,
    },
    /// The page of `larder report`: built from its sources, and used in a real browser.
    ///
    /// It needs Node 20 or newer with npm and, the first time, npm's registry. Chromium is
    /// installed by apt-get where it is missing.
    Page(Page),
    /// The lock, checked by loom over the ways in which threads can interleave.
    Model,
    /// The library for PyTorch programs, built against the oldest and the newest PyTorch.
    Backend,
    /// PyTorch itself, of each version, on a stand-in for the GPU: its tests and ours, natively and
    /// on Larder.
    ///
    /// It says which tests pass on both and which do not, and writes a table in docs/torch.md once
    /// all versions were run. Each version also records the programs that parity compares, and
    /// their replays are compared with it. A version takes about ten minutes on an idle core.
    /// It needs python3 with pip, g++ and the network.
    Verdicts(verdicts::Options),
    /// What we hand to the CUDA driver, compared with CUDA's own headers.
    Headers,
    /// The Python package, installed as its users install it, and its tests.
    Python,
    /// The Python package as a wheel for everybody, with the command larder in it; tried without
    /// Rust.
    ///
    /// In target/wheels, for every Linux for which PyTorch's own wheels are made and Python 3.10 or
    /// newer, with the C++ part for each PyTorch. It needs python3 with pip and venv, strip,
    /// g++, readelf and, the first time, the package index: five wheels of PyTorch, of which
    /// little is kept. A PyTorch under which it is tried takes five gigabytes
    /// of disk meanwhile.
    Wheel(wheel::Options),
    /// Other machines and programs: beside cudarc, no CUDA, macOS, the lowest Rust, packages,
    /// installs.
    ///
    /// It needs rustup, which fetches the lowest Rust and the standard library for macOS, and what
    /// `wheel` needs.
    World(World),
    /// Dry runs of PyTorch programs, compared with what an H200 was asked for.
    ///
    /// It fetches a whole PyTorch, some gigabytes, once, into target/dryrun. No part of CI.
    Dryrun(dryrun::Options),
    /// The folder target/gpu, which proves and measures on a machine with a GPU.
    ///
    /// Take the folder there and run `target/gpu/run.sh`; `run.sh --help` lists the parts, and
    /// `run.sh torch` runs PyTorch programs on Larder and on PyTorch's own allocator.
    Gpu(gpu::Options),
}

/// How much of the world is checked.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct World {
    /// The first three alone, in short: the oldest and the newest CUDA, packages that are not
    /// built. It needs nothing more than a build does.
    #[arg(long = "quick")]
    pub(crate) is_quick: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Request::command().debug_assert();
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for line in [
            "",
            "tset",
            "tidy --seeds 3",
            "same",
            "parity --torch 2.10",
            "parity --settings 3 --random-only",
            "bench --rounds 0",
            "page --build --measure",
        ] {
            let words = ["xtask"].into_iter().chain(line.split_whitespace());
            assert!(Request::try_parse_from(words).is_err(), "{line}");
        }
    }
}
