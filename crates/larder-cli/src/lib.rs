//! The program `larder`, as a function, so that whoever brings it along in another shape runs the
//! same.
#![forbid(unsafe_code)]

mod args;
mod diffing;
mod examples;
mod explaining;
mod fitting;
mod listing;
mod manual;
mod paper;
mod progress;
mod ranking;
mod report;
mod showing;
mod topping;
mod tuning;

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;

use args::{Cli, Command, Common, History, Run};
use clap::Parser;
use larder_core::config::{Backend, Config, ConfigError};
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Policy};
use larder_sim::script::Script;
use larder_study::bench::BenchOptions;
use larder_study::compare;
use larder_study::convert::{Format, convert};
use larder_study::file::{Contents, STANDARD, Snapshot};
use larder_study::question::{PoseError, Posed, Question};
use larder_study::ranks::{self, Idea};
use larder_study::replay::{DEFAULT_MEMORY_BYTES, Replay, ReplayError, Setup};
use larder_study::report::answer::{Commands, answer};
use larder_study::report::quote::quoted;
use larder_study::report::visible::{visible, visible_name};
use larder_study::report::{json, summary};
use larder_study::settings::Chosen;
use larder_study::sizes::Sizes;
use larder_study::workload::{Addresses, Workload};
use larder_study::{bench, fidelity};
use listing::{Notes, Wishes};
use progress::Bars;
use ranking::Asked;

/// Why a command ended without its answer: one sentence for standard error, and the exit code.
enum Refusal {
    /// The input is bad, or a check failed.
    Input(String),
    /// The command was not used as it is meant to be.
    Usage(String),
    /// It has its answer, and the exit code says which.
    Answer(u8),
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal::Input(error.to_string())
    }
}

/// Does what a command line asks for, the program's own name first, and gives the exit code. What
/// it says goes to standard output and standard error.
pub fn perform(words: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(answer) => {
            // Help and the version are answers too. A reader that has seen enough is no failure.
            let _ = answer.print();
            return u8::try_from(answer.exit_code()).unwrap_or(2);
        }
    };
    paper::measure();
    let (sentence, code) = match run(cli.command) {
        Ok(()) => return 0,
        Err(Refusal::Input(sentence)) => (sentence, 1),
        Err(Refusal::Usage(sentence)) => (sentence, 2),
        Err(Refusal::Answer(code)) => return code,
    };
    eprintln!("larder: {}", visible(&sentence));
    code
}

fn run(command: Command) -> Result<(), Refusal> {
    match command {
        Command::Replay { common, conf, change, course, placements, history } => {
            ranking::refuse_many(&common)?;
            let course = (change.sizes(), course.passes);
            replay(&common, conf.conf.as_deref(), course, placements.as_deref(), &history)
        }
        Command::Compare { common, change, confs } if ranking::is_many(&common) => {
            let ideas = compared_ideas(&common, &confs)?;
            ranking::many(&common, Some(""), change.sizes(), Asked::Compare, ideas)
        }
        Command::Compare { common, change, confs } => compare(&common, change.sizes(), &confs),
        Command::Show { common, conf, change, at } if ranking::is_many(&common) => {
            refuse_with_many("--at", at.is_some())?;
            let (conf, sizes) = (conf.conf.as_deref(), change.sizes());
            ranking::many(&common, conf, sizes, Asked::Show, Vec::new())
        }
        Command::Explain { common, conf, change, failure } if ranking::is_many(&common) => {
            refuse_with_many("--failure", failure.is_some())?;
            let (conf, sizes) = (conf.conf.as_deref(), change.sizes());
            ranking::many(&common, conf, sizes, Asked::Explain, ranks::ideas())
        }
        Command::Fit { common, conf, change, course, cards } if ranking::is_many(&common) => {
            common.room.refuse_part("fit says how much memory it needs, whatever was recorded")?;
            refuse_with_many("--cards", !cards.is_empty())?;
            refuse_with_many("--passes", course.passes != 1)?;
            let (conf, sizes) = (conf.conf.as_deref(), change.sizes());
            ranking::many(&common, conf, sizes, Asked::Fit, Vec::new())
        }
        Command::Show { common, conf, change, at } => {
            showing::show(&common, conf.conf.as_deref(), change.sizes(), at)
        }
        Command::Explain { common, conf, change, failure } => {
            explaining::explain(&common, conf.conf.as_deref(), change.sizes(), failure)
        }
        Command::Fit { common, conf, change, course, cards } => {
            let course = (change.sizes(), course.passes);
            fitting::fit_command(&common, conf.conf.as_deref(), course, &cards)
        }
        Command::Tune { common, change, seconds } => {
            ranking::refuse_many(&common)?;
            tuning::tune_command(&common, change.sizes(), seconds)
        }
        Command::Top { source, every, once } => topping::top(&source, every, once),
        Command::Bench { common, conf, repeat, threads, history, between } => {
            ranking::refuse_many(&common)?;
            let between_bytes = between.map_or(0, |kib| kib << 10);
            let options = BenchOptions { repeat, threads, history, between_bytes };
            bench_command(&common, conf.conf.as_deref(), options)
        }
        Command::Snapshot { file, run, device, output, to } => {
            snapshot_command(&file, &run, device, &output, to)
        }
        Command::Report(asked) => report::report(&asked),
        Command::Diff { before, after, grew_by, device, json } => {
            diffing::diff((&before, &after), device, grew_by, json)
        }
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { command } => manual::man(command.as_deref()),
    }
}

