//! Plans: what all ranks do in a symmetric pool, and what goes wrong on one of them. Both follow
//! from a seed.

use larder_core::types::{KIB, MIB};

use larder_sim::random::Random;

/// What a rank asks for besides, where it is to differ by one request more: no plan asks for that.
pub const ODD_BYTES: u64 = 777_777;

/// One thing that all ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask for memory.
    Ask {
        /// How much.
        size_bytes: u64,
    },
    /// Free one of the live blocks, if there are any: the one at this place, counted around.
    Free {
        /// Which.
        at: u64,
    },
    /// Give back empty segments.
    Trim,
    /// Compare the calls so far.
    Seal,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A rank asks for a byte more, or where the step is no request makes one more call.
    Differs,
    /// A rank makes one request more.
    AsksMore,
    /// A rank frees another block, or where that cannot be makes one request more.
    FreesAnother,
    /// A rank makes no call any more.
    Stops,
    /// A rank dies in the middle of making a segment.
    Dies,
    /// A rank comes late to the making of segments.
    Late,
}

/// What goes wrong, on which rank, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// What.
    pub trouble: Trouble,
    /// On which rank.
    pub rank: usize,
    /// At which step; for what happens while growing, at the making of which segment.
    pub at: u64,
}

/// What sort of trouble a plan is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// None, but for ranks that come late now and then.
    Peace,
    /// One rank makes one call that differs.
    Difference,
    /// One rank dies.
    Death,
}

/// What the ranks do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that it follows from.
    pub seed: u64,
    /// How many ranks there are.
    pub ranks: usize,
    /// What all of them do.
    pub steps: Vec<Step>,
    /// What goes wrong.
    pub planted: Option<Planted>,
    /// The memory of each rank's device.
    pub memory_bytes: Vec<u64>,
    /// The least size of segments.
    pub growth_bytes: u64,
}

impl Plan {
    /// The plan that belongs to a seed.
    pub fn new(seed: u64, ranks: usize, wish: Wish) -> Plan {
        let mut random = Random::new(seed);
        let count = random.between(30, 120);
        let mut steps: Vec<Step> = (0..count).map(|_| step(&mut random)).collect();
        steps.push(Step::Seal);
        let planted = plant(&mut random, ranks, &steps, wish);
        // Some ranks have less than others, so that all run out when one does.
        let is_tight = random.chance(0.3);
        let memory = |_| if is_tight { random.between(40, 120) * MIB } else { 4096 * MIB };
        let memory_bytes = (0..ranks).map(memory).collect();
        let growth_bytes = *random.pick(&[0, 0, 4 * MIB, 33 * MIB]);
        Plan { seed, ranks, steps, planted, memory_bytes, growth_bytes }
    }
}

fn step(random: &mut Random) -> Step {
    match random.below(100) {
        0..55 => Step::Ask { size_bytes: size(random) },
        55..95 => Step::Free { at: random.below(1 << 20) },
        95..97 => Step::Trim,
        _ => Step::Seal,
    }
}

/// Small, large and very large requests, the same ones often. All are even.
fn size(random: &mut Random) -> u64 {
    match random.below(10) {
        0..3 => *random.pick(&[512, 4 * KIB, 300 * KIB, 2 * MIB, 6 * MIB]),
        3..7 => 2 * random.between(1, 256 * KIB),
        7..9 => 2 * random.between(MIB / 2, 4 * MIB),
        _ => 2 * random.between(5 * MIB, 14 * MIB),
    }
}

fn plant(random: &mut Random, ranks: usize, steps: &[Step], wish: Wish) -> Option<Planted> {
    let rank = random.below(ranks as u64) as usize;
    match wish {
        Wish::Peace => random.chance(0.02).then(|| {
            let at = random.below(3);
            Planted { trouble: Trouble::Late, rank, at }
        }),
        Wish::Death => Some(Planted { trouble: Trouble::Dies, rank, at: random.below(3) }),
        Wish::Difference => {
            let trouble = *random.pick(&[
                Trouble::Differs,
                Trouble::AsksMore,
                Trouble::FreesAnother,
                Trouble::Stops,
            ]);
            // Somebody has to make a call after the last one of a rank that stops.
            let is_ask = |step: &Step| matches!(step, Step::Ask { .. });
            let last_ask = steps.iter().rposition(is_ask)?;
            let at = random.below(last_ask as u64 + 1);
            Some(Planted { trouble, rank, at })
        }
    }
}
