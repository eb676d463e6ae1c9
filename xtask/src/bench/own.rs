//! Our two policies against each other: tight and larder in turn, round after round, and nothing else, so that there can be
//! many rounds. On a machine that others disturb, what two runs right after each other come to says more than two medians do.

use super::contestant::{Contestant, Measured, Run};
use super::table::{Table, digits};
use super::timing::{Timing, least, median};
use super::workload::Workload;
use crate::programs::Programs;

/// What the rounds of one workload gave, in nanoseconds per operation.
#[derive(Debug, Default)]
struct Pairs {
    larder: Vec<f64>,
    tight: Vec<f64>,
}

impl Pairs {
    /// The median of each, their ratio, the ratio of the least, and the median of all rounds' own ratios.
    fn cells(&self, name: &str) -> Option<Vec<String>> {
        let (larder, tight) = (median(&self.larder)?, median(&self.tight)?);
        let ratios: Vec<f64> =
            self.tight.iter().zip(&self.larder).map(|(tight, larder)| tight / larder).collect();
        let ratio = |value: f64| format!("{value:.2}");
        Some(vec![
            name.to_owned(),
            digits(larder),
            digits(tight),
            ratio(tight / larder),
            ratio(least(&self.tight)? / least(&self.larder)?),
            ratio(median(&ratios)?),
        ])
    }
}

/// Measures all workloads with one thread.
pub(super) fn compare(programs: &Programs, workloads: &[Workload], timing: Timing) -> Table {
    let mut table = Table::new(&[
        "ns per operation",
        "larder",
        "tight",
        "tight / larder",
        "of the least",
        "of each round",
    ]);
    for workload in workloads {
        eprintln!("==> time of {}", workload.name);
        let row = measure(programs, workload, timing).and_then(|pairs| pairs.cells(&workload.name));
        table.push(row.unwrap_or_else(|| vec![workload.name.clone(), "no figure".to_owned()]));
    }
    table
}

fn measure(programs: &Programs, workload: &Workload, timing: Timing) -> Option<Pairs> {
    let run = Run { script: &workload.script, repeat: 1, threads: 1, history: None };
    // As many passes for both: a program has found its way for the same part of them.
    let repeat = timing.calibrate(programs, Contestant::Larder, run)?;
    let measure = |contestant: Contestant| {
        let measured = contestant.measure(programs, Run { repeat, ..run });
        measured.map(|Measured { ns_per_op, .. }| ns_per_op)
    };
    let mut pairs = Pairs::default();
    for _ in 0..timing.rounds {
        pairs.larder.push(measure(Contestant::Larder)?);
        pairs.tight.push(measure(Contestant::Tight)?);
    }
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something disturbed tight in the second round, and both of them in the last.
    #[test]
    fn a_round_is_held_against_itself() {
        let pairs = Pairs { larder: vec![10.0, 10.0, 20.0], tight: vec![11.0, 22.0, 22.0] };
        let cells = pairs.cells("llama").unwrap();
        assert_eq!(cells, ["llama", "10.0", "22.0", "2.20", "1.10", "1.10"]);
        assert_eq!(Pairs::default().cells("llama"), None);
    }
}
