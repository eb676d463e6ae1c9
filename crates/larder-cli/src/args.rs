//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use larder_core::Policy;
use larder_core::record::event::{Action, Level};
use larder_sim::parse_capacity;
use larder_study::card::Card;
use larder_study::convert::Format;
use larder_study::growth::Limit;
use larder_study::question::Question;
use larder_study::settings::Chosen;
use larder_study::sizes::{Jitter, Sizes, parse_scale};
use larder_study::told::Told;
use larder_study::workload::Addresses;

use crate::{Refusal, examples};

/// A caching allocator for GPU memory, on a simulated GPU: replays recorded programs, compares
/// settings, and finds out how much memory a program needs.
#[derive(Debug, Parser)]
#[command(name = "larder", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a script or a recorded program, and say what it needed.
    #[command(after_help = examples::REPLAY)]
    Replay {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        conf: Conf,
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        course: Course,
        /// Write a line `ID ADDRESS` for each allocation, 0 for out of memory.
        #[arg(long, value_name = "OUT")]
        placements: Option<PathBuf>,
        #[command(flatten)]
        history: History,
    },
    /// Run it under several settings, side by side; without --policy, under all three policies.
    #[command(after_help = examples::COMPARE)]
    Compare {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        change: Change,
        /// Settings to compare, as in PYTORCH_CUDA_ALLOC_CONF; give it several times. Without it,
        /// the settings that people try first.
        #[arg(long = "conf", value_name = "KEY:VALUE,…")]
        confs: Vec<String>,
    },
    /// Show its memory in the terminal: over time, as a map, who holds it, and what keeps the rest.
    #[command(after_help = examples::SHOW)]
    Show {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        conf: Conf,
        #[command(flatten)]
        change: Change,
        /// When: peak, end, failure, or the number of an operation. Without it, the first failure,
        /// or else the peak.
        #[arg(long, value_name = "WHEN", value_parser = |word: &str| word.parse::<Moment>())]
        at: Option<Moment>,
    },
    /// Say why it ran out of memory, and what would have helped.
    #[command(after_help = examples::EXPLAIN)]
    Explain {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        conf: Conf,
        #[command(flatten)]
        change: Change,
        /// Which of the requests that fail, counted from 1. Without it the first; of a snapshot
        /// that Larder wrote when a request failed, that one.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        failure: Option<u64>,
    },
    /// Find the smallest device memory on which it runs with no out-of-memory.
    #[command(after_help = examples::FIT)]
    Fit {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        conf: Conf,
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        course: Course,
        /// Say of each of these cards whether it runs there, by name or size: 24,48,L4,H200.
        #[arg(long, value_name = "CARD,…", value_delimiter = ',', value_parser = Card::parse)]
        cards: Vec<Card>,
    },
    /// Search the settings with which it holds least memory, on all cores.
    #[command(after_help = examples::TUNE)]
    Tune {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        change: Change,
        /// For how long to search at most.
        #[arg(long, default_value_t = 20, value_name = "S",
              value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
    },
    /// Watch the memory of a program that runs now, until Ctrl-C is pressed.
    #[command(after_help = examples::TOP)]
    Top {
        /// The tape that the program writes (.tape), or the address at which it serves its
        /// statistics: a port, HOST:PORT or http://HOST:PORT/metrics.
        source: String,
        /// Look again every so many seconds.
        #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = seconds)]
        every: f64,
        /// Print one look, and end.
        #[arg(long)]
        once: bool,
    },
    /// Measure what its allocations and frees cost.
    #[command(after_help = examples::BENCH)]
    Bench {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        conf: Conf,
        /// How often to replay it after four passes that are not timed. A short script wants many.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
        repeat: u64,
        /// How many threads replay it at once, each on streams of its own.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
        threads: u64,
        /// Remember so many entries of its history meanwhile, without call stacks.
        #[arg(long, value_name = "N")]
        history: Option<usize>,
        /// Touch so many KiB of other memory before each operation, as a program does, and time
        /// each operation alone: 1024 leave the allocator little in the processor's caches.
        #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(1..1 << 20))]
        between: Option<u64>,
    },
    /// Write a snapshot, or what a script leads to, as another kind of file.
    #[command(after_help = examples::SNAPSHOT)]
    Snapshot {
        /// An op script, a torch memory snapshot, the same as JSON, or a tape; - is standard
        /// input.
        file: PathBuf,
        #[command(flatten)]
        run: Run,
        /// Which device's trace becomes an op script; default 0. Other formats take all devices.
        #[arg(long, value_name = "N")]
        device: Option<u32>,
        /// The file to write. Its name says the format: .pickle, .json, .ops, .perfetto.json,
        /// .tape, each but the last also with .gz. - is standard output, with --to.
        #[arg(short, long, value_name = "OUT")]
        output: PathBuf,
        /// The format, where the name does not say it: pickle, json, ops, perfetto, tape.
        #[arg(long, value_name = "FORMAT", value_parser = |name: &str| name.parse::<Format>())]
        to: Option<Format>,
    },
    /// Write a page to look at: memory over time, the segments at any moment, who held the peak,
    /// what is fragmented, and which settings would help.
    #[command(after_help = examples::REPORT)]
    Report(Report),
    /// Say what a program holds more of in one recording than in another, where, and since when.
    #[command(after_help = examples::DIFF)]
    Diff {
        /// The earlier recording: a snapshot, the same as JSON, a tape, or an op script.
        before: PathBuf,
        /// The later one.
        after: PathBuf,
        /// End with code 5 if the most that is held at once grew by more than this: 2%, 100MiB.
        #[arg(long, value_name = "LIMIT", value_parser = |text: &str| text.parse::<Limit>())]
        grew_by: Option<Limit>,
        /// Which device's trace to take from a snapshot; default 0.
        #[arg(long, value_name = "N")]
        device: Option<u32>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what a shell reads to complete commands and options.
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Print the manual page of the program, or of one of its commands.
    #[command(after_help = examples::MAN)]
    Man {
        /// The command.
        command: Option<String>,
    },
}

