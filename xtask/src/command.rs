//! Commands: programs that are run for what they do.

use std::process::{Command, Stdio};

/// Runs a command of which nothing but success is wanted.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program}` failed: {status}")),
        Err(error) => Err(format!("`{program}` cannot be started: {error}")),
    }
}
