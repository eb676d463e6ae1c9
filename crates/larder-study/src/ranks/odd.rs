//! Odd ranks: those that hold more or less than the rest of their stage, where, and since when.

use std::collections::HashMap;

use super::apart::Stage;
use super::{Figures, Rank, median};
use crate::holdings::Holdings;
use crate::marks::Marks;
use crate::watch::{Extent, Unwatched, Watch, Watched};
use crate::workload::Workload;

/// A rank that differs from the rest of its stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Odd {
    /// Its place among all ranks.
    pub at: usize,
    /// What it asked for and had at its peak, less what is usual in its stage.
    pub more_bytes: i64,
    /// What is usual.
    pub usual_bytes: u64,
    /// The place that differs most.
    pub mark: u64,
    /// What that place holds at the rank's peak, and what is usual.
    pub held_bytes: (u64, u64),
    /// Since when it holds more there than an ordinary rank of the stage ever does.
    pub since: Option<Since>,
}

/// Since when something is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// The request, from 0.
    pub request: usize,
    /// In words: its step, its time, or its number.
    pub words: String,
}

/// A rank is odd where it differs by more than this part of what is usual, and by more than this
/// many times what the ranks of its stage differ by as a rule.
const PART_MIN: f64 = 0.05;
const TIMES: u64 = 4;
/// So many are looked into once more, for since when.
const LOOKED_INTO: usize = 8;
/// A stage with fewer ranks than this has no rule.
const STAGE_MIN: usize = 3;

/// The odd ranks of all stages, the furthest first.
pub(super) fn odd(
    ranks: &[(Rank, Result<Figures, String>)],
    stages: &[Stage],
    device: u32,
    watch: &dyn Watch,
) -> Vec<Odd> {
    let mut found: Vec<(Odd, usize)> = Vec::new();
    for stage in stages.iter().filter(|stage| stage.members.len() >= STAGE_MIN) {
        found.extend(of_stage(ranks, stage));
    }
    found.sort_by_key(|(odd, _)| std::cmp::Reverse(odd.more_bytes.unsigned_abs()));
    let mut looking =
        Watched::begin(watch, "odd ranks", Extent::Steps(found.len().min(LOOKED_INTO) as u64));
    for (odd, ordinary) in found.iter_mut().take(LOOKED_INTO) {
        if odd.held_bytes.0 > odd.held_bytes.1 {
            odd.since = since(&ranks[odd.at].0, &ranks[*ordinary].0, odd.mark, device);
        }
        looking.step();
    }
    found.into_iter().map(|(odd, _)| odd).collect()
}

/// The odd ones of a stage, each with an ordinary rank to compare it with.
fn of_stage(ranks: &[(Rank, Result<Figures, String>)], stage: &Stage) -> Vec<(Odd, usize)> {
    let members = stage.members.iter().filter_map(|&at| Some((at, ranks[at].1.as_ref().ok()?)));
    let members: Vec<(usize, &Figures)> = members.collect();
    let usual_bytes = median(members.iter().map(|(_, rank)| rank.asked_bytes).collect());
    let off = |rank: &Figures| rank.asked_bytes.abs_diff(usual_bytes);
    let spread_bytes = median(members.iter().map(|(_, rank)| off(rank)).collect());
    let limit_bytes = ((usual_bytes as f64 * PART_MIN) as u64).max(TIMES * spread_bytes);
    let Some(&(ordinary, _)) = members.iter().min_by_key(|(_, rank)| off(rank)) else {
        return Vec::new();
    };
    let odd = members.iter().filter(|(_, rank)| off(rank) > limit_bytes);
    odd.map(|&(at, rank)| {
        let more_bytes = rank.asked_bytes as i64 - usual_bytes as i64;
        let (mark, held_bytes) = furthest(rank, &members, more_bytes > 0);
        let odd = Odd { at, more_bytes, usual_bytes, mark, held_bytes, since: None };
        (odd, ordinary)
    })
    .collect()
}

/// The place at which a rank differs most from what is usual, on the side on which it differs.
fn furthest(rank: &Figures, members: &[(usize, &Figures)], is_more: bool) -> (u64, (u64, u64)) {
    let mut usual: HashMap<u64, u64> = HashMap::new();
    let marks = members.iter().flat_map(|(_, rank)| rank.then.keys());
    for &mark in marks {
        usual.entry(mark).or_insert_with(|| {
            let held = members.iter().map(|(_, rank)| rank.then.get(&mark).copied().unwrap_or(0));
            median(held.collect())
        });
    }
    let by = |mark: u64, usual_bytes: u64| {
        let held = rank.then.get(&mark).copied().unwrap_or(0);
        let more = held as i64 - usual_bytes as i64;
        (if is_more { more } else { -more }, mark, (held, usual_bytes))
    };
    let all = usual.into_iter().map(|(mark, usual_bytes)| by(mark, usual_bytes));
    all.max().map_or((0, (0, 0)), |(_, mark, held)| (mark, held))
}

/// Since when a rank holds more at a place than an ordinary one ever does.
fn since(odd: &Rank, ordinary: &Rank, mark: u64, device: u32) -> Option<Since> {
    let usual_bytes = {
        let (workload, snapshot) = Workload::load_whole(&ordinary.file, device, &Unwatched).ok()?;
        let taken = snapshot.as_deref().map(|taken| (taken, device));
        let holdings = Holdings::by_stack(&workload, taken);
        let place = holdings.places.iter().position(|place| place.mark == mark);
        place.map_or(0, |place| holdings.most(&workload).of_each[place].0)
    };
    let (workload, snapshot) = Workload::load_whole(&odd.file, device, &Unwatched).ok()?;
    let taken = snapshot.as_deref().map(|taken| (taken, device));
    let holdings = Holdings::by_stack(&workload, taken);
    let place = holdings.places.iter().position(|place| place.mark == mark)?;
    let request = holdings.first_above(&workload, place as u32, usual_bytes)?;
    let marks = Marks::of(&workload, taken);
    Some(Since { request, words: marks.in_words(request) })
}
