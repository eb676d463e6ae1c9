//! Commands: programs that are run for what they do, or for what they print.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs a command of which nothing but success is wanted.
pub(crate) fn run(command: impl Into<Command>) -> Result<(), String> {
    let mut command = command.into();
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program}` failed: {status}")),
        Err(error) => Err(format!("`{program}` cannot be started: {error}")),
    }
}

/// What a command printed, if it ended well; else the last thing that it said.
pub(crate) fn output(command: impl Into<Command>) -> Result<String, String> {
    let mut command = command.into();
    let program = command.get_program().to_string_lossy().into_owned();
    let output = ended(&mut command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = said(&output);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("`{program}` failed: {}", last.trim_start_matches("ERROR: ")))
}

/// How a command ended, well or not, and what it printed and said.
pub(crate) fn ended(command: &mut Command) -> Result<Output, String> {
    let output = command.stdin(Stdio::null()).output();
    let program = command.get_program().to_string_lossy();
    output.map_err(|error| format!("`{program}` cannot be started: {error}"))
}

/// What a program said on its standard error.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// The number behind a key of a printed object.
pub(crate) fn number(printed: &str, key: &str) -> Option<f64> {
    serde_json::from_str::<Value>(printed.trim()).ok()?.get(key)?.as_f64()
}