/// A time between two looks.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it is a number of seconds from 0.05 to 3600".to_owned()),
    }
}

/// A moment of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// When most was in use.
    Peak,
    /// At the end.
    End,
    /// When the first request failed.
    Failure,
    /// Behind the operation of this number, counted from 1.
    Operation(usize),
}

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(word: &str) -> Result<Moment, String> {
        match word {
            "peak" => Ok(Moment::Peak),
            "end" => Ok(Moment::End),
            "failure" => Ok(Moment::Failure),
            _ => {
                match word.parse() {
                    Ok(number) if number > 0 => Ok(Moment::Operation(number)),
                    _ => Err("it is peak, end, failure, or the number of an operation from 1 on"
                        .to_owned()),
                }
            }
        }
    }
}

/// What most commands take.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// An op script (.ops), a torch memory snapshot (.pickle, .pickle.gz), the same as JSON
    /// (.json), or a tape (.tape); - is standard input.
    pub(crate) file: PathBuf,
    /// More of them, or folders, for explain, show, fit and compare: the ranks of one program.
    #[arg(value_name = "MORE")]
    pub(crate) more: Vec<PathBuf>,
    /// Who decides: larder; tight, which holds hardly more than what is in use; torch-2.11 to
    /// torch-2.15 exactly as that PyTorch does; or torch, as the PyTorch that made the
    /// recording, and as 2.11 where nothing tells which one it was. Without it who decided when
    /// it was recorded, and Larder for a script and for bench; people see others beside it in
    /// compare and tune.
    #[arg(long, value_parser = |name: &str| name.parse::<Policy>())]
    pub(crate) policy: Option<Policy>,
    #[command(flatten)]
    pub(crate) room: Room,
    /// Which device's trace to take from a snapshot; default 0.
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
    /// Which addresses a snapshot's segments get: those of the recorded GPU, which is the default,
    /// or the lowest.
    #[arg(long, value_name = "recorded|lowest",
          value_parser = |word: &str| word.parse::<Addresses>())]
    pub(crate) addresses: Option<Addresses>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Common {
    /// All files and folders that were named.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        std::iter::once(&self.file).chain(&self.more).cloned().collect()
    }

    /// What is asked with these settings.
    pub(crate) fn question(&self, settings: Option<Chosen>) -> Question {
        Question {
            policy: self.policy.clone(),
            settings,
            addresses: self.addresses.unwrap_or_default(),
            ..self.room.question()
        }
    }
}

/// How much memory there is, and how much of it for the program.
#[derive(Args, Debug)]
pub(crate) struct Room {
    /// So much memory, and all of it for the program: 80GiB, 400MiB. Default: what the recorded
    /// program had, if it ran out of memory or nearly did, and the cap that it was under; else
    /// 80GiB, or the smallest card that has room for all that it held; with --scale so many times
    /// as much. For fit: how far it searches.
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity, allow_hyphen_values = true)]
    pub(crate) memory: Option<u64>,
    /// The card that it was recorded on, by name or size: H200, 80GiB. A recorded memory fraction
    /// is a part of it; --memory is all for the program.
    #[arg(long, value_name = "CARD", value_parser = Card::parse, conflicts_with = "memory")]
    pub(crate) card: Option<Card>,
    /// So much of the memory for the program, where it was under a cap.
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity, allow_hyphen_values = true)]
    pub(crate) cap: Option<u64>,
    /// A file with PyTorch's out-of-memory error in it, such as the program's log: it says how much
    /// the card has and how much the program was allowed.
    #[arg(long, value_name = "LOG", value_parser = Log::read, allow_hyphen_values = true)]
    pub(crate) error: Option<Log>,
}

/// A file, and what the errors in it tell.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) file: String,
    told: Told,
}

impl Log {
    fn read(file: &str) -> Result<Log, String> {
        let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
        let told = String::from_utf8_lossy(&bytes).parse::<Told>();
        Ok(Log { file: file.to_owned(), told: told.map_err(|error| error.to_string())? })
    }
}

