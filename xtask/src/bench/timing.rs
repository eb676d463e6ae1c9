//! Times: how often a script is repeated, and what the rounds come to.

use super::contestant::{COUNT, Contestant, Measured, Run};
use super::table::Figures;
use super::workload::Workload;
use crate::programs::Programs;

/// A shorter run says too little of how long a longer one takes: threads start, caches are cold.
const TRUSTED_NS: f64 = 1e7;

/// No script needs more passes; a clock that stands still must not make the search endless.
const REPEAT_MAX: u64 = 1 << 32;

/// How long, and how often, everything is measured.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    /// How long one measurement shall take.
    pub(super) target_ns: f64,
    pub(super) rounds: u64,
}

/// What the rounds of one row come to.
pub(super) struct Rounds {
    pub(super) medians: Figures,
    /// What disturbs the machine makes a round longer, never shorter.
    pub(super) least: Figures,
    /// How far the rounds of each contestant lie apart, as a part of their median.
    pub(super) spreads: Vec<f64>,
}

/// What is known after a first short run.
#[derive(Debug, PartialEq, Eq)]
enum Calibration {
    /// It was too short; try again with so many repeats.
    Longer(u64),
    Repeats(u64),
}

impl Timing {
    fn judge(self, repeat: u64, elapsed_ns: f64) -> Calibration {
        if elapsed_ns < TRUSTED_NS.min(self.target_ns) && repeat < REPEAT_MAX {
            return Calibration::Longer(repeat * 8);
        }
        let pass_ns = (elapsed_ns / repeat as f64).max(f64::MIN_POSITIVE);
        let repeats = (self.target_ns / pass_ns).round().clamp(1.0, REPEAT_MAX as f64);
        Calibration::Repeats(repeats as u64)
    }

    /// How many repeats take as long as one measurement shall take; none if the script fails.
    pub(super) fn calibrate(
        self,
        programs: &Programs,
        contestant: Contestant,
        run: Run<'_>,
    ) -> Option<u64> {
        let mut repeat = 1;
        loop {
            let measured = contestant.measure(programs, Run { repeat, ..run })?;
            match self.judge(repeat, measured.elapsed_ns()) {
                Calibration::Longer(next) => repeat = next,
                Calibration::Repeats(repeats) => return Some(repeats),
            }
        }
    }

    /// Measures all in turn, round after round, so that what disturbs the machine disturbs
    /// them alike.
    pub(super) fn measure(self, programs: &Programs, workload: &Workload, threads: u64) -> Rounds {
        let run = Run { script: &workload.script, repeat: 1, threads, history: None };
        self.measure_run(programs, run, workload.row(threads))
    }

    /// The same for one run under a name.
    pub(super) fn measure_run(self, programs: &Programs, run: Run<'_>, name: String) -> Rounds {
        let repeats = Contestant::ALL.map(|one| self.calibrate(programs, one, run));
        let mut times = [const { Vec::new() }; COUNT];
        for _ in 0..self.rounds {
            for (index, contestant) in Contestant::ALL.into_iter().enumerate() {
                let Some(repeat) = repeats[index] else { continue };
                let measured = contestant.measure(programs, Run { repeat, ..run });
                times[index].extend(measured.map(|Measured { ns_per_op, .. }| ns_per_op));
            }
        }
        Rounds {
            medians: Figures {
                name: name.clone(),
                values: times.each_ref().map(|one| median(one)),
            },
            least: Figures { name, values: times.each_ref().map(|one| least(one)) },
            spreads: times.iter().filter_map(|times| spread(times)).collect(),
        }
    }
}

/// The middle of the values, or between the two in the middle; none of none.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The smallest of the values; none of none.
pub(super) fn least(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

/// How far the largest and the smallest lie apart, as a part of the median.
fn spread(values: &[f64]) -> Option<f64> {
    let largest = values.iter().copied().max_by(f64::total_cmp)?;
    median(values).zip(least(values)).map(|(median, least)| (largest - least) / median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn the_spread_is_a_part_of_the_median() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[10.0, 9.0, 11.0]), Some(0.2));
    }

    #[test]
    fn a_measurement_takes_as_long_as_it_shall() {
        let timing = Timing { target_ns: 3e8, rounds: 7 };
        assert_eq!(timing.judge(1, 200.0), Calibration::Longer(8));
        assert_eq!(timing.judge(512, 2e7), Calibration::Repeats(7680));
        assert_eq!(timing.judge(1, 1e9), Calibration::Repeats(1));
        assert_eq!(timing.judge(REPEAT_MAX, 0.0), Calibration::Repeats(REPEAT_MAX));
    }

    #[test]
    fn a_short_target_needs_no_longer_run_than_itself() {
        let timing = Timing { target_ns: 1e6, rounds: 1 };
        assert_eq!(timing.judge(10, 2e6), Calibration::Repeats(5));
    }
}
