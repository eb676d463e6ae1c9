//! The program `larder`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(larder_cli::perform(std::env::args_os()))
}
