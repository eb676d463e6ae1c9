//! The page of `larder report`, measured in a browser: how long until it shows something, and how
//! it moves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::machine;
use super::table::Table;
use crate::command;
use crate::docs::{self, BENCHMARKS};
use crate::file;
use crate::page::Workshop;
use crate::programs;

/// The example that makes a large snapshot out of a small one.
const GROW: &str = "grow_snapshot";
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

/// Builds the program, grows the recordings, makes their pages, measures them and writes the
/// section.
pub(crate) fn run(root: &Path, cargo: &Path) -> Result<(), String> {
    let workshop = &Workshop::open(root)?;
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
    let text = format!("{}\n\n{}", machine::line("cargo xtask page --measure"), table.markdown());
    docs::write(root, BENCHMARKS, "page", &text)?;
    print!("{}", table.plain());
    Ok(())
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
    let printed = command::output(node.arg("tests/measure.mjs").arg(&page))?;
    let numbers: Vec<f64> =
        printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [first, wide, wide_slowest, near, near_slowest] = numbers[..] else {
        return Err(format!("measure.mjs printed {printed}"));
    };
    let text = file::read(&page)?;
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
    page.split_once("\"events\":")?.1.split([',', '}']).next()?.parse().ok()
}
