//! Instructions per operation, which no other program on the machine can disturb.

use std::process::Command;

use super::contestant::{Contestant, Run};
use super::figures::Figures;
use super::workload::Workload;
use crate::peer::{ended, said};

/// About how many operations are counted. The counter is some fifty times slower than the machine.
const OPS: u64 = 100_000;

/// Whether `valgrind` can be called.
pub(super) fn can_count() -> bool {
    ended(Command::new("valgrind").arg("--version")).is_ok_and(|output| output.status.success())
}

/// Counts a script on each contestant with one thread. It is counted with one repeat, and with R
/// more: in the difference the start, the reading of the script and the first passes are not
/// contained.
pub(super) fn count(all: &[Contestant], workload: &Workload) -> Figures {
    let values = all.iter().map(|contestant| {
        let run = Run::of(&workload.script);
        let pass_ops = contestant.measure(run)?.ops;
        let repeat = OPS.div_ceil(pass_ops.max(1));
        let count = |repeat| collected(&contestant.command(Run { repeat, ..run }));
        let [settled, more] = [count(1)?, count(1 + repeat)?];
        Some(more.saturating_sub(settled) as f64 / (pass_ops * repeat) as f64)
    });
    Figures { name: workload.name.clone(), values: values.collect() }
}

/// Runs a command under callgrind; the instructions of all its threads.
fn collected(command: &Command) -> Option<u64> {
    let mut counted = Command::new("valgrind");
    counted.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    counted.arg(command.get_program()).args(command.get_args());
    for (name, _) in command.get_envs() {
        counted.env_remove(name);
    }
    let output = ended(&mut counted).ok()?;
    let said = said(&output);
    let count = total(&said).filter(|_| output.status.success());
    if count.is_none() {
        eprintln!("    valgrind: {}: {}", output.status, said.lines().last().unwrap_or(""));
    }
    count
}

/// The sum that callgrind says last, after its process number.
fn total(said: &str) -> Option<u64> {
    said.rsplit_once("Collected :")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(total(said), Some(123_456));
        assert_eq!(total("==7== Events    : Ir\n"), None);
    }
}
