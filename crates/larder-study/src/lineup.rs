//! Line-ups: on which of several cards a program runs, and with what.

use crate::card::Card;
use crate::explain::{Remedy, Verdict, settings_tried};
use crate::question::{PoseError, Question};
use crate::replay::Replay;
use crate::watch::{Extent, Unwatched, Watch, Watched};
use crate::workload::Workload;

/// A card, and what comes of the program on it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The card.
    pub card: Card,
    /// What it has for the program beside the CUDA context and libraries.
    pub room_bytes: u64,
    /// How many requests fail, and how often the cache is given back, as the program is.
    pub ooms: u64,
    /// How often the cache is given back to try again.
    pub retries: u64,
    /// The setting or policy that costs least of those with which it runs, where it does not as it
    /// is; found by a replay.
    pub remedy: Option<Remedy>,
}

/// Replays a program on each of these cards, with all of what the card has left for it.
pub fn lineup(
    workload: &Workload,
    question: &Question,
    cards: &[Card],
    watch: &dyn Watch,
) -> Result<Vec<Place>, PoseError> {
    let mut trying = Watched::begin(watch, "cards", Extent::Steps(cards.len() as u64));
    let places = cards.iter().map(|card| {
        let room_bytes = card.room_bytes();
        let asked = Question { memory_bytes: Some(room_bytes), ..question.clone() };
        let setup = asked.pose_fit(workload)?.setup;
        let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ())?;
        let mut remedy = None;
        if outcome.ooms > 0 {
            let tried = settings_tried(workload, &setup, &Unwatched);
            let running = tried.into_iter().filter(|remedy| remedy.verdict == Verdict::Runs);
            remedy = running.min_by_key(Remedy::cost);
        }
        trying.step();
        let (card, retries) = (card.clone(), outcome.stats.num_alloc_retries);
        Ok(Place { card, room_bytes, ooms: outcome.ooms, retries, remedy })
    });
    places.collect()
}
