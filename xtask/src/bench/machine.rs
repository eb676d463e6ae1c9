//! The machine and the day, as far as they explain figures.

use std::fs;
use std::process::Command;
use std::thread;

use crate::command;

/// A line for a page. The machine's name is not in it: it explains nothing.
pub(super) fn line(command: &str) -> String {
    let day = command::output(Command::new("date").args(["-u", "+%F"])).unwrap_or_default();
    let compiler = command::output(Command::new("rustc").arg("--version")).unwrap_or_default();
    let compiler: Vec<&str> = compiler.split(' ').take(2).collect();
    let facts = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let (model, day) = (model.map_or("a processor", |(_, model)| model), day.trim());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    format!("{day}, {model}, {cores} cores, {}, by `{command}`.", compiler.join(" "))
}
