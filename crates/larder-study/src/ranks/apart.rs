//! Apart: the ranks that have one shape, as those of one stage of a pipeline have. What a rank asks
//! for tells it: where, and how often; not how much, by which ranks of one stage may differ.

use super::{Figures, Rank};

/// Ranks of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Their places among all ranks.
    pub members: Vec<usize>,
}

/// Ranks of one stage differ by no more than this: by the places that only one of them has, by
/// their part of all bytes asked for, and by how often each place asks.
const SHAPE_MAX: f64 = 0.05;
/// A rank alone belongs to the stage that it is like, where that has so many.
const CROWD: usize = 3;
/// How unlike it may be then.
const STRAY_MAX: f64 = 0.5;

/// The stages, in the order of their first ranks.
pub(super) fn stages(ranks: &[(Rank, Result<Figures, String>)]) -> Vec<Stage> {
    let figures = |at: usize| ranks[at].1.as_ref().ok();
    let mut stages: Vec<Stage> = Vec::new();
    for at in 0..ranks.len() {
        let Some(own) = figures(at) else { continue };
        let fits = |stage: &&mut Stage| {
            figures(stage.members[0]).is_some_and(|first| unlike(own, first) <= SHAPE_MAX)
        };
        match stages.iter_mut().find(fits) {
            Some(stage) => stage.members.push(at),
            None => stages.push(Stage { members: vec![at] }),
        }
    }
    // The first and the last rank of a pipeline may well be alone; another that is, is odd.
    let read: Vec<usize> = (0..ranks.len()).filter(|&at| figures(at).is_some()).collect();
    let is_end = |at: usize| read.first() == Some(&at) || read.last() == Some(&at);
    let (alone, mut crowds): (Vec<Stage>, Vec<Stage>) =
        stages.into_iter().partition(|stage| stage.members.len() == 1);
    for stray in alone {
        let at = stray.members[0];
        let home = crowds
            .iter_mut()
            .filter(|stage| stage.members.len() >= CROWD)
            .filter_map(|stage| {
                let distance = unlike(figures(at)?, figures(stage.members[0])?);
                Some((distance, stage))
            })
            .min_by(|(one, _), (other, _)| one.total_cmp(other));
        let limit = if is_end(at) { SHAPE_MAX } else { STRAY_MAX };
        match home {
            Some((distance, stage)) if distance <= limit => stage.members.push(at),
            _ => crowds.push(stray),
        }
    }
    for stage in &mut crowds {
        stage.members.sort_unstable();
    }
    crowds.sort_by_key(|stage| stage.members[0]);
    crowds
}

/// How much two ranks differ in shape, from 0 to 1.
fn unlike(one: &Figures, other: &Figures) -> f64 {
    let part = |of: &Figures, without: &Figures| {
        let all: u64 = of.asked.values().map(|&(_, bytes)| bytes).sum();
        let alone = of.asked.iter().filter(|(mark, _)| !without.asked.contains_key(mark));
        alone.map(|(_, &(_, bytes))| bytes).sum::<u64>() as f64 / all.max(1) as f64
    };
    let (mut apart, mut together) = (0_u64, 0_u64);
    for (mark, &(count, _)) in &one.asked {
        let others = other.asked.get(mark).map_or(0, |&(count, _)| count);
        apart += count.abs_diff(others);
        together += count.max(others);
    }
    let missing = other.asked.iter().filter(|(mark, _)| !one.asked.contains_key(mark));
    for (_, &(count, _)) in missing {
        apart += count;
        together += count;
    }
    let by_count = apart as f64 / together.max(1) as f64;
    by_count.max(part(one, other)).max(part(other, one))
}
