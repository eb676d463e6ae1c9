//! Tight: what the policy of that name makes of recorded programs, beside the others.

use std::path::{Path, PathBuf};

use serde_json::Value;
use xshell::cmd;

use super::figures;
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
const HEADINGS: &str = "program,torch-2.11,expandable,larder,tight,ms/GiB,runs in 1.01,calls of 6 \
passes,\
                        ×8,×8 ms/GiB,×8 first touch,×32,×32 ms/GiB,×32 first touch,3 % off";

/// What `larder replay` says of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    active_bytes: f64,
    reserved_bytes: f64,
    ooms: u64,
    driver_ns: f64,
    /// The pages that were made.
    created: f64,
}

impl Run {
    /// Reads the object that it prints.
    fn read(printed: &str) -> Option<Self> {
        Some(Self {
            active_bytes: number(printed, "active_bytes.all.peak")?,
            reserved_bytes: number(printed, "reserved_bytes.all.peak")?,
            ooms: number(printed, "ooms")? as u64,
            driver_ns: number(printed, "driver.ns")?,
            created: number(printed, "device.create")?,
        })
    }

    fn ratio(self) -> f64 {
        self.reserved_bytes / self.active_bytes
    }

    /// The ratio as it stands in the table, with what else there is to know.
    fn cell(self) -> String {
        match self.ooms {
            0 => format!("{:.4}", self.ratio()),
            ooms => format!("{:.4} ({ooms} out of memory)", self.ratio()),
        }
    }

    /// The driver's milliseconds for each GiB held at the peak, of those that bring new pages.
    fn first_touch_ms_per_gib(self) -> String {
        let gib = self.reserved_bytes / (1_u64 << 30) as f64;
        format!("{:.1}", self.created * PAGE_MS / gib)
    }

    /// The driver's milliseconds for each GiB held at the peak.
    fn ms_per_gib(self) -> String {
        let gib = self.reserved_bytes / (1_u64 << 30) as f64;
        format!("{:.1}", self.driver_ns / 1e6 / gib)
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
    fn replay(&self, policy: &str, memory: &str, more: &[&str]) -> Result<String, String> {
        let Self { repo, larder, file } = self;
        let words = ["--json", "--policy", policy, "--memory", memory];
        command::output(cmd!(repo.shell, "{larder} replay {file} {words...} {more...}"))
    }

    fn run(&self, policy: &str, memory: &str, more: &[&str]) -> Result<Run, String> {
        let printed = self.replay(policy, memory, more)?;
        Run::read(&printed).ok_or_else(|| format!("larder replay gives no figures: {printed}"))
    }

    fn tight(&self, more: &[&str]) -> Result<Run, String> {
        self.run("tight", MEMORY, more)
    }

    /// The whole row.
    fn measure(&self, name: &str) -> Result<Vec<String>, String> {
        let stock = self.run("torch-2.11", MEMORY, &[])?;
        let expandable = self.run("torch-2.11", MEMORY, &["--conf", "expandable_segments:True"])?;
        let larder = self.run("larder", MEMORY, &[])?;
        let tight = self.tight(&[])?;
        let room = format!("{}B", (tight.active_bytes * ROOM) as u64);
        let does_fit = self.run("tight", &room, &[])?.ooms == 0;
        let passes = self.replay("tight", MEMORY, &["--passes", &PASSES.to_string()])?;
        let mut cells = vec![name.to_owned()];
        cells.extend([stock, expandable, larder, tight].map(Run::cell));
        cells.push(tight.ms_per_gib());
        cells.push(if does_fit { "yes" } else { "no" }.to_owned());
        cells.push(calls(&passes).join(" "));
        for scale in SCALES {
            let large = self.tight(&["--scale", &scale.to_string()])?;
            cells.extend([large.cell(), large.ms_per_gib(), large.first_touch_ms_per_gib()]);
        }
        let mut ratios = Vec::new();
        for seed in 1..=JITTER_SEEDS {
            let jitter = format!("{JITTER_PERCENT}:{seed}");
            ratios.push(self.tight(&["--jitter", &jitter])?.ratio());
        }
        cells.push(spread(&ratios));
        Ok(cells)
    }
}

/// From the least to the most.
fn spread(ratios: &[f64]) -> String {
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    format!("{least:.4} to {most:.4}")
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
    let mut table = Table::new(&HEADINGS.split(',').collect::<Vec<_>>());
    for (index, file) in subjects.iter().enumerate() {
        let name = stem(file);
        eprintln!("==> {name}, {} of {}", index + 1, subjects.len());
        table.push(Subject { repo, larder: &larder, file }.measure(&name)?);
    }
    let traces = traces.map_or("", |_| " --traces DIR");
    figures::write(repo, "tight", &format!("cargo xtask tight{traces}"), &table)?;
    print!("{}", table.plain());
    Ok(())
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
        assert_eq!((run.cell().as_str(), run.ms_per_gib().as_str()), ("2.0000", "2.5"));
        assert_eq!(run.first_touch_ms_per_gib(), "2.6");
        let failed = Run { ooms: 2, ..run };
        assert_eq!(failed.cell(), "2.0000 (2 out of memory)");
        assert_eq!(Run::read("{\"ooms\":0}"), None);
    }

    #[test]
    fn the_calls_of_passes_are_read_in_order() {
        let printed = r#"{"driver.calls":12,"passes":[{"driver_calls":9},{"driver_calls":3}]}"#;
        assert_eq!(calls(printed), ["9", "3"]);
        assert!(calls("{}").is_empty());
        assert_eq!(spread(&[1.01, 1.002, 1.0155]), "1.0020 to 1.0155");
    }

    #[test]
    fn every_heading_has_its_cell() {
        // A name, four ratios, a cost, an answer, the calls, three cells for each scale, a spread.
        assert_eq!(HEADINGS.split(',').count(), 1 + 4 + 1 + 1 + 1 + 3 * SCALES.len() + 1);
    }
}
