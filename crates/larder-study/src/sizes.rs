//! Sizes: the same program with other sizes, all of them larger, or each of them a little off.

use std::fmt;
use std::str::FromStr;

use larder_sim::random::Random;
use larder_sim::script::Op;

use crate::option_error::{OptionError, SCALE_MAX};

/// How sizes are changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Every size is so many times as large.
    pub scale: u64,
    /// Every size is a little off besides.
    pub jitter: Option<Jitter>,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { scale: 1, jitter: None }
    }
}

/// Sizes that are a little off: each by a factor of its own, the same wherever the size comes
/// again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// By how much at most, in either direction.
    pub percent: f64,
    /// What the factors follow from.
    pub seed: u64,
}

impl Jitter {
    /// The seed of who names none.
    pub const DEFAULT_SEED: u64 = 1;

    /// The factor of a size. It follows from the seed and the size alone, so that a part of a
    /// program has the sizes that it has in the whole.
    fn factor(self, size_bytes: u64) -> f64 {
        let seed = Random::new(self.seed).next_u64() ^ size_bytes;
        1.0 + self.percent / 100.0 * (2.0 * Random::new(seed).unit() - 1.0)
    }
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "each up to {} % off (seed {})", self.percent, self.seed)
    }
}

impl FromStr for Jitter {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Jitter, OptionError> {
        let (percent, seed) = match text.split_once(':') {
            Some((percent, seed)) => (percent, seed.parse().ok()),
            None => (text, Some(Jitter::DEFAULT_SEED)),
        };
        let percent = percent.parse().ok().filter(|percent| (0.0..100.0).contains(percent));
        let jitter = percent.zip(seed).map(|(percent, seed)| Jitter { percent, seed });
        jitter.ok_or_else(|| OptionError::Jitter(text.to_owned()))
    }
}

/// Reads how many times as large every size is to be.
pub fn parse_scale(text: &str) -> Result<u64, OptionError> {
    let scale = text.parse().ok().filter(|scale| (1..=SCALE_MAX).contains(scale));
    scale.ok_or_else(|| OptionError::Scale(text.to_owned()))
}

impl Sizes {
    /// Whether every size stays what it is.
    pub fn is_same(&self) -> bool {
        *self == Sizes::default()
    }

    /// A size of the program, changed. What is nothing stays nothing, and what is something stays
    /// something.
    fn of(&self, size_bytes: u64) -> u64 {
        let larger_bytes = size_bytes.saturating_mul(self.scale);
        match self.jitter {
            Some(jitter) if size_bytes > 0 => {
                ((larger_bytes as f64 * jitter.factor(size_bytes)).round() as u64).max(1)
            }
            _ => larger_bytes,
        }
    }

    /// So much memory for a program as it was is so much for the changed one.
    pub(crate) fn scaled(&self, memory_bytes: u64) -> u64 {
        memory_bytes.saturating_mul(self.scale)
    }

    /// Changes every size in operations.
    pub(crate) fn change(&self, ops: &mut [Op]) {
        for op in ops {
            if let Op::Alloc { size_bytes, .. } = op {
                *size_bytes = self.of(*size_bytes);
            }
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scale, self.jitter) {
            (1, None) => write!(f, "as they are"),
            (1, Some(jitter)) => write!(f, "{jitter}"),
            (scale, None) => write!(f, "{scale} times as large"),
            (scale, Some(jitter)) => write!(f, "{scale} times as large, {jitter}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;

    use super::*;

    fn changed(sizes: Sizes, sizes_bytes: &[u64]) -> Vec<u64> {
        let alloc = |&size_bytes| Op::Alloc { id: 0, size_bytes, stream: 0 };
        let mut ops: Vec<Op> = sizes_bytes.iter().map(alloc).collect();
        sizes.change(&mut ops);
        let size = |op: &Op| match op {
            Op::Alloc { size_bytes, .. } => *size_bytes,
            other => panic!("{other} was no allocation"),
        };
        ops.iter().map(size).collect()
    }

    #[test]
    fn a_scale_is_for_every_size() {
        let sizes = Sizes { scale: 8, jitter: None };
        assert_eq!(changed(sizes, &[0, 1, 512, u64::MAX]), [0, 8, 4096, u64::MAX]);
        assert_eq!(changed(Sizes::default(), &[0, 7]), [0, 7]);
    }

    #[test]
    fn a_jitter_is_the_same_for_the_same_size_and_another_for_another_seed() {
        let sizes_bytes: Vec<u64> = (1..400).map(|number| number * MIB).chain([7 * MIB]).collect();
        let with_seed = |scale, seed| {
            let jitter = Some(Jitter { percent: 3.0, seed });
            changed(Sizes { scale, jitter }, &sizes_bytes)
        };
        let [first, second, large] =
            [(1, 1), (1, 2), (8, 1)].map(|(scale, seed)| with_seed(scale, seed));
        assert_eq!(first, with_seed(1, 1));
        assert_ne!(first, second);
        assert_eq!(first[6], first[399], "both were 7 MiB");
        let factors = |changed: &[u64]| -> Vec<f64> {
            changed.iter().zip(&sizes_bytes).map(|(&new, &old)| new as f64 / old as f64).collect()
        };
        let (least, most) =
            factors(&first).into_iter().fold((2.0, 0.0), |(least, most): (f64, f64), factor| {
                (least.min(factor), most.max(factor))
            });
        assert!((0.97..0.975).contains(&least) && (1.025..1.03).contains(&most), "{least} {most}");
        let alike = factors(&large).into_iter().zip(factors(&first));
        for (large, first) in alike {
            assert!((large - 8.0 * first).abs() < 1e-5, "{large} {first}");
        }
    }

    #[test]
    fn nothing_stays_nothing_and_something_something() {
        let jitter = Some(Jitter { percent: 99.0, seed: 5 });
        let changed = changed(Sizes { scale: 1, jitter }, &[0, 1]);
        assert!(changed[0] == 0 && changed[1] >= 1, "{changed:?}");
    }

    #[test]
    fn texts_are_read_and_bad_ones_are_told_in_a_sentence() {
        assert_eq!("3".parse(), Ok(Jitter { percent: 3.0, seed: 1 }));
        assert_eq!("0.5:17".parse(), Ok(Jitter { percent: 0.5, seed: 17 }));
        for bad in ["", "x", "-1", "100", "NaN", "3:", "3:x", "3:-1", "3:1:2", ":4"] {
            let sentence = bad.parse::<Jitter>().unwrap_err().to_string();
            assert!(sentence.ends_with(&format!("not '{bad}'")), "{sentence}");
        }
        assert_eq!((parse_scale("1"), parse_scale("1024")), (Ok(1), Ok(1024)));
        for bad in ["0", "1025", "-8", "1.5", "", "x8"] {
            let sentence = parse_scale(bad).unwrap_err().to_string();
            assert_eq!(sentence, format!("a scale is a whole number from 1 to 1024, not '{bad}'"));
        }
    }

    #[test]
    fn what_was_changed_is_said_with_its_seed() {
        let jitter = Some(Jitter { percent: 2.5, seed: 9 });
        let said = |scale, jitter| Sizes { scale, jitter }.to_string();
        assert_eq!(said(1, jitter), "each up to 2.5 % off (seed 9)");
        assert_eq!(said(8, None), "8 times as large");
        assert_eq!(said(8, jitter), "8 times as large, each up to 2.5 % off (seed 9)");
    }
}
