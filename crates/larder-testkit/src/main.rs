//! The program `larder-testkit`: soaks and clusters from a seed, and PyTorch's own allocator beside
//! ours.
#![forbid(unsafe_code)]

mod commands;
mod peer;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use larder_core::Policy;
use larder_core::policy::UnknownPolicy;
use peer::parity::flavour::Flavour;
use peer::{bench, parity, same};

/// Random tests of the allocator on a simulated GPU, for as long as one likes, and PyTorch's own
/// allocator beside it.
#[derive(Debug, Parser)]
#[command(name = "larder-testkit", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a random script under injected faults, and check every invariant after each step; or
    /// many threads on one allocator, and check it whenever they pause.
    Soak {
        /// The seed that everything follows from. How threads meet does not.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many threads share an allocator. With one, a naive model follows each step.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
        threads: u64,
        /// How many steps a script has, or each thread takes.
        #[arg(long, default_value_t = 2000,
              value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        steps: u64,
        /// How many scripts to run, or allocators to share, with seeds counted up from the first. A
        /// script without faults is run once more with them, and counts twice.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        scripts: u64,
        /// Go on with new seeds for so many seconds instead.
        #[arg(long, conflicts_with = "scripts",
              value_parser = clap::value_parser!(u64).range(1..))]
        seconds: Option<u64>,
        /// Who decides: larder, tight, or torch-2.11 to torch-2.15. Without it, seeds take larder
        /// and torch-2.11 in turns.
        /// `pinned` is that for pinned memory of the host.
        #[arg(long, value_parser = policy_of)]
        policy: Option<Policy>,
    },
    /// Run random programs that put memory to sleep and wake it, half of them under injected
    /// faults, beside a naive model of their blocks and what is in them.
    Sleep {
        /// The seed that everything follows from.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many steps a program has.
        #[arg(long, default_value_t = 80,
              value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        steps: u64,
        /// How many programs to run, with seeds counted up from the first.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        scripts: u64,
    },
    /// Run random sequences of requests and frees in a symmetric pool on simulated ranks, and check
    /// that every block lies at one place on all of them; that a rank which differs is named at
    /// exactly the call where it does; and that one which dies while growing is named and leaves
    /// nothing behind.
    Cluster {
        /// The seed that everything follows from, but for how ranks meet.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many sequences of each of the three sorts to run, for each number of ranks.
        #[arg(long, default_value_t = 1000,
              value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        sequences: u64,
        /// How many ranks there are; give it several times. Without it: 2, 4 and 8.
        #[arg(long = "ranks", value_name = "N",
              value_parser = clap::value_parser!(u64).range(2..=64))]
        ranks: Vec<u64>,
    },
    /// PyTorch's own allocator and ours, fed with the same scripts.
    ///
    /// Every statistic, count of device calls, placement and entry of the history is compared. A
    /// difference is printed with its seed, its settings and the shortest beginning of the script
    /// that shows it. Scripts on which PyTorch gives up or does not agree with itself are set aside
    /// and counted.
    Parity(parity::Options),
    /// Two builds of larder replay the same files under every policy, with several settings, and
    /// every statistic, placement and entry of the history is compared.
    Same(same::Options),
    /// What a malloc and a free take, with PyTorch's own allocator and with ours.
    Bench(bench::Options),
    /// What they take where many threads share an allocator, beside a plain mutex: with 1, 2, 4 and
    /// 16 threads, on all cores, on one core, and beside three busy threads. It needs taskset.
    Threads(bench::threads::Options),
    /// Write the script that belongs to a seed, as parity makes it.
    Script {
        seed: u64,
        flavour: Flavour,
        out: PathBuf,
        /// Captures are marked as this policy wants it.
        #[arg(long, default_value = "torch-2.11")]
        policy: Policy,
    },
}

fn main() -> ExitCode {
    let said = match Cli::parse().command {
        Command::Soak { seed, threads, steps, scripts, seconds, policy } => {
            let extent = commands::Extent { scripts, seconds };
            commands::soak(seed, threads as usize, steps as usize, extent, policy.as_ref())
        }
        Command::Sleep { seed, steps, scripts } => commands::sleep(seed, steps as usize, scripts),
        Command::Cluster { seed, sequences, ranks } => commands::cluster(seed, sequences, &ranks),
        Command::Parity(options) => parity::run(&options),
        Command::Same(options) => same::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Threads(options) => bench::threads::run(&options),
        Command::Script { seed, flavour, out, policy } => {
            parity::write(&flavour.script(seed, &policy), &out).map(|()| String::new())
        }
    };
    match said {
        // A reader that has seen enough, such as `head`, is no failure.
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => refuse(&error),
            _ => ExitCode::SUCCESS,
        },
        Err(sentence) => refuse(&sentence),
    }
}

/// The policy of a name. That for pinned memory is none that a program chooses.
fn policy_of(name: &str) -> Result<Policy, UnknownPolicy> {
    if name == Policy::pinned().name { Ok(Policy::pinned()) } else { name.parse() }
}

fn refuse(why: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("larder-testkit: {why}");
    ExitCode::FAILURE
}