/// What a command is to run, and on what.
struct Task {
    workload: Workload,
    /// The snapshot that it was made from, for its stacks and times.
    snapshot: Option<Box<Snapshot>>,
    settings: Chosen,
    setup: Setup,
}

fn set_up(common: &Common, conf: Option<&str>, sizes: Sizes) -> Result<Task, Refusal> {
    set_up_by(common, conf, sizes, Question::pose)
}

/// Settings are read before the file: they are quicker to mend. `pose` fills in what the question
/// leaves open.
fn set_up_by(
    common: &Common,
    conf: Option<&str>,
    sizes: Sizes,
    pose: impl Fn(&Question, &Workload) -> Result<Posed, PoseError>,
) -> Result<Task, Refusal> {
    let question = chosen(common, conf)?;
    if common.addresses == Some(Addresses::Recorded) && !sizes.is_same() {
        return Err(Refusal::Usage(
            "--addresses recorded: segments have those addresses where they have the recorded \
             sizes, and --scale and --jitter change the sizes"
                .to_owned(),
        ));
    }
    let (mut workload, snapshot) = load(common)?;
    workload.resize(sizes);
    let posed = pose(&question, &workload).map_err(|error| unposed(common, &workload, &error))?;
    let Posed { setup, settings } = posed;
    check_known(&settings, &setup.policy)?;
    Ok(Task { workload, snapshot, settings, setup })
}

/// What is asked, with these settings.
fn chosen(common: &Common, conf: Option<&str>) -> Result<Question, Refusal> {
    let given = conf.map(|conf| Ok::<_, Refusal>(Chosen::given(conf, read_conf(conf)?)));
    let question = common.question(given.transpose()?);
    question.check().map_err(|error| Refusal::Usage(error.to_string()))?;
    Ok(question)
}

/// Refuses an option that is for one recording where many were named.
fn refuse_with_many(option: &str, is_given: bool) -> Result<(), Refusal> {
    if is_given {
        return Err(Refusal::Usage(format!("{option} is for one recording, and many were named")));
    }
    Ok(())
}

/// The settings under which all ranks are compared: those that were given, or the usual ones.
fn compared_ideas(common: &Common, confs: &[String]) -> Result<Vec<Idea>, Refusal> {
    let given = confs.iter().map(|conf| Ok((conf.clone(), read_conf(conf)?)));
    let given = given.collect::<Result<Vec<_>, Refusal>>()?;
    let settings =
        if given.is_empty() { compare::usual_settings(common.policy.as_ref()) } else { given };
    let idea = |(conf, _): (String, Config)| Idea {
        words: if conf.is_empty() { "(default)".to_owned() } else { conf.clone() },
        conf: Some(conf),
        policy: None,
    };
    Ok(settings.into_iter().map(idea).collect())
}

/// Fails if settings are unknown to the PyTorch whose policy decides.
fn check_known(settings: &Chosen, policy: &Policy) -> Result<(), Refusal> {
    settings.check_known(policy).map_err(|error| Refusal::Usage(error.to_string()))
}

