//! Reading and replaying: how long `larder replay` takes, and how much memory a large file needs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::timing::median;
use super::workload::{VARLEN, Workload};
use crate::command;
use crate::programs::Programs;

/// How large the large snapshot is, at least.
const LARGE_BYTES: u64 = 1_000_000_000;

/// How often the peak of a process is looked up.
const POLL: Duration = Duration::from_millis(2);

/// What replaying a recording took.
pub(super) struct Replayed {
    pub(super) name: String,
    pub(super) operations: u64,
    /// The replay alone, as the program prints it.
    pub(super) replay_ms: f64,
    /// The whole command: the file is read and unpacked too.
    pub(super) whole_ms: f64,
}

/// What a large snapshot took.
pub(super) struct Large {
    pub(super) file_bytes: u64,
    pub(super) operations: u64,
    pub(super) replay_ms: f64,
    pub(super) whole_ms: f64,
    pub(super) peak_bytes: u64,
}

/// Replays each recording as often as there are rounds.
pub(super) fn replay(
    programs: &Programs,
    workloads: &[&Workload],
    rounds: u64,
) -> Result<Vec<Replayed>, String> {
    let replayed = workloads.iter().map(|workload| {
        eprintln!("==> replay of {}", workload.name);
        let (mut replay_ms, mut whole_ms) = (Vec::new(), Vec::new());
        let mut operations = 0;
        for _ in 0..rounds {
            let done = watch(programs, &workload.file)?;
            operations = done.operations;
            replay_ms.push(done.replay_ms);
            whole_ms.push(done.whole_ms);
        }
        Ok(Replayed {
            name: workload.name.clone(),
            operations,
            replay_ms: median(&replay_ms).unwrap_or(0.0),
            whole_ms: median(&whole_ms).unwrap_or(0.0),
        })
    });
    replayed.collect()
}

/// Makes a large snapshot in the folder, replays it once and removes it.
pub(super) fn replay_large(
    programs: &Programs,
    grow_snapshot: &Path,
    workloads: &[Workload],
    folder: &Path,
) -> Result<Large, String> {
    let Some(recording) = workloads.iter().find(|workload| workload.name == VARLEN) else {
        return Err(format!("there is no recording {VARLEN} to make a large one of"));
    };
    let file = folder.join("large.pickle");
    let result = grow(grow_snapshot, &recording.file, &file).and_then(|()| {
        eprintln!("==> replay of it");
        watch(programs, &file)
    });
    let file_bytes = size_bytes(&file);
    // Also when something failed: nobody else would remove a gigabyte.
    let _ = fs::remove_file(&file);
    let Watched { operations, replay_ms, whole_ms, peak_bytes } = result?;
    Ok(Large { file_bytes: file_bytes?, operations, replay_ms, whole_ms, peak_bytes })
}

fn grow(grow_snapshot: &Path, from: &Path, to: &Path) -> Result<(), String> {
    let write = |laps: u64| {
        command::run(Command::new(grow_snapshot).arg(from).arg(to).arg(laps.to_string()))
    };
    write(1)?;
    let lap_bytes = size_bytes(to)?.max(1);
    let laps = LARGE_BYTES.div_ceil(lap_bytes);
    eprintln!("==> a snapshot of 1 GB: {laps} laps of {lap_bytes} bytes");
    write(laps)
}

fn size_bytes(file: &Path) -> Result<u64, String> {
    fs::metadata(file)
        .map(|facts| facts.len())
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// What was seen of a run.
struct Watched {
    operations: u64,
    replay_ms: f64,
    whole_ms: f64,
    peak_bytes: u64,
}

/// Replays a file and looks up the process's peak until it ends. The kernel keeps the peak, so only
/// what is allocated in the last moment can be missed.
fn watch(programs: &Programs, file: &Path) -> Result<Watched, String> {
    let begin = Instant::now();
    let mut child = Command::new(&programs.larder)
        .arg("replay")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("larder: {error}"))?;
    let status_file = format!("/proc/{}/status", child.id());
    let mut peak_bytes = 0;
    let ended = loop {
        let status = fs::read_to_string(&status_file).unwrap_or_default();
        peak_bytes = peak(&status).unwrap_or(peak_bytes);
        match child.try_wait() {
            Ok(None) => thread::sleep(POLL),
            Ok(Some(_)) => break begin.elapsed(),
            Err(error) => return Err(format!("larder: {error}")),
        }
    };
    let output = child.wait_with_output().map_err(|error| format!("larder: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let (operations, replay_ms) = first_line(&printed)
        .ok_or_else(|| format!("`larder replay` printed no time: {}", output.status))?;
    Ok(Watched { operations, replay_ms, whole_ms: ended.as_secs_f64() * 1e3, peak_bytes })
}

/// The operations and the milliseconds of `NAME: N operations in T ms (…)`.
fn first_line(printed: &str) -> Option<(u64, f64)> {
    let (_, rest) = printed.lines().next()?.rsplit_once(": ")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    match words[..] {
        [operations, _, "in", ms, "ms", ..] => Some((operations.parse().ok()?, ms.parse().ok()?)),
        _ => None,
    }
}

/// The most memory that a process has held, from what the kernel says of it.
fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_how_long_it_took() {
        let printed = "a.pickle: 411674 operations in 35.2 ms (85 ns each)\npolicy larder\n";
        assert_eq!(first_line(printed), Some((411_674, 35.2)));
        assert_eq!(first_line("a.ops: 1 operation in 0.0 ms (9 ns each)\n"), Some((1, 0.0)));
        assert_eq!(first_line("larder: no such file\n"), None);
        assert_eq!(first_line(""), None);
    }

    #[test]
    fn the_peak_is_read() {
        assert_eq!(peak("VmPeak:\t  9 kB\nVmHWM:\t   2048 kB\n"), Some(2 << 20));
        assert_eq!(peak("State:\tZ (zombie)\n"), None);
    }
}
