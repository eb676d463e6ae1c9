//! Commands: programs that are run for what they do, or for what they print.

use std::process::{Child, Command, Output, Stdio};

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

/// A program that runs beside others without a word, until it is dropped.
pub(crate) struct Company(Child);

impl Company {
    pub(crate) fn start(command: &mut Command) -> Option<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok().map(Self)
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn company_ends_when_it_is_dropped() {
        let company = Company::start(Command::new("sleep").arg("600")).expect("a program");
        let process = format!("/proc/{}", company.0.id());
        assert!(Path::new(&process).exists());
        drop(company);
        assert!(!Path::new(&process).exists());
    }
}
