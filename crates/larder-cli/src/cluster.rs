//! The command `cluster`: many sequences on simulated ranks.

use larder_sim::cluster::plan::Wish;
use larder_sim::cluster::run::{Tally, run_many};
use larder_study::report::summary::count;

use crate::progress::Progress;

/// The numbers of ranks that are tried where nobody names any.
const USUAL_RANKS: [u64; 3] = [2, 4, 8];

/// Runs so many sequences of each sort, and says what was seen.
pub(crate) fn run(seed: u64, sequences: u64, ranks: &[u64]) -> Result<String, String> {
    let ranks = if ranks.is_empty() { &USUAL_RANKS[..] } else { ranks };
    let sorts = [Wish::Peace, Wish::Difference, Wish::Death];
    let bar = Progress::steps("sequences", sequences * (ranks.len() * sorts.len()) as u64);
    let mut said = String::new();
    for &ranks in ranks {
        for wish in sorts {
            let tally = run_many(seed, sequences, ranks as usize, wish, |_| bar.step())?;
            said += &line(ranks, wish, &tally);
        }
    }
    bar.finish();
    Ok(said)
}

fn line(ranks: u64, wish: Wish, tally: &Tally) -> String {
    let sequences = count(tally.sequences, "sequence");
    match wish {
        Wish::Peace => format!(
            "{ranks} ranks, {sequences}: {} at equal places on all ranks, {} sealed, {} made, {} refused on all for want of memory\n",
            count(tally.blocks, "block"),
            count(tally.seals, "time"),
            count(tally.segments, "segment"),
            count(tally.refused, "request"),
        ),
        Wish::Difference => format!(
            "{ranks} ranks, {sequences} with a planted difference: {} named at exactly the call on all ranks\n",
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
                "{ranks} ranks, {sequences} with a rank to die while growing: {deaths} named to all others, nothing leaked{spared}\n"
            )
        }
    }
}
