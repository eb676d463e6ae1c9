//! Sequences: what was asked of a symmetric pool, call by call, and a hash of it that ranks
//! compare.
//!
//! A symmetric pool's placement follows from its sequence alone. So ranks whose sequences are equal
//! have every block at the same offset, and to know that they are it is enough to compare one
//! number. Where they are not, the search finds the first call that differs.

mod divergence;
mod search;

pub use divergence::{Divergence, RankCall};
pub use search::{MESSAGE_BYTES, Search, Step};

use std::collections::VecDeque;

/// How many calls a sequence remembers at most since ranks last agreed.
pub const KEPT_MAX: usize = 1 << 20;

/// Where a block lies in a symmetric pool: the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Which of the pool's segments, counted from 0 in the order in which they came. A number is
    /// never used again.
    pub segment: u64,
    /// Where the block begins in the segment.
    pub offset_bytes: u64,
    /// The number of the call that made the block: who has kept an older one speaks of memory that
    /// was freed since.
    pub generation: u64,
}

/// One call, as all ranks have to make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// The pool was made; placement depends on these settings, which are shown as one number.
    Begin {
        /// Equal exactly if the settings are.
        settings: u64,
    },
    /// A request was served.
    Request {
        /// What was asked for.
        size_bytes: u64,
        /// The segment that it was placed in.
        segment: u64,
        /// Where in it.
        offset_bytes: u64,
    },
    /// A request could not be served.
    Refused {
        /// What was asked for.
        size_bytes: u64,
    },
    /// The block that a call made was freed.
    Free {
        /// The number of that call.
        number: u64,
    },
    /// Segments with no block in them were given back.
    Trim {
        /// How many.
        segments: u64,
    },
}

impl Call {
    /// The call as four numbers, the first of which says which kind it is.
    fn words(self) -> [u64; 4] {
        match self {
            Call::Begin { settings } => [1, settings, 0, 0],
            Call::Request { size_bytes, segment, offset_bytes } => {
                [2, size_bytes, segment, offset_bytes]
            }
            Call::Refused { size_bytes } => [3, size_bytes, 0, 0],
            Call::Free { number } => [4, number, 0, 0],
            Call::Trim { segments } => [5, segments, 0, 0],
        }
    }

    /// The call that these numbers are.
    fn of_words(words: [u64; 4]) -> Option<Call> {
        let [kind, first, second, third] = words;
        Some(match kind {
            1 => Call::Begin { settings: first },
            2 => Call::Request { size_bytes: first, segment: second, offset_bytes: third },
            3 => Call::Refused { size_bytes: first },
            4 => Call::Free { number: first },
            5 => Call::Trim { segments: first },
            _ => return None,
        })
    }
}

/// The calls of one rank, numbered from 0, and the hash of them after each.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// Calls since the ranks last agreed, the oldest first, each with the hash after it.
    kept: VecDeque<(Call, u64)>,
    /// How many calls came before those.
    forgotten: u64,
    /// The hash after them.
    forgotten_hash: u64,
}

impl Sequence {
    /// Notes a call, and gives its number.
    pub fn note(&mut self, call: Call) -> u64 {
        let number = self.count();
        let hash = call.words().into_iter().fold(self.hash(), mix);
        self.kept.push_back((call, hash));
        if self.kept.len() > KEPT_MAX {
            self.forget_before(self.forgotten + 1);
        }
        number
    }

    /// How many calls there were.
    pub fn count(&self) -> u64 {
        self.forgotten + self.kept.len() as u64
    }

    /// The hash of all calls.
    pub fn hash(&self) -> u64 {
        self.kept.back().map_or(self.forgotten_hash, |&(_, hash)| hash)
    }

    /// The number of the first call that is remembered.
    pub fn first(&self) -> u64 {
        self.forgotten
    }

    /// The hash of the first `count` calls, if it is known.
    pub fn hash_after(&self, count: u64) -> Option<u64> {
        if count == self.forgotten {
            return Some(self.forgotten_hash);
        }
        let at = count.checked_sub(self.forgotten + 1)?;
        self.kept.get(at as usize).map(|&(_, hash)| hash)
    }

    /// The call of this number, if it was made and is remembered.
    pub fn call(&self, number: u64) -> Option<Call> {
        let at = number.checked_sub(self.forgotten)?;
        self.kept.get(at as usize).map(|&(call, _)| call)
    }

    /// Calls before this one need not be remembered: all ranks agree on them.
    pub fn forget_before(&mut self, number: u64) {
        while self.forgotten < number {
            let Some((_, hash)) = self.kept.pop_front() else { return };
            self.forgotten += 1;
            self.forgotten_hash = hash;
        }
    }
}

/// A number that depends on each bit of both, and on their order.
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let mut mixed = hash.rotate_left(23).wrapping_add(word ^ 0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_calls_have_equal_hashes_and_any_difference_shows() {
        let calls = [
            Call::Begin { settings: 7 },
            Call::Request { size_bytes: 512, segment: 0, offset_bytes: 0 },
            Call::Free { number: 1 },
            Call::Refused { size_bytes: 512 },
            Call::Trim { segments: 1 },
        ];
        let hash = |calls: &[Call]| {
            let mut sequence = Sequence::default();
            for &call in calls {
                let _ = sequence.note(call);
            }
            sequence.hash()
        };
        assert_eq!(hash(&calls), hash(&calls));
        for at in 0..calls.len() {
            let mut others = calls;
            others[at] = Call::Free { number: 99 };
            assert_ne!(hash(&calls), hash(&others));
            assert_eq!(Call::of_words(calls[at].words()), Some(calls[at]));
        }
        let mut swapped = calls;
        swapped.swap(2, 3);
        assert_ne!(hash(&calls), hash(&swapped), "the order counts");
    }

    #[test]
    fn what_is_agreed_is_forgotten_and_the_rest_keeps_its_numbers() {
        let mut sequence = Sequence::default();
        let numbers: Vec<u64> = (0..5).map(|number| sequence.note(Call::Free { number })).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        let (hash, after_three) = (sequence.hash(), sequence.hash_after(3));
        sequence.forget_before(3);
        assert_eq!((sequence.hash(), sequence.hash_after(3)), (hash, after_three));
        assert_eq!((sequence.hash_after(2), sequence.call(2)), (None, None));
        assert_eq!(sequence.call(3), Some(Call::Free { number: 3 }));
        sequence.forget_before(99);
        assert_eq!((sequence.count(), sequence.hash()), (5, hash));
    }
}
