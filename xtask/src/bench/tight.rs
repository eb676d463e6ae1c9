//! Tight: what the policy of that name makes of recorded programs, beside the others.

use std::path::{Path, PathBuf};

use serde_json::Value;
use xshell::cmd;

use super::write;
use crate::command::{self, number};
use crate::repository::{Repository, is_script, recordings_in, stem};
use crate::table::Table;

/// How much memory the program is given, over what is in use at the peak.
const ROOM: f64 = 1.01;
const PASSES: u64 = 6;
const SCALES: [u64; 2] = [8, 32];
const JITTER_PERCENT: u64 = 3;
const JITTER_SEEDS: u64 = 10;
/// So much that nothing fails for want of it but where that is what is asked.
const MEMORY: &str = "16TiB";

/// What a new page costs: it is made, mapped, and access given to it, at the prices of the
/// simulated GPU.
const PAGE_MS: f64 = 0.0135 + 0.0018 + 0.036;

/// What is asked of one program.
const HEADINGS: &str = "program | torch-2.11 | expandable | larder | tight | ms/GiB | \
     runs in 1.01 | calls of 6 passes | ×8 | ×8 ms/GiB | ×8 first touch | \
     ×32 | ×32 ms/GiB | ×32 first touch | 3 % off";

/// What `larder replay` says of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    ratio: f64,
    ooms: u64,
    active_bytes: f64,
    /// The driver's milliseconds for each GiB held at the peak, and those that bring new pages.
    ms_per_gib: f64,
    first_touch_ms_per_gib: f64,
}

impl Run {
    /// Reads the object that it prints.
    fn read(printed: &str) -> Option<Self> {
        let figure = |key| number(printed, key);
        let (active_bytes, reserved_bytes) =
            (figure("active_bytes.all.peak")?, figure("reserved_bytes.all.peak")?);
        let gib = reserved_bytes / (1_u64 << 30) as f64;
        Some(Self {
            ratio: reserved_bytes / active_bytes,
            ooms: figure("ooms")? as u64,
            active_bytes,
            ms_per_gib: figure("driver.ns")? / 1e6 / gib,
            first_touch_ms_per_gib: figure("device.create")? * PAGE_MS / gib,
        })
    }

    /// The ratio as it stands in the table, with what else there is to know.
    fn cell(self) -> String {
        match self.ooms {
            0 => format!("{:.4}", self.ratio),
            ooms => format!("{:.4} ({ooms} out of memory)", self.ratio),
        }
    }
}

/// The calls of each pass, out of what `larder replay --passes` prints.
fn calls(printed: &str) -> Vec<String> {
    let all: Value = serde_json::from_str(printed).unwrap_or_default();
    let passes = all["passes"].as_array().into_iter().flatten();
    passes.map(|pass| pass["driver_calls"].to_string()).collect()
}

/// The program `larder`, and a recording for it.
struct Subject<'a> {
    repo: &'a Repository,
    larder: &'a Path,
    file: &'a Path,
}

