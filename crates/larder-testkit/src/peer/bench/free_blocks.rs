//! What a malloc and a free cost while many other free blocks lie about.

use std::path::Path;

use larder_sim::random::Random;

use super::contestant::{Contestant, Run};
use super::figures::Figures;
use super::timing::Timing;
use super::workload::{alloc, free, write};

/// Pairs in the longer script; the more there are, the less the rest of the script disturbs.
const PAIRS: u64 = 400_000;

/// More rounds would make the run longer than they make it exact: each reads long scripts.
const ROUNDS_MAX: u64 = 5;

/// The fewest and the most free blocks of `cargo bench -p larder-sim --bench free_blocks`.
const HOLES: [u64; 2] = [100, 65_000];

/// For each contestant, by scripts: a pair costs what a script with pairs takes longer than the
/// same script without.
pub(super) fn compare(
    all: &[Contestant],
    folder: &Path,
    timing: Timing,
) -> Result<Vec<Figures>, String> {
    let mut rows = Vec::new();
    for (word, is_random) in [("equal", false), ("random", true)] {
        for holes in HOLES {
            let name = format!("{holes} free blocks of {word} sizes");
            eprintln!("==> a pair beside {name}");
            let (with, without) = (folder.join("pairs.ops"), folder.join("no_pairs.ops"));
            write(&with, script(holes, is_random, PAIRS))?;
            write(&without, script(holes, is_random, 0))?;
            let values = all.iter().map(|one| difference(one, [&with, &without], timing));
            rows.push(Figures { name, values: values.collect() });
        }
    }
    Ok(rows)
}

/// The shortest pass with pairs and the shortest without. What disturbs a pass makes it longer, and
/// in a difference of medians it would count twice. None if a script failed, or if the machine was
/// so busy that the pairs are lost in it.
fn difference(contestant: &Contestant, scripts: [&Path; 2], timing: Timing) -> Option<f64> {
    let mut shortest_ns = [f64::INFINITY; 2];
    for (script, shortest) in scripts.into_iter().zip(&mut shortest_ns) {
        let repeat = timing.calibrate(contestant, Run::of(script))?;
        for _ in 0..timing.rounds.min(ROUNDS_MAX) {
            let measured = contestant.measure(Run { repeat, ..Run::of(script) })?;
            *shortest = shortest.min(measured.elapsed_ns() / repeat as f64);
        }
    }
    let pair = (shortest_ns[0] - shortest_ns[1]) / PAIRS as f64;
    (pair > 0.0).then_some(pair)
}

/// Twice as many blocks as holes, every other one freed, and then pairs of malloc and free. What is
/// live at the end is freed by whoever runs it.
fn script(holes: u64, is_random: bool, pairs: u64) -> String {
    let mut random = Random::new(holes);
    let mut size = || if is_random { 1 + random.below(64 << 10) } else { 1024 };
    let mut text: String = (0..2 * holes).map(|id| alloc(id, size())).collect();
    (0..holes).for_each(|hole| text.push_str(&free(2 * hole)));
    for id in 2 * holes..2 * holes + pairs {
        text.push_str(&alloc(id, size()));
        text.push_str(&free(id));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_scripts_differ_by_the_pairs() {
        for is_random in [false, true] {
            let (with, without) = (script(5, is_random, 3), script(5, is_random, 0));
            let rest = with.strip_prefix(&without).unwrap();
            assert_eq!((without.lines().count(), rest.lines().count()), (15, 6));
            assert!(rest.starts_with("alloc 10 ") && rest.ends_with("free 12\n"), "{rest}");
        }
    }
}