fn read_conf(conf: &str) -> Result<Config, Refusal> {
    let config = Config::parse(conf).map_err(|error| {
        Refusal::Usage(match error {
            ConfigError::UnknownKey { key } if key == "policy" => {
                "--conf: 'policy' is no setting here; who decides is said by --policy".to_owned()
            }
            error => format!("--conf: {error}"),
        })
    })?;
    if config.backend == Backend::CudaMallocAsync {
        return Err(Refusal::Usage(
            "--conf: backend:cudaMallocAsync is the driver's own allocator, which a simulated GPU \
             does not have"
                .to_owned(),
        ));
    }
    Ok(config)
}

fn load(common: &Common) -> Result<(Workload, Option<Box<Snapshot>>), Refusal> {
    let device = common.device.unwrap_or(0);
    let (workload, snapshot) = Workload::load_whole(&common.file, device, &Bars::default())?;
    let given =
        [("--device", common.device.is_some()), ("--addresses", common.addresses.is_some())];
    let option = given.into_iter().find_map(|(option, is_given)| is_given.then_some(option));
    if let Some(option) = option.filter(|_| workload.recording.is_none()) {
        let file = common.file.display();
        return Err(Refusal::Usage(format!(
            "{file}: {option} is for a snapshot, and this is a script"
        )));
    }
    if workload.ops.is_empty() {
        return Err(no_operation(&common.file));
    }
    Ok((workload, snapshot))
}

fn no_operation(file: &Path) -> Refusal {
    Refusal::Input(format!("{}: there is no operation in it", file.display()))
}

/// Refuses `-` where what is written is not what the command is for.
fn not_standard(option: &str, path: Option<&Path>) -> Result<(), Refusal> {
    if path != Some(Path::new(STANDARD)) {
        return Ok(());
    }
    Err(Refusal::Usage(format!(
        "{option}: standard output has the summary; give it a file of its own, or /dev/stderr"
    )))
}

/// The file's name as the reports show it.
fn name(common: &Common) -> String {
    let name = common.file.file_name().unwrap_or(common.file.as_os_str());
    visible_name(&name.to_string_lossy())
}

fn replay(
    common: &Common,
    conf: Option<&str>,
    (sizes, passes): (Sizes, u64),
    placements: Option<&Path>,
    history: &History,
) -> Result<(), Refusal> {
    not_standard("--placements", placements)?;
    not_standard("--history", history.out.as_deref())?;
    let Task { workload, settings, setup, .. } = set_up(common, conf, sizes)?;
    let replay = Replay::new(&workload, &setup);
    let mut notes = Notes::default();
    notes.placements = placements.map(|_| Vec::new());
    if history.out.is_some() {
        let skip = history.skip.iter().copied().collect();
        let (level, max_entries) = (history.level, history.max_entries);
        notes.list(replay.allocator(), &Wishes { level, max_entries, skip })?;
    }
    let outcome = replay
        .run_passes(&workload.ops, passes, &mut notes)
        .map_err(|error| stopped(common, &workload, &error))?;
    if let (Some(path), Some(placed)) = (placements, &notes.placements) {
        write_placements(path, placed)
            .map_err(|error| Refusal::Input(format!("{}: {error}", path.display())))?;
    }
    if let Some(path) = &history.out {
        std::fs::write(path, &notes.listed)
            .map_err(|error| Refusal::Input(format!("{}: {error}", path.display())))?;
    }
    if common.json {
        print(&json::outcome(&workload, &outcome))
    } else {
        let text = summary::outcome(
            &common.file.to_string_lossy(),
            &workload,
            &setup,
            &settings,
            &outcome,
        );
        print_text(&(text + &unlike(common, &workload)?))
    }
}

/// Says so if a replay goes another way than the recorded program.
fn unlike(common: &Common, workload: &Workload) -> Result<String, Refusal> {
    let found = fidelity::check(workload, common.addresses.unwrap_or_default())
        .map_err(|error| stopped(common, workload, &error))?;
    Ok(found.as_ref().map(summary::unlike).unwrap_or_default())
}

/// Written when the replay is done, so that a replay that stops leaves no half of it.
fn write_placements(path: &Path, placed: &[(u64, Addr)]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for (id, addr) in placed {
        writeln!(file, "{id} {:x}", addr.0)?;
    }
    file.flush()
}

