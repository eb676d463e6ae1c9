//! Times: how often a script is repeated, and what the rounds come to.

use super::contestant::{Contestant, Run};
use super::figures::Figures;

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

/// The times of one row: for each contestant, its rounds.
pub(super) struct Rounds {
    pub(super) name: String,
    pub(super) times: Vec<Vec<f64>>,
}

impl Rounds {
    pub(super) fn medians(&self) -> Figures {
        let values = self.times.iter().map(|one| median(one)).collect();
        Figures { name: self.name.clone(), values }
    }

    /// What disturbs the machine makes a round longer, never shorter.
    pub(super) fn least(&self) -> Figures {
        let values = self.times.iter().map(|one| least(one)).collect();
        Figures { name: self.name.clone(), values }
    }

    /// How many times the figure of the one contestant is the other's, in the middle of all rounds:
    /// on a machine that others disturb two runs right after each other say more than two
    /// medians do.
    pub(super) fn ratio(&self, over: usize, under: usize) -> Option<f64> {
        let pairs = self.times[over].iter().zip(&self.times[under]);
        median(&pairs.map(|(over, under)| over / under).collect::<Vec<_>>())
    }
}

impl Timing {
    /// How many repeats take as long as one measurement shall take; a longer run to know it by;
    /// none if that is over.
    fn judge(self, repeat: u64, elapsed_ns: f64) -> Result<u64, u64> {
        if elapsed_ns < TRUSTED_NS.min(self.target_ns) && repeat < REPEAT_MAX {
            return Err(repeat * 8);
        }
        let pass_ns = (elapsed_ns / repeat as f64).max(f64::MIN_POSITIVE);
        Ok((self.target_ns / pass_ns).round().clamp(1.0, REPEAT_MAX as f64) as u64)
    }

    /// How many repeats take as long as one measurement shall take; none if the script fails.
    pub(super) fn calibrate(self, contestant: &Contestant, run: Run<'_>) -> Option<u64> {
        let mut repeat = 1;
        loop {
            let measured = contestant.measure(Run { repeat, ..run })?;
            match self.judge(repeat, measured.elapsed_ns()) {
                Err(longer) => repeat = longer,
                Ok(repeats) => return Some(repeats),
            }
        }
    }

    /// Measures all in turn, round after round, so that what disturbs the machine disturbs them
    /// alike.
    pub(super) fn measure(self, all: &[Contestant], run: Run<'_>, name: String) -> Rounds {
        let repeats: Vec<_> = all.iter().map(|one| self.calibrate(one, run)).collect();
        let mut times = vec![Vec::new(); all.len()];
        for _ in 0..self.rounds {
            for (index, contestant) in all.iter().enumerate() {
                let Some(repeat) = repeats[index] else { continue };
                let measured = contestant.measure(Run { repeat, ..run });
                times[index].extend(measured.map(|measured| measured.ns_per_op));
            }
        }
        Rounds { name, times }
    }
}

/// The middle of the values, or between the two in the middle; none of none.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(sorted[(sorted.len() - 1) / 2], upper))
}

/// The smallest of the values; none of none.
pub(super) fn least(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    /// Something disturbed the second contestant in the second round, and both of them in the last.
    #[test]
    fn a_round_is_held_against_itself() {
        let times = vec![vec![10.0, 10.0, 20.0], vec![11.0, 22.0, 22.0]];
        let rounds = Rounds { name: String::new(), times };
        assert_eq!(rounds.ratio(1, 0), Some(1.1));
        assert_eq!(rounds.medians().values, [Some(10.0), Some(22.0)]);
    }

    #[test]
    fn a_measurement_takes_as_long_as_it_shall() {
        let timing = Timing { target_ns: 3e8, rounds: 7 };
        assert_eq!(timing.judge(1, 200.0), Err(8));
        assert_eq!(timing.judge(512, 2e7), Ok(7680));
        assert_eq!(timing.judge(1, 1e9), Ok(1));
        assert_eq!(timing.judge(REPEAT_MAX, 0.0), Ok(REPEAT_MAX));
        let short = Timing { target_ns: 1e6, rounds: 1 };
        assert_eq!(short.judge(10, 2e6), Ok(5));
    }
}
