//! Random numbers from a seed: xoshiro256++, seeded by splitmix64.
//!
//! A failing run must replay from its seed on any machine and with any later version, so the
//! generator is written out here and not taken from a library that may change it.

/// A random number generator. Equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator that belongs to `seed`.
    pub fn new(seed: u64) -> Random {
        let mut counter = seed;
        Random { state: std::array::from_fn(|_| splitmix(&mut counter)) }
    }

    /// Any 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [first, second, third, fourth] = &mut self.state;
        let result = first.wrapping_add(*fourth).rotate_left(23).wrapping_add(*first);
        let shifted = *second << 17;
        *third ^= *first;
        *fourth ^= *second;
        *second ^= *third;
        *first ^= *fourth;
        *third ^= shifted;
        *fourth = fourth.rotate_left(45);
        result
    }

    /// A number below `bound`, which is above zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        // The high half of a 128-bit product; its bias is below 2^-32 for bounds below 2^32.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "the range is empty");
        match (high - low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.next_u64(),
        }
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability; 0 is never, 1 is always.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of `choices`, which are not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// The next output of splitmix64, which turns a counter into well-mixed bits.
fn splitmix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *counter;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_outputs_come_out() {
        let mut counter = 1_234_567;
        assert_eq!(splitmix(&mut counter), 6_457_827_717_110_365_317);
        assert_eq!(splitmix(&mut counter), 3_203_168_211_198_807_973);
        let mut random = Random { state: [1, 2, 3, 4] };
        assert_eq!(random.next_u64(), 41_943_041);
        assert_eq!(random.next_u64(), 58_720_359);
    }

    #[test]
    fn numbers_stay_in_range_and_replay_from_the_seed() {
        let (mut first, mut second) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            let number = first.between(10, 12);
            assert!((10..=12).contains(&number));
            assert_eq!(number, second.between(10, 12));
            assert!((0.0..1.0).contains(&first.unit()));
            second.unit();
        }
        assert!(!first.chance(0.0));
        assert!(first.chance(1.0));
        assert_ne!(Random::new(1).next_u64(), Random::new(2).next_u64());
    }
}
