//! PyTorch's own allocator beside ours, both on the simulated GPU: whether they do the same, and
//! what each takes for it.
//!
//! Everything runs in programs of its own: the judge, which has PyTorch's allocator out of its
//! wheel, and builds of `larder`. `cargo xtask parity`, `bench` and `threads` build them and call
//! this; where they lie beside this program, it needs nothing else, and can be taken to a machine
//! with more processors.

pub(crate) mod bench;
mod crew;
pub(crate) mod parity;
pub(crate) mod same;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use clap::Args;

/// Who is compared.
#[derive(Args, Clone, Debug)]
pub(crate) struct Programs {
    /// The judge.
    #[arg(long, value_name = "PATH", default_value_os_t = beside("judge"))]
    pub(crate) judge: PathBuf,
    /// The build of larder.
    #[arg(long, value_name = "PATH", default_value_os_t = beside("larder"))]
    pub(crate) larder: PathBuf,
}

/// A file beside this program.
pub(crate) fn beside(name: &str) -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(name)
}

/// How a command ended, well or not, and what it printed and said.
fn ended(command: &mut Command) -> Result<Output, String> {
    let output = command.stdin(Stdio::null()).output();
    let program = command.get_program().to_string_lossy();
    output.map_err(|error| format!("`{program}` cannot be started: {error}"))
}

/// What a program said on its standard error.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
