//! Who is measured, and how one measurement is made.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::peer::{Programs, ended, said};

/// How often a measurement is tried before its cell stays empty. The peer can crash on its way out,
/// which says nothing about what it costs.
const TRIES: u32 = 3;

/// What is held against each other where both are measured.
pub(super) const GAINS: [(&str, &str); 4] = [
    ("PyTorch 2.11", "torch-2.11"),
    ("PyTorch 2.11", "larder"),
    ("PyTorch 2.15", "larder"),
    ("tight", "larder"),
];

/// An allocator, with the policy that it follows.
#[derive(Clone, Debug)]
pub(super) struct Contestant {
    pub(super) title: &'static str,
    program: PathBuf,
    /// Whether the program is PyTorch's allocator, which is told of its memory by a variable.
    is_peer: bool,
    policy: Option<&'static str>,
}

impl Contestant {
    pub(super) fn peer(title: &'static str, program: &Path) -> Self {
        Self { title, program: program.to_owned(), is_peer: true, policy: None }
    }

    /// Ours, under its default policy.
    pub(super) fn ours(title: &'static str, program: &Path) -> Self {
        Self { is_peer: false, ..Self::peer(title, program) }
    }

    /// All, in the order in which they run and stand in the tables; the newest PyTorch if its
    /// judge is there.
    pub(super) fn all(programs: &Programs, newest: &Path) -> Vec<Self> {
        let newest = newest.is_file().then(|| Self::peer("PyTorch 2.15", newest));
        let own = Self::under(programs, &["torch-2.11", "larder", "tight"]);
        let oldest = Self::peer("PyTorch 2.11", &programs.judge);
        [oldest].into_iter().chain(newest).chain(own).collect()
    }

    /// Ours under policies, by which they are called.
    pub(super) fn under(programs: &Programs, policies: &[&'static str]) -> Vec<Self> {
        let under = |policy| Self { policy: Some(policy), ..Self::ours(policy, &programs.larder) };
        policies.iter().copied().map(under).collect()
    }

    #[cfg(test)]
    pub(super) fn named(title: &'static str) -> Self {
        Self::ours(title, Path::new(""))
    }

    /// The command that makes a measurement, with default settings.
    pub(super) fn command(&self, run: Run<'_>) -> Command {
        let mut command =
            Command::new(run.core.map_or(self.program.as_path(), |_| "taskset".as_ref()));
        if let Some(core) = run.core {
            command.args(["-c", core]).arg(&self.program);
        }
        command.arg("bench").arg(run.script);
        command.args(["--repeat", &run.repeat.to_string(), "--threads", &run.threads.to_string()]);
        if let Some(entries) = run.history {
            command.args(["--history", &entries.to_string()]);
        }
        command.args(self.policy.iter().flat_map(|policy| ["--policy", policy]));
        // What the caller's shell happens to set must not change the peer alone.
        command.env_remove("PYTORCH_CUDA_ALLOC_CONF").env_remove("PYTORCH_ALLOC_CONF");
        command.env_remove("LARDER_SIM_ADDRESSES").env_remove("LARDER_SIM_MEMORY");
        match run.memory_gib {
            Some(gib) if self.is_peer => {
                command.env("LARDER_SIM_MEMORY", (gib << 30).to_string());
            }
            Some(gib) => drop(command.args(["--memory", &format!("{gib}GiB")])),
            None => {}
        }
        command
    }

    /// Makes a measurement. None if it fails each time, which is said on standard error.
    pub(super) fn measure(&self, run: Run<'_>) -> Option<Measured> {
        for _ in 0..TRIES {
            let output = ended(&mut self.command(run));
            let output = output.map_err(|error| eprintln!("    {error}")).ok()?;
            // A peer that crashed on its way out has printed its figure.
            if let Some(measured) = Measured::read(&String::from_utf8_lossy(&output.stdout)) {
                return Some(measured);
            }
            let said = said(&output);
            let said = said.lines().next().unwrap_or("no reason given");
            eprintln!("    {} ends with {}: {said}", self.title, output.status);
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
    /// The GPU's memory; 80 GiB without it.
    pub(super) memory_gib: Option<u64>,
    /// The one processor that it may use.
    pub(super) core: Option<&'static str>,
}

impl<'a> Run<'a> {
    pub(super) fn of(script: &'a Path) -> Self {
        Self { script, repeat: 1, threads: 1, history: None, memory_gib: None, core: None }
    }
}

/// What a measurement gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) ns_per_op: f64,
    pub(super) ops: u64,
}

impl Measured {
    /// Reads the one line of JSON that both programs print.
    fn read(printed: &str) -> Option<Self> {
        let told: Value = serde_json::from_str(printed.trim()).ok()?;
        Some(Self { ns_per_op: told["ns_per_op"].as_f64()?, ops: told["ops"].as_u64()? })
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
