//! Commands: programs that are run for what they do, or for what they print.

use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs a command of which nothing but success is wanted.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program}` failed: {status}")),
        Err(error) => Err(format!("`{program}` cannot be started: {error}")),
    }
}

/// What a command printed, if it ended well; else the last thing that it said.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("`{program}` failed: {}", last.trim_start_matches("ERROR: ")))
}

/// The number behind a key of a printed object.
pub(crate) fn number(printed: &str, key: &str) -> Option<f64> {
    serde_json::from_str::<Value>(printed.trim()).ok()?.get(key)?.as_f64()
}