/// The sentence for a question that cannot be put to a program.
fn unposed(common: &Common, workload: &Workload, error: &PoseError) -> Refusal {
    match error {
        PoseError::Replay(error) => stopped(common, workload, error),
        error => Refusal::Input(format!("{}: {error}", common.file.display())),
    }
}

/// The sentence for a replay that could not go on; a script's line is named.
fn stopped(common: &Common, workload: &Workload, error: &ReplayError) -> Refusal {
    let file = common.file.display();
    let line = match workload.recording {
        None if common.file != Path::new(STANDARD) => File::open(&common.file)
            .ok()
            .and_then(|script| Script::line_of(BufReader::new(script), error.index)),
        _ => None,
    };
    let sizes = &workload.sizes;
    let sizes = if sizes.is_same() { String::new() } else { format!("; sizes: {sizes}") };
    Refusal::Input(match line {
        Some(line) => format!("{file}: line {line}: {}: {}{sizes}", error.op, error.error),
        None => format!("{file}: {error}{sizes}"),
    })
}

/// A person who names no policy sees them all. A program gets the one that is the default
/// everywhere, which is the recorded one.
fn compare(common: &Common, sizes: Sizes, confs: &[String]) -> Result<(), Refusal> {
    // All are read before anything runs, so that a bad one costs nothing.
    let is_first = |&(index, conf): &(usize, &String)| !confs[..index].contains(conf);
    let confs = confs.iter().enumerate().filter(is_first);
    let settings = confs.map(|(_, conf)| Ok((conf.clone(), read_conf(conf)?)));
    let mut settings = settings.collect::<Result<Vec<_>, Refusal>>()?;
    let Task { workload, setup, .. } = set_up(common, Some(""), sizes)?;
    let is_named = common.policy.is_some() || common.json;
    let policy = is_named.then_some(&setup.policy);
    let is_usual = settings.is_empty();
    if is_usual {
        settings = compare::usual_settings(policy);
    }
    for (conf, config) in &settings {
        check_known(&Chosen::given(conf, config.clone()), &setup.policy)?;
    }
    let compared = compare::under(&workload, &setup, policy, &settings, is_usual, &Bars::default())
        .map_err(|error| stopped(common, &workload, &error))?;
    if common.json {
        let (setup, rows) = &compared[0];
        return print(&json::rows(&workload, setup, rows));
    }
    let text = match compared.as_slice() {
        [(setup, rows)] => summary::rows(&name(common), &workload, setup, rows),
        _ => summary::policies(&name(common), &workload, &compared),
    };
    let answer = answer(&commands(common, sizes), &compared);
    print_text(&(text + &answer + &unlike(common, &workload)?))
}

/// How the same program is asked about with other commands: with all that was said of it here.
fn commands(common: &Common, sizes: Sizes) -> Commands {
    let mut commands = Commands::of(&common.file.to_string_lossy());
    let jitter = sizes.jitter.map(|jitter| format!(" --jitter {}:{}", jitter.percent, jitter.seed));
    let words = [
        common.device.map(|device| format!(" --device {device}")),
        (common.addresses == Some(Addresses::Lowest)).then(|| " --addresses lowest".to_owned()),
        (sizes.scale != 1).then(|| format!(" --scale {}", sizes.scale)),
        jitter,
    ];
    let words: String = words.into_iter().flatten().collect();
    commands.fit.push_str(&words);
    commands.replay.push_str(&words);
    // A search goes as far as it has to.
    if let Some(memory_bytes) = common.room.memory {
        commands.replay.push_str(&format!(" --memory {}", capacity(memory_bytes)));
    }
    if let Some(card) = &common.room.card {
        commands.replay.push_str(&format!(" --card {}", capacity(card.total_bytes)));
    }
    if let Some(log) = &common.room.error {
        commands.replay.push_str(&format!(" --error {}", quoted(&log.file)));
    }
    if let Some(cap_bytes) = common.room.cap {
        commands.replay.push_str(&format!(" --cap {}", capacity(cap_bytes)));
    }
    commands
}

