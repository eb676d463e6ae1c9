//! Who is measured, and how one measurement is made.

use std::path::Path;
use std::process::Command;

use crate::printed::field;
use crate::programs::Programs;

/// How often a measurement is tried before its cell stays empty. The peer can crash on its way out,
/// which says nothing about what it costs.
const TRIES: u32 = 3;

/// An allocator, with the policy that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contestant {
    /// The oldest PyTorch.
    PyTorch,
    /// The newest PyTorch.
    Newest,
    Torch,
    Larder,
    Tight,
}

/// How many there are.
pub(super) const COUNT: usize = 5;

impl Contestant {
    /// In the order in which they run and stand in the tables.
    pub(super) const ALL: [Self; COUNT] =
        [Self::PyTorch, Self::Newest, Self::Torch, Self::Larder, Self::Tight];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::PyTorch => "PyTorch 2.11",
            Self::Newest => "PyTorch 2.15",
            Self::Torch => "torch-2.11",
            Self::Larder => "larder",
            Self::Tight => "tight",
        }
    }

    /// The program to run; none where it was not brought along.
    fn program(self, programs: &Programs) -> Option<&Path> {
        match self {
            Self::PyTorch => Some(&programs.judge),
            Self::Newest => programs.newest.as_deref(),
            Self::Torch | Self::Larder | Self::Tight => Some(&programs.larder),
        }
    }

    /// The command that makes a measurement, with default settings on 80 GiB of memory; none where its program
    /// was not brought along.
    pub(super) fn command(self, programs: &Programs, run: Run<'_>) -> Option<Command> {
        let mut command = Command::new(self.program(programs)?);
        command.arg("bench").arg(run.script);
        command.args(["--repeat", &run.repeat.to_string()]);
        command.args(["--threads", &run.threads.to_string()]);
        if let Some(entries) = run.history {
            command.args(["--history", &entries.to_string()]);
        }
        if matches!(self, Self::Torch | Self::Larder | Self::Tight) {
            command.args(["--policy", self.title()]);
        }
        // What the caller's shell happens to set must not change the peer alone.
        for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
            command.env_remove(name);
        }
        command.env_remove("LARDER_SIM_MEMORY").env_remove("LARDER_SIM_ADDRESSES");
        Some(command)
    }

    /// Makes a measurement. None if it fails each time, which is said on standard error.
    pub(super) fn measure(self, programs: &Programs, run: Run<'_>) -> Option<Measured> {
        for _ in 0..TRIES {
            let output = match self.command(programs, run)?.output() {
                Ok(output) => output,
                Err(error) => {
                    eprintln!("    {} cannot be started: {error}", self.title());
                    return None;
                }
            };
            let printed = String::from_utf8_lossy(&output.stdout);
            match Measured::read(&printed) {
                Some(measured) if output.status.success() => return Some(measured),
                _ => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    let said = said.lines().next().unwrap_or("no reason given");
                    eprintln!("    {} ends with {}: {said}", self.title(), output.status);
                }
            }
        }
        None
    }
}

/// What to run.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) script: &'a Path,
    pub(super) repeat: u64,
    pub(super) threads: u64,
    /// How many entries of a history are kept, without call stacks; none where it is off.
    pub(super) history: Option<u64>,
}

/// What a measurement gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) ns_per_op: f64,
    pub(super) ops: u64,
}

impl Measured {
    /// Reads the one line of JSON that both programs print.
    pub(super) fn read(printed: &str) -> Option<Self> {
        let ns_per_op = field(printed, "ns_per_op")?.parse().ok()?;
        Some(Self { ns_per_op, ops: field(printed, "ops")?.parse().ok()? })
    }

    pub(super) fn elapsed_ns(self) -> f64 {
        self.ns_per_op * self.ops as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_programs_print_is_read() {
        let printed = "{\"ns_per_op\":587.5,\"ops\":2000000,\"threads\":1}\n";
        assert_eq!(Measured::read(printed), Some(Measured { ns_per_op: 587.5, ops: 2_000_000 }));
        let large = "{\"ns_per_op\":1.5e+06,\"ops\":2,\"threads\":1}";
        assert_eq!(Measured::read(large).map(Measured::elapsed_ns), Some(3e6));
        assert_eq!(Measured::read("judge: no"), None);
    }
}
