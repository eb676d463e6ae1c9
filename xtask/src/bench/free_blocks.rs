//! What a malloc and a free cost while many other free blocks lie about.

use std::path::Path;
use std::process::{Command, Stdio};

use super::contestant::{COUNT, Contestant, Run};
use super::table::Figures;
use super::timing::Timing;
use super::workload::{Random, alloc, free, write};
use crate::programs::Programs;

/// Pairs in the longer script; the more there are, the less the rest of the script disturbs.
pub(super) const PAIRS: u64 = 400_000;

/// More rounds would make the run longer than they make it exact: each reads long scripts.
const ROUNDS_MAX: u64 = 5;

/// The fewest and the most free blocks of the crate's own bench.
const HOLES: [u64; 2] = [100, 65_000];

/// How large holes and requests are.
#[derive(Clone, Copy)]
enum Sizes {
    Equal,
    Random,
}

impl Sizes {
    fn draw(self, random: &mut Random) -> u64 {
        match self {
            Self::Equal => 1024,
            Self::Random => 1 + random.below(64 << 10),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Random => "random",
        }
    }
}

/// The table that `cargo bench` prints, as it is.
pub(super) fn own_bench(root: &Path, cargo: &Path, target: &Path) -> Result<String, String> {
    let output = Command::new(cargo)
        .args(["bench", "--quiet", "-p", "larder-sim", "--bench", "free_blocks"])
        .current_dir(root)
        .env("CARGO_TARGET_DIR", target)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo bench: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let table: String = printed.lines().filter(|line| line.starts_with('|')).fold(
        String::new(),
        |mut table, line| {
            table.push_str(line);
            table.push('\n');
            table
        },
    );
    if table.is_empty() || !output.status.success() {
        return Err(format!("`cargo bench --bench free_blocks` gave no table: {}", output.status));
    }
    Ok(table)
}

/// The same for all contestants, by scripts: a pair costs what a script with pairs takes longer
/// than the same script without.
pub(super) fn compare(
    programs: &Programs,
    folder: &Path,
    timing: Timing,
) -> Result<Vec<Figures>, String> {
    let mut rows = Vec::new();
    for sizes in [Sizes::Equal, Sizes::Random] {
        for holes in HOLES {
            let name = format!("{holes} free blocks of {} sizes", sizes.word());
            eprintln!("==> a pair beside {name}");
            let (with, without) = (folder.join("pairs.ops"), folder.join("no_pairs.ops"));
            write(&with, &script(holes, sizes, PAIRS))?;
            write(&without, &script(holes, sizes, 0))?;
            rows.push(Figures { name, values: difference(programs, &with, &without, timing) });
        }
    }
    Ok(rows)
}

fn difference(
    programs: &Programs,
    with: &Path,
    without: &Path,
    timing: Timing,
) -> [Option<f64>; COUNT] {
    let run = |script| Run { script, repeat: 1, threads: 1, history: None };
    let repeats = Contestant::ALL
        .map(|one| [with, without].map(|script| timing.calibrate(programs, one, run(script))));
    let mut shortest_ns = [[f64::INFINITY; 2]; COUNT];
    for _ in 0..timing.rounds.min(ROUNDS_MAX) {
        for (index, contestant) in Contestant::ALL.into_iter().enumerate() {
            for (at, script) in [with, without].into_iter().enumerate() {
                let Some(repeat) = repeats[index][at] else { continue };
                let measured = contestant.measure(programs, Run { repeat, ..run(script) });
                let pass_ns = measured.map(|measured| measured.elapsed_ns() / repeat as f64);
                let shortest = &mut shortest_ns[index][at];
                *shortest = pass_ns.map_or(*shortest, |pass_ns| shortest.min(pass_ns));
            }
        }
    }
    shortest_ns.map(pair_ns)
}

/// What a pair costs, by the shortest pass with pairs and the shortest without. What disturbs a pass
/// makes it longer, and in a difference of medians it would count twice. None if a script failed, or
/// if the machine was so busy that the pairs are lost in it.
fn pair_ns([with, without]: [f64; 2]) -> Option<f64> {
    let pair = (with - without) / PAIRS as f64;
    (pair.is_finite() && pair > 0.0).then_some(pair)
}

/// Twice as many blocks as holes, every other one freed, and then pairs of malloc and free. What is
/// live at the end is freed by whoever runs it.
fn script(holes: u64, sizes: Sizes, pairs: u64) -> String {
    let mut random = Random(holes);
    let mut text: String = (0..2 * holes).map(|id| alloc(id, sizes.draw(&mut random))).collect();
    (0..holes).for_each(|hole| text.push_str(&free(2 * hole)));
    for id in 2 * holes..2 * holes + pairs {
        text.push_str(&alloc(id, sizes.draw(&mut random)));
        text.push_str(&free(id));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_costs_the_difference() {
        let pairs_ns = 100.0 * PAIRS as f64;
        assert_eq!(pair_ns([5e7 + pairs_ns, 5e7]), Some(100.0));
        assert_eq!(pair_ns([5e7, 6e7]), None);
        assert_eq!(pair_ns([f64::INFINITY, 5e7]), None);
        assert_eq!(pair_ns([5e7, f64::INFINITY]), None);
        assert_eq!(pair_ns([f64::INFINITY; 2]), None);
    }

    #[test]
    fn the_two_scripts_differ_by_the_pairs() {
        for sizes in [Sizes::Equal, Sizes::Random] {
            let (with, without) = (script(5, sizes, 3), script(5, sizes, 0));
            let rest = with.strip_prefix(&without).unwrap();
            assert_eq!(without.lines().count(), 15);
            assert_eq!(rest.lines().count(), 6);
            assert!(rest.starts_with("alloc 10 ") && rest.ends_with("free 12\n"), "{rest}");
        }
    }
}