impl Room {
    /// Refuses what says how much of the memory the program may have, where that makes no
    /// difference.
    pub(crate) fn refuse_part(&self, why: &str) -> Result<(), Refusal> {
        let given = [
            ("--card", self.card.is_some()),
            ("--cap", self.cap.is_some()),
            ("--error", self.error.is_some()),
        ];
        let option = given.into_iter().find_map(|(option, is_given)| is_given.then_some(option));
        option.map_or(Ok(()), |option| Err(Refusal::Usage(format!("{option}: {why}"))))
    }

    pub(crate) fn question(&self) -> Question {
        let Room { memory, card, cap, error } = self;
        Question {
            told: error.as_ref().map(|log| log.told.clone()),
            memory_bytes: *memory,
            card: card.clone(),
            cap_bytes: *cap,
            ..Question::default()
        }
    }
}

/// What a page is made of.
#[derive(Args, Debug)]
pub(crate) struct Report {
    /// An op script (.ops), a torch memory snapshot (.pickle, .pickle.gz), the same as JSON
    /// (.json), or a tape (.tape); - is standard input.
    pub(crate) file: PathBuf,
    /// Another, to be compared with it; with more of them, or a folder, a page with a row for each
    /// rank of one program.
    pub(crate) others: Vec<PathBuf>,
    /// The page to write; - is standard output.
    #[arg(short, long, value_name = "OUT", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// Show it in the browser.
    #[arg(long)]
    pub(crate) open: bool,
    /// Who decides: larder; tight; torch-2.11 to torch-2.15 exactly as that PyTorch does; or
    /// torch, as the one that made the recording. Without it who decided when it was recorded,
    /// and three are compared.
    #[arg(long, value_parser = |name: &str| name.parse::<Policy>())]
    pub(crate) policy: Option<Policy>,
    /// Settings as in PYTORCH_CUDA_ALLOC_CONF, and our own keys. Without it, those that the
    /// program was recorded with; --conf "" is none.
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(crate) conf: Option<String>,
    #[command(flatten)]
    pub(crate) room: Room,
    /// Which device's trace to take from a snapshot; default 0.
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u32>,
    /// Do not compare other settings, each of which takes a replay.
    #[arg(long)]
    pub(crate) no_compare: bool,
}

/// How a script is run for its snapshot.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Who decides when a script is run for it: larder, which is the default, tight, or torch-2.11
    /// to torch-2.15.
    #[arg(long, value_parser = |name: &str| name.parse::<Policy>())]
    pub(crate) policy: Option<Policy>,
    /// Settings of that run, as in PYTORCH_CUDA_ALLOC_CONF, and our own keys.
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(crate) conf: Option<String>,
    /// How much memory the simulated GPU has then; default 80GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity, allow_hyphen_values = true)]
    pub(crate) memory: Option<u64>,
}

/// What is remembered of a run, and written down as lines.
#[derive(Args, Debug)]
pub(crate) struct History {
    /// Write a line for each entry of the history, and for each segment and block at the end. The
    /// context of an event is the number of the operation.
    #[arg(id = "history", long = "history", value_name = "OUT")]
    pub(crate) out: Option<PathBuf>,
    /// For what contexts are gathered: never, state, alloc, all.
    #[arg(long, default_value = "never", requires = "history", value_name = "LEVEL",
          value_parser = |name: &str| name.parse::<Level>())]
    pub(crate) level: Level,
    /// How many entries are kept.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true, requires = "history",
          value_name = "N")]
    pub(crate) max_entries: usize,
    /// Actions that are not remembered.
    #[arg(long, requires = "history", value_name = "ACTION,…", value_delimiter = ',',
          value_parser = |name: &str| name.parse::<Action>())]
    pub(crate) skip: Vec<Action>,
}

/// How the sizes of a program are changed before it runs.
#[derive(Args, Debug)]
pub(crate) struct Change {
    /// Make every size so many times as large, a whole number.
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = parse_scale,
          allow_hyphen_values = true)]
    scale: u64,
    /// Change every size by up to so many per cent, the same size always to the same. SEED is a
    /// whole number, without it 1.
    #[arg(long, value_name = "PERCENT[:SEED]", value_parser = |text: &str| text.parse::<Jitter>(),
          allow_hyphen_values = true)]
    jitter: Option<Jitter>,
}

impl Change {
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes { scale: self.scale, jitter: self.jitter }
    }
}

/// How often a program runs.
#[derive(Args, Debug)]
pub(crate) struct Course {
    /// Run it so many times over in one process; at the end of each time everything is freed, but
    /// for what the allocator has cached.
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) passes: u64,
}

/// The settings of one run.
#[derive(Args, Debug)]
pub(crate) struct Conf {
    /// Settings as in PYTORCH_CUDA_ALLOC_CONF, and our own keys. Without it, those that the
    /// program was recorded with, but for bench, and for fit without a memory fraction; --conf
    /// "" is none.
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(crate) conf: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
