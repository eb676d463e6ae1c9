//! The page of `larder report`, measured in a browser: how long until it shows something, and how it moves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::machine::Machine;
use super::table::Table;
use super::tight::with_section;
use super::workload::write;
use super::{GROW, KEPT};
use crate::command;
use crate::page::Workshop;
use crate::programs;

/// The section of the page of benchmarks.
const HEADING: &str = "## A page";
/// The recording that is grown, and how often it is repeated: about a million events, and ten.
const RECORDING: &str = "workloads/gpt2_varlen.pickle.gz";
const GROWN: [(&str, u64); 2] = [("a million events", 6), ("ten million events", 59)];
const HEADINGS: [&str; 8] = [
    "recording",
    "events",
    "page",
    "made in",
    "first picture",
    "frames a second, panning half of it",
    "near the peak",
    "slowest frame",
];

/// Builds the program, grows the recordings, makes their pages, measures them and writes the section.
pub(crate) fn run(root: &Path, cargo: &Path, workshop: &Workshop) -> Result<(), String> {
    let target = &workshop.target;
    programs::build(root, cargo, target, &["-p", "larder-cli", "--bin", "larder"])?;
    programs::build(root, cargo, target, &["-p", "larder-study", "--example", GROW])?;
    let folder = target.join("page");
    let mut table = Table::new(&HEADINGS);
    table.push(measure(workshop, "gpt2_varlen", &root.join(RECORDING), &folder)?);
    for (name, laps) in GROWN {
        let grown = folder.join("grown.pickle");
        let mut grow = Command::new(target.join("release/examples").join(GROW));
        eprintln!("==> growing {name}");
        command::run(grow.arg(root.join(RECORDING)).arg(&grown).arg(laps.to_string()))?;
        let cells = measure(workshop, name, &grown, &folder);
        let _ = fs::remove_file(&grown);
        table.push(cells?);
    }
    let page = root.join("docs/benchmarks.md");
    let old = fs::read_to_string(&page).unwrap_or_default();
    let section = section(&Machine::read(), &table);
    write(&page, &with_section(&old, HEADING, &KEPT[1..], &section))?;
    print!("{}", table.plain());
    Ok(())
}

fn section(machine: &Machine, table: &Table) -> String {
    let Machine { date, cpu, cores, compiler } = machine;
    format!(
        "{HEADING}\n\n{date}, {cpu}, {cores} cores, {compiler}. What `larder report --no-compare` makes of a \
         recording, opened in Chromium, headless and\nwithout a graphics card: the time from the beginning \
         of the navigation to the first frame with the bands in it,\nthe median of three; and the frames a \
         second while the chart is dragged from side to side, with half of the run on the\nscreen and with a \
         twentieth of it, and the longest time between two frames in either. The larger recordings are \
         gpt2_varlen, many\ntimes over. Measured by `cargo xtask page --measure`.\n\n{}",
        table.markdown()
    )
}

/// Makes the page of a recording and measures it: the cells of a line.
fn measure(
    workshop: &Workshop,
    name: &str,
    file: &Path,
    folder: &Path,
) -> Result<Vec<String>, String> {
    let page: PathBuf = folder.join("measured.html");
    eprintln!("==> the page of {name}");
    let start = Instant::now();
    let mut larder = Command::new(workshop.target.join("release/larder"));
    larder.arg("report").arg(file).args(["--no-compare", "-o"]).arg(&page);
    command::run(&mut larder)?;
    let made = start.elapsed().as_secs_f64();
    let mut node = workshop.in_browser()?;
    let output = node.arg("tests/measure.mjs").arg(&page).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("node: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> =
        printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [first, wide, wide_slowest, near, near_slowest] = numbers[..] else {
        return Err(format!("measure.mjs printed {printed}"));
    };
    let text = fs::read_to_string(&page).map_err(|error| error.to_string())?;
    let _ = fs::remove_file(&page);
    Ok(vec![
        name.to_owned(),
        events(&text).ok_or("the page does not say its events")?.to_string(),
        format!("{:.1} MB", text.len() as f64 / 1e6),
        format!("{made:.1} s"),
        format!("{first:.0} ms"),
        format!("{wide:.0}"),
        format!("{near:.0}"),
        format!("{:.0} ms", wide_slowest.max(near_slowest)),
    ])
}

/// How many events the facts of a page name.
fn events(page: &str) -> Option<u64> {
    let (_, behind) = page.split_once("\"events\":")?;
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_are_read_off_the_page() {
        assert_eq!(events("{\"driver\":\"1\",\"events\":1048576,\"x\":2}"), Some(1_048_576));
        assert_eq!(events("{}"), None);
    }
}
