//! The program `larder`.

mod args;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use args::{Cli, Command, Common, History};
use clap::Parser;
use larder_cli::compare::{self, USUAL_SETTINGS};
use larder_cli::convert::{Format, convert};
use larder_cli::listing::Wishes;
use larder_cli::progress::Progress;
use larder_cli::replay::{Replay, ReplayError, Setup};
use larder_cli::report::{json, summary};
use larder_cli::workload::Workload;
use larder_cli::{bench, fit};
use larder_core::Addr;
use larder_core::config::{Backend, Config};
use larder_sim::script::Script;
use larder_sim::soak;

/// Why a command ended with exit code 1: one sentence for standard error.
struct Refusal(String);

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal(error.to_string())
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Refusal(sentence)) => {
            eprintln!("larder: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Refusal> {
    match command {
        Command::Replay { common, conf, placements, history } => {
            replay(&common, &conf.conf, placements.as_deref(), &history)
        }
        Command::Compare { common, confs } => compare(&common, &confs),
        Command::Fit { common, conf } => fit_command(&common, &conf.conf),
        Command::Bench { common, conf, repeat, threads, history } => {
            bench_command(&common, &conf.conf, (repeat, threads), history)
        }
        Command::Snapshot { common, conf, output, to } => {
            snapshot_command(&common, &conf.conf, &output, to)
        }
        Command::Soak { seed, threads, steps, scripts, seconds } => {
            soak_command(seed, threads as usize, steps as usize, (scripts, seconds))
        }
    }
}

/// Settings are read before the file: they are quicker to mend.
fn set_up(common: &Common, conf: &str) -> Result<Setup, Refusal> {
    let config = read_conf(conf)?;
    Ok(Setup {
        policy: common.policy.clone(),
        config,
        memory_bytes: common.memory,
        fraction: None,
        addresses: common.addresses,
    })
}

fn read_conf(conf: &str) -> Result<Config, Refusal> {
    let config = Config::parse(conf).map_err(|error| Refusal(format!("--conf: {error}")))?;
    if config.backend == Backend::CudaMallocAsync {
        return Err(Refusal(
            "--conf: backend:cudaMallocAsync is the driver's own allocator, which a simulated GPU \
             does not have"
                .to_owned(),
        ));
    }
    Ok(config)
}

fn load(common: &Common) -> Result<Workload, Refusal> {
    Ok(Workload::load(&common.file, common.device)?)
}

/// The file's name as the reports show it.
fn name(common: &Common) -> String {
    let name = common.file.file_name().unwrap_or(common.file.as_os_str());
    name.to_string_lossy().into_owned()
}

fn replay(
    common: &Common,
    conf: &str,
    placements: Option<&Path>,
    history: &History,
) -> Result<(), Refusal> {
    let setup = set_up(common, conf)?;
    let workload = load(common)?;
    let mut placed = Vec::new();
    let keeps = placements.is_some();
    let mut replay = Replay::new(&workload, &setup);
    if history.out.is_some() {
        let skip = history.skip.iter().copied().collect();
        let (level, max_entries) = (history.level, history.max_entries);
        replay.list(&Wishes { level, max_entries, skip })?;
    }
    let outcome = replay
        .run(&workload.ops, |id, addr| {
            if keeps {
                placed.push((id, addr));
            }
        })
        .map_err(|error| stopped(common, &workload, &error))?;
    if let Some(path) = placements {
        write_placements(path, &placed)
            .map_err(|error| Refusal(format!("{}: {error}", path.display())))?;
    }
    if let (Some(path), Some(listing)) = (&history.out, &outcome.listing) {
        std::fs::write(path, listing)
            .map_err(|error| Refusal(format!("{}: {error}", path.display())))?;
    }
    if common.json {
        print(&json::outcome(&outcome))
    } else {
        print_text(&summary::outcome(&name(common), &workload, &setup, conf, &outcome))
    }
}

/// Written when the replay is done, so that a replay that stops leaves no half of it.
fn write_placements(path: &Path, placed: &[(u64, Addr)]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for (id, addr) in placed {
        writeln!(file, "{id} {:x}", addr.0)?;
    }
    file.flush()
}

/// The sentence for a replay that could not go on; a script's line is named.
fn stopped(common: &Common, workload: &Workload, error: &ReplayError) -> Refusal {
    let file = common.file.display();
    let line = match workload.recording {
        None => File::open(&common.file)
            .ok()
            .and_then(|script| Script::line_of(BufReader::new(script), error.index)),
        Some(_) => None,
    };
    Refusal(match line {
        Some(line) => format!("{file}: line {line}: {}: {}", error.op, error.error),
        None => format!("{file}: {error}"),
    })
}

fn compare(common: &Common, confs: &[String]) -> Result<(), Refusal> {
    let usual = USUAL_SETTINGS.map(str::to_owned);
    let confs = if confs.is_empty() { &usual } else { confs };
    // All are read before anything runs, so that a bad one costs nothing.
    let settings = confs.iter().map(|conf| Ok((conf.clone(), read_conf(conf)?)));
    let settings = settings.collect::<Result<Vec<_>, Refusal>>()?;
    let setup = set_up(common, "")?;
    let workload = load(common)?;
    let rows = compare::compare(&workload, &setup, settings)
        .map_err(|error| stopped(common, &workload, &error))?;
    if common.json {
        print(&json::rows(&rows))
    } else {
        print_text(&summary::rows(&name(common), &setup, &rows))
    }
}

fn fit_command(common: &Common, conf: &str) -> Result<(), Refusal> {
    let setup = set_up(common, conf)?;
    let workload = load(common)?;
    let fit = fit::fit(&workload, &setup).map_err(|error| stopped(common, &workload, &error))?;
    let text = summary::fit(&name(common), &setup, conf, &fit);
    if fit.memory_bytes.is_none() {
        return Err(Refusal(format!("{}; --memory gives it more", text.trim_end())));
    }
    if common.json { print(&json::fit(&fit)) } else { print_text(&text) }
}

fn bench_command(
    common: &Common,
    conf: &str,
    (repeat, threads): (u64, u64),
    history: Option<usize>,
) -> Result<(), Refusal> {
    let setup = set_up(common, conf)?;
    let workload = load(common)?;
    let measured = bench::bench(&workload, &setup, repeat, threads, history)?;
    print(&json::measured(&measured))
}

fn snapshot_command(
    common: &Common,
    conf: &str,
    output: &Path,
    to: Option<Format>,
) -> Result<(), Refusal> {
    let setup = set_up(common, conf)?;
    let Some(format) = to.or_else(|| Format::of_path(output)) else {
        return Err(Refusal(format!(
            "{}: the name does not say the format; --to does",
            output.display()
        )));
    };
    let converted = convert(&common.file, output, format, common.device, &setup)?;
    if converted.unkept_values > 0 {
        let (file, count) = (common.file.display(), converted.unkept_values);
        eprintln!("larder: {file}: {count} values of a kind that is not kept were left out");
    }
    Ok(())
}

fn soak_command(
    seed: u64,
    threads: usize,
    steps: usize,
    (scripts, seconds): (u64, Option<u64>),
) -> Result<(), Refusal> {
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let bar = Progress::steps("soaking", if end.is_some() { 0 } else { scripts });
    let (mut done, mut runs) = (0, 0);
    while end.map_or(done < scripts, |end| Instant::now() < end) {
        let seed = seed.wrapping_add(done);
        runs += if threads > 1 {
            soak::concurrent::run(seed, threads, steps)
                .map_err(|failure| Refusal(failure.to_string()))?;
            1
        } else {
            soak_alone(seed, steps)?
        };
        done += 1;
        bar.step();
    }
    bar.finish();
    let what = match threads {
        1 => format!("{runs} scripts of {steps} steps"),
        _ => format!("{runs} runs of {threads} threads, {steps} steps each,"),
    };
    print_text(&format!("{what} from seed {seed}: every check held\n"))
}

/// Runs the script of a seed; how many that came to.
fn soak_alone(seed: u64, steps: usize) -> Result<u64, Refusal> {
    let soak = |seed| soak::run(seed, steps).map_err(|failure| Refusal(failure.to_string()));
    soak(seed)?;
    // A seed without faults is run against the naive model alone; its sibling meets them.
    if seed & soak::FAULTS_BIT != 0 {
        return Ok(1);
    }
    soak(seed | soak::FAULTS_BIT)?;
    Ok(2)
}

fn print(value: &impl Display) -> Result<(), Refusal> {
    print_text(&format!("{value}\n"))
}

/// Writes to standard output. A reader that has seen enough, such as `head`, is no failure.
fn print_text(text: &str) -> Result<(), Refusal> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