/// A number of bytes as `--memory` takes it.
fn capacity(memory_bytes: u64) -> String {
    let units = [(GIB, "GiB"), (MIB, "MiB")];
    let whole = units.into_iter().find(|(unit, _)| memory_bytes.is_multiple_of(*unit));
    match whole {
        Some((unit, name)) => format!("{}{name}", memory_bytes / unit),
        None => format!("{memory_bytes}B"),
    }
}

/// A person at a terminal gets a sentence, a program the object that it was promised.
fn bench_command(
    common: &Common,
    conf: Option<&str>,
    options: BenchOptions,
) -> Result<(), Refusal> {
    let conf = conf.unwrap_or_default();
    // It is Larder that is timed, unless a person says otherwise.
    let pose = |question: &Question, workload: &Workload| {
        let policy = Some(question.policy.clone().unwrap_or_default());
        Question { policy, ..question.clone() }.pose(workload)
    };
    let Task { workload, setup, .. } = set_up_by(common, Some(conf), Sizes::default(), pose)?;
    let measured = bench::bench(&workload, &setup, options)?;
    if common.json || !io::stdout().is_terminal() {
        print(&json::measured(&measured))
    } else {
        print_text(&summary::measured(&name(common), &measured))
    }
}

fn snapshot_command(
    file: &Path,
    run: &Run,
    device: Option<u32>,
    output: &Path,
    to: Option<Format>,
) -> Result<(), Refusal> {
    let setup = Setup {
        policy: run.policy.clone().unwrap_or_default(),
        config: read_conf(run.conf.as_deref().unwrap_or_default())?,
        memory_bytes: run.memory.unwrap_or(DEFAULT_MEMORY_BYTES),
        ..Setup::default()
    };
    let Some(format) = to.or_else(|| Format::of_path(output)) else {
        return Err(Refusal::Usage(format!(
            "{}: the name does not say the format; name it by --to",
            output.display()
        )));
    };
    if format == Format::Tape && output == Path::new(STANDARD) {
        let sentence = "a tape is written to a file, not to standard output";
        return Err(Refusal::Usage(sentence.to_owned()));
    }
    let contents = Contents::load(file, &Bars::default())?;
    refuse_idle_options(file, &contents, run, device, format)?;
    if matches!(&contents, Contents::Script(ops) if ops.is_empty()) {
        return Err(no_operation(file));
    }
    let device = device.unwrap_or(0);
    let converted = convert(file, contents, output, format, device, &setup)?;
    if converted.unkept_values > 0 {
        let (file, count) = (file.display(), converted.unkept_values);
        let left_out = format!("{file}: {count} values of a kind that is not kept were left out");
        eprintln!("larder: {}", visible(&left_out));
    }
    Ok(())
}

/// An option that could make no difference is a mistake of whoever gave it.
fn refuse_idle_options(
    file: &Path,
    contents: &Contents,
    run: &Run,
    device: Option<u32>,
    format: Format,
) -> Result<(), Refusal> {
    let given = [
        ("--policy", run.policy.is_some()),
        ("--conf", run.conf.is_some()),
        ("--memory", run.memory.is_some()),
    ];
    let option = given.into_iter().find_map(|(option, is_given)| is_given.then_some(option));
    let (is_script, file) = (matches!(contents, Contents::Script(_)), file.display());
    let is_run = is_script && format != Format::Ops;
    if let Some(option) = option.filter(|_| !is_run) {
        let reason = if is_script { "a script is copied as it is" } else { "it is no script" };
        return Err(Refusal::Usage(format!(
            "{file}: {option} is for a script that is run for its snapshot, and {reason}"
        )));
    }
    if device.is_some() && (is_script || format != Format::Ops) {
        return Err(Refusal::Usage(format!(
            "{file}: --device says which trace of a snapshot becomes a script, and this {}",
            if is_script { "is a script" } else { "takes all devices" }
        )));
    }
    Ok(())
}

fn print(value: &impl Display) -> Result<(), Refusal> {
    print_text(&format!("{value}\n"))
}

/// Writes to standard output, and shows what a name out of a file would tell a terminal to do.
fn print_text(text: &str) -> Result<(), Refusal> {
    print_painted(&paper::wrapped(&visible(text)))
}

/// Writes what has colours in it, in which all names have to be shown already. A reader that has
/// seen enough, such as `head`, is no failure.
fn print_painted(text: &str) -> Result<(), Refusal> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
