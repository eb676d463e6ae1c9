//! The supervisor: runs each part in a process of its own, with a limit, and prints the table.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::figures::{Figures, out_folder};
use crate::parts::Part;
use crate::rig::Explain;

/// The mark of the line that says what came of a part.
pub(crate) const RESULT: &str = "RESULT ";

/// Runs the parts one after the other, whatever comes of each, and prints the table last.
pub(crate) fn run(parts: &[&Part], short: bool, times: u32) -> Result<ExitCode, String> {
    let folder = out_folder();
    fs::create_dir_all(&folder).or_say("the folder of results")?;
    let log = folder.join("proof.log");
    File::create(&log).or_say("the log")?;
    let machine = machine();
    eprintln!("{machine}");
    let mut figures = Figures::new("table", &["part", "result", "seconds", "figures"]);
    let mut failed = 0;
    for part in parts {
        let begin = Instant::now();
        let outcome = supervise(part, (short, times), &log);
        let (result, said) = match &outcome {
            Ok(said) => ("passed", said),
            Err(said) => ("FAILED", said),
        };
        failed += u32::from(outcome.is_err());
        let seconds = format!("{:.1}", begin.elapsed().as_secs_f64());
        eprintln!("{}: {result} in {seconds} s: {said}", part.name);
        figures.row(&[part.name.to_owned(), result.to_owned(), seconds, said.replace('|', "/")]);
    }
    let table = format!("{machine}\n\n{}", figures.text());
    fs::write(folder.join("table.md"), &table).or_say("the table")?;
    println!("\n{table}");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one part to its end, or to its limit.
fn supervise(
    part: &Part,
    (short, times): (bool, u32),
    log: &std::path::Path,
) -> Result<String, String> {
    let log = OpenOptions::new().append(true).open(log).or_say("the log")?;
    let mut command = Command::new(env::current_exe().or_say("this program")?);
    command.args(["part", part.name]).args(short.then_some("--short"));
    command.args(["--times", &times.to_string()]);
    command.env("CUDA_MODULE_LOADING", if part.loads_eagerly() { "EAGER" } else { "LAZY" });
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::from(log));
    let mut child = command.spawn().or_say("starting the part")?;
    let limit_s = part.limit_s * u64::from(times);
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    let status = loop {
        if let Some(status) = child.try_wait().or_say("waiting for the part")? {
            break status;
        }
        if Instant::now() >= deadline {
            // This very process started it, and nobody has waited for it yet.
            child.kill().or_say("ending the part")?;
            child.wait().or_say("waiting for the part")?;
            return Err(format!("not done after {limit_s} s; see proof.log"));
        }
        thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut said).or_say("reading the part's words")?;
    }
    let result = said.lines().find_map(|line| line.strip_prefix(RESULT)).map(str::to_owned);
    match (status.success(), result) {
        (true, Some(result)) => Ok(result),
        (false, Some(result)) => Err(result),
        (_, None) => Err(format!("{status}, with no result; see proof.log")),
    }
}

/// When and on what this runs.
fn machine() -> String {
    let ask = |program: &str, arguments: &[&str]| -> String {
        let output = Command::new(program).args(arguments).output();
        let said = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        said.ok()
            .filter(|said| !said.is_empty())
            .unwrap_or_else(|| format!("{program} is not there"))
    };
    let card = ask(
        "nvidia-smi",
        &["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
    );
    let version = larder_cuda::driver::is_present()
        .then(|| larder_cuda::driver::version().ok())
        .flatten()
        .map_or("no CUDA".to_owned(), |version| {
            format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
        });
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let date = ask("date", &["-u", "+%Y-%m-%d %H:%M UTC"]);
    format!("{date}; {card}; {version}; {cores} cores")
}