impl Subject<'_> {
    /// Replays it under a policy, with other words for `larder replay`.
    fn replay(&self, policy: &str, memory: &str, words: &str) -> Result<String, String> {
        let (Self { repo, larder, file }, words) = (self, words.split_whitespace());
        command::output(cmd!(
            repo.shell,
            "{larder} replay {file} --json --policy {policy} --memory {memory} {words...}"
        ))
    }

    fn run_in(&self, policy: &str, memory: &str, words: &str) -> Result<Run, String> {
        let printed = self.replay(policy, memory, words)?;
        Run::read(&printed).ok_or_else(|| format!("larder replay gives no figures: {printed}"))
    }

    fn run(&self, policy: &str, words: &str) -> Result<Run, String> {
        self.run_in(policy, MEMORY, words)
    }

    /// The whole row.
    fn measure(&self, name: &str) -> Result<Vec<String>, String> {
        let expandable = self.run("torch-2.11", "--conf expandable_segments:True")?;
        let tight = self.run("tight", "")?;
        let room = format!("{}B", (tight.active_bytes * ROOM) as u64);
        let in_room = self.run_in("tight", &room, "")?;
        let passes = self.replay("tight", MEMORY, &format!("--passes {PASSES}"))?;
        let others = [self.run("torch-2.11", "")?, expandable, self.run("larder", "")?, tight];
        let mut cells = vec![name.to_owned()];
        cells.extend(others.map(Run::cell));
        cells.push(format!("{:.1}", tight.ms_per_gib));
        cells.push(if in_room.ooms == 0 { "yes" } else { "no" }.to_owned());
        cells.push(calls(&passes).join(" "));
        for scale in SCALES {
            let large = self.run("tight", &format!("--scale {scale}"))?;
            cells.push(large.cell());
            let costs = [large.ms_per_gib, large.first_touch_ms_per_gib];
            cells.extend(costs.map(|ms| format!("{ms:.1}")));
        }
        let jitter = |seed| self.run("tight", &format!("--jitter {JITTER_PERCENT}:{seed}"));
        let mut ratios = (1..=JITTER_SEEDS)
            .map(|seed| Ok(jitter(seed)?.ratio))
            .collect::<Result<Vec<_>, String>>()?;
        ratios.sort_by(f64::total_cmp);
        let [least, .., most] = ratios[..] else { return Err("nothing was measured".to_owned()) };
        cells.push(format!("{least:.4} to {most:.4}"));
        Ok(cells)
    }
}

/// Builds the program, measures, writes the section of the page and prints the table.
pub(crate) fn run(repo: &Repository, traces: Option<&Path>) -> Result<(), String> {
    eprintln!("==> building larder");
    let larder = repo.larder()?;
    let mut files =
        traces.map_or_else(|| repo.recordings(), |folder| recordings_in(&[folder.to_owned()]));
    files.retain(|file| !is_script(file));
    files.sort_by_key(|file| stem(file));
    let subjects = distinct(repo, &larder, files)?;
    if subjects.is_empty() {
        return Err("there is no recording; `--traces` names a folder with some".to_owned());
    }
    let mut table = Table::new(HEADINGS, 1);
    for (index, file) in subjects.iter().enumerate() {
        let name = stem(file);
        eprintln!("==> {name}, {} of {}", index + 1, subjects.len());
        table.push(&Subject { repo, larder: &larder, file }.measure(&name)?);
    }
    let traces = traces.map_or("", |_| " --traces DIR");
    let table = table.markdown();
    print!("{table}");
    write(repo, "tight", &format!("cargo xtask tight{traces}"), &table)
}

/// A program that was recorded or stored twice is taken once.
fn distinct(
    repo: &Repository,
    larder: &Path,
    mut files: Vec<PathBuf>,
) -> Result<Vec<PathBuf>, String> {
    let mut seen = Vec::new();
    for file in &files {
        let script = cmd!(repo.shell, "{larder} snapshot {file} -o - --to ops");
        seen.push(command::output(script)?);
    }
    let mut at = 0..;
    files.retain(|_| at.next().is_some_and(|at| !seen[..at].contains(&seen[at])));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replay_prints_is_read() {
        let printed = "{\"active_bytes.all.peak\":1073741824,\"driver.ns\":5000000,\"num_ooms\":7,\
                       \"ooms\":0,\"reserved_bytes.all.peak\":2147483648,\"device.create\":100}";
        let run = Run::read(printed).expect("all figures are there");
        assert_eq!((run.cell().as_str(), run.ms_per_gib), ("2.0000", 2.5));
        assert_eq!(format!("{:.1}", run.first_touch_ms_per_gib), "2.6");
        let failed = Run { ooms: 2, ..run };
        assert_eq!(failed.cell(), "2.0000 (2 out of memory)");
        assert_eq!(Run::read("{\"ooms\":0}"), None);
    }

    #[test]
    fn the_calls_of_passes_are_read_in_order() {
        let printed = r#"{"driver.calls":12,"passes":[{"driver_calls":9},{"driver_calls":3}]}"#;
        assert_eq!(calls(printed), ["9", "3"]);
        assert!(calls("{}").is_empty());
    }
}
