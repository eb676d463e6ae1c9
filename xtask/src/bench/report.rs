//! The page of `larder report`, measured in a browser: how long until it shows something, and how
//! it moves.

use std::fs;
use std::path::Path;
use std::time::Instant;

use xshell::cmd;

use super::write;
use crate::page::Workshop;
use crate::repository::Repository;
use crate::table::Table;
use crate::{command, file};

/// The recording that is grown, and how often it is repeated: about a million events, and ten.
const RECORDING: &str = "workloads/gpt2_varlen.pickle.gz";
const GROWN: [(&str, u64); 2] = [("a million events", 6), ("ten million events", 59)];
const HEADINGS: &str = "recording | events | page | made in | first picture | \
     frames a second, panning half of it | near the peak | slowest frame";

/// Builds the program, grows the recordings, makes their pages, measures them and writes the
/// section.
pub(crate) fn run(repo: &Repository) -> Result<(), String> {
    let workshop = &Workshop::open(repo)?;
    // It makes a large snapshot out of a small one.
    let grow = repo.example("larder-study", "grow_snapshot")?;
    let grown = &workshop.scratch.join("grown.pickle");
    let mut table = Table::new(HEADINGS, 1);
    table.push(&measure(repo, workshop, "gpt2_varlen", RECORDING.as_ref())?);
    for (name, laps) in GROWN {
        eprintln!("==> growing {name}");
        let laps = laps.to_string();
        command::run(cmd!(repo.shell, "{grow} {RECORDING} {grown} {laps}"))?;
        let cells = measure(repo, workshop, name, grown);
        let _ = fs::remove_file(grown);
        table.push(&cells?);
    }
    let table = table.markdown();
    print!("{table}");
    write(repo, "page", "cargo xtask page --measure", &table)
}

/// Makes the page of a recording and measures it: the cells of a line.
fn measure(
    repo: &Repository,
    workshop: &Workshop<'_>,
    name: &str,
    file: &Path,
) -> Result<Vec<String>, String> {
    let (larder, page) = (repo.larder()?, workshop.scratch.join("measured.html"));
    eprintln!("==> the page of {name}");
    let start = Instant::now();
    command::run(cmd!(repo.shell, "{larder} report {file} --no-compare -o {page}"))?;
    let made = start.elapsed().as_secs_f64();
    let node = workshop.in_browser()?;
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
