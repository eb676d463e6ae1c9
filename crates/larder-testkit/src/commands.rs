//! The commands: soaks of one thread or many, and sequences on simulated ranks.

use std::time::{Duration, Instant};

use larder_core::Policy;
use larder_testkit::cluster::plan::Wish;
use larder_testkit::cluster::run::{Tally, run_many};
use larder_testkit::soak;

/// The numbers of ranks that are tried where nobody names any.
const USUAL_RANKS: [u64; 3] = [2, 4, 8];

/// How long a soak goes on: for so many scripts, or for so many seconds where they are given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) scripts: u64,
    pub(crate) seconds: Option<u64>,
}

/// Runs scripts from a seed on, and says how many.
pub(crate) fn soak(
    seed: u64,
    threads: usize,
    steps: usize,
    extent: Extent,
    policy: Option<&Policy>,
) -> Result<String, String> {
    let start = Instant::now();
    let given = extent.seconds.map(Duration::from_secs);
    let (mut done, mut runs) = (0, 0);
    while given.map_or(done < extent.scripts, |given| start.elapsed() < given) {
        let seed = seed.wrapping_add(done);
        runs += if threads > 1 {
            let run = match policy {
                Some(policy) => soak::concurrent::run_under(policy.clone(), seed, threads, steps),
                None => soak::concurrent::run(seed, threads, steps),
            };
            run.map_err(|failure| failure.to_string())?;
            1
        } else {
            soak_alone(seed, steps, policy)?
        };
        done += 1;
    }
    let each = count(steps as u64, "step");
    let what = match threads {
        1 => format!("{} of {each}", count(runs, "script")),
        _ => format!("{} of {threads} threads, {each} each,", count(runs, "run")),
    };
    Ok(format!("{what} from seed {seed}: every check held\n"))
}

/// Runs the script of a seed; how many that came to.
fn soak_alone(seed: u64, steps: usize, policy: Option<&Policy>) -> Result<u64, String> {
    let soak = |seed| {
        let run = match policy {
            Some(policy) => soak::run_under(policy.clone(), seed, steps),
            None => soak::run(seed, steps),
        };
        run.map_err(|failure| failure.to_string())
    };
    soak(seed)?;
    // A seed without faults is run against the naive model alone; its sibling meets them.
    if seed & soak::FAULTS_BIT != 0 {
        return Ok(1);
    }
    soak(seed | soak::FAULTS_BIT)?;
    Ok(2)
}

/// Runs so many programs that put memory to sleep, and says what was seen.
pub(crate) fn sleep(seed: u64, steps: usize, scripts: u64) -> Result<String, String> {
    let mut all = larder_testkit::sleep::Report::default();
    for number in 0..scripts {
        all += larder_testkit::sleep::run(seed.wrapping_add(number), steps)?;
    }
    Ok(format!(
        "{} of {} from seed {seed}: {}, {}, {} refused, {} as they were after waking, {} freed in \
         their sleep; every check held\n",
        count(scripts, "program"),
        count(steps as u64, "step"),
        count(all.sleeps, "sleep"),
        count(all.wakes, "wake"),
        all.refused,
        count(all.found_again, "block"),
        all.freed_asleep,
    ))
}

/// Runs so many sequences of each sort, and says what was seen.
pub(crate) fn cluster(seed: u64, sequences: u64, ranks: &[u64]) -> Result<String, String> {
    let ranks = if ranks.is_empty() { &USUAL_RANKS[..] } else { ranks };
    let mut said = String::new();
    for &ranks in ranks {
        for wish in [Wish::Peace, Wish::Difference, Wish::Death] {
            let tally = run_many(seed, sequences, ranks as usize, wish, |_| ());
            let tally = tally.map_err(|failure| failure.to_string())?;
            said += &line(ranks, wish, &tally);
        }
    }
    Ok(said)
}

/// A number with its noun.
fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn line(ranks: u64, wish: Wish, tally: &Tally) -> String {
    let sequences = count(tally.sequences, "sequence");
    match wish {
        Wish::Peace => format!(
            "{ranks} ranks, {sequences}: {} at equal places on all ranks, {} sealed, {} made, \
             {} refused on all for want of memory\n",
            count(tally.blocks, "block"),
            count(tally.seals, "time"),
            count(tally.segments, "segment"),
            count(tally.refused, "request"),
        ),
        Wish::Difference => format!(
            "{ranks} ranks, {sequences} with a planted difference: {} named at exactly the call on \
             all ranks\n",
            count(tally.named, "difference"),
        ),
        Wish::Death => {
            let spared = match tally.sequences - tally.deaths {
                0 => String::new(),
                spared => {
                    format!(" (in {spared} nobody needed the segment at which it was to die)")
                }
            };
            let deaths = count(tally.deaths, "death");
            format!(
                "{ranks} ranks, {sequences} with a rank to die while growing: {deaths} named to \
                 all others, nothing leaked{spared}\n"
            )
        }
    }
}
