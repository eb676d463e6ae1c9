//! Growth: what a program holds more of in one recording than in another, by where it is asked for,
//! and since when.

use std::collections::HashMap;
use std::str::FromStr;

use larder_sim::parse_capacity;
use larder_snapshot::Snapshot;

use crate::holdings::{Holdings, Most, Place};
use crate::marks::Marks;
use crate::option_error::OptionError;
use crate::workload::Workload;

/// A recording, with the snapshot that it was made from and which device's trace it is.
pub type Taken<'a> = (&'a Workload, Option<(&'a Snapshot, u32)>);

/// What one place of a program holds in two recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The frames that name it.
    pub words: Vec<String>,
    /// What it holds when most is held in all, before and after.
    pub then: (u64, u64),
    /// The most that it ever holds, before and after.
    pub most: (u64, u64),
    /// Since when it holds more than it ever did before: the request of the later recording, from
    /// 0, and in words.
    pub since: Option<(usize, String)>,
}

impl Change {
    /// How much more it holds when most is held.
    pub fn grown_bytes(&self) -> i64 {
        self.then.1 as i64 - self.then.0 as i64
    }
}

/// Two recordings of a program, one beside the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The most that the program asked for and had at once, before and after.
    pub asked: (u64, u64),
    /// How many requests it makes, before and after.
    pub requests: (u64, u64),
    /// Each place that holds another amount when most is held, what grew most first.
    pub changes: Vec<Change>,
}

/// How many changes are looked into for since when.
const LOOKED_INTO: usize = 50;

impl Growth {
    /// What grew from the first recording to the second.
    pub fn between(before: Taken<'_>, after: Taken<'_>) -> Growth {
        let [one, other] = [before, after].map(|(work, taken)| Holdings::by_stack(work, taken));
        let [most_one, most_other] =
            [(&one, before.0), (&other, after.0)].map(|(held, work)| held.most(work));
        let marks = Marks::of(after.0, after.1);
        let pairs = paired(&one.places, &other.places);
        let mut changes: Vec<(Change, Option<usize>)> = pairs
            .into_iter()
            .filter_map(|(at_one, at_other)| {
                change((&one, &most_one, at_one), (&other, &most_other, at_other))
                    .map(|change| (change, at_other))
            })
            .collect();
        changes.sort_by_key(|(change, _)| std::cmp::Reverse(change.grown_bytes()));
        for (change, at) in changes.iter_mut().take(LOOKED_INTO) {
            let Some(at) = at.filter(|_| change.most.1 > change.most.0) else { continue };
            let since = other.first_above(after.0, at as u32, change.most.0);
            change.since = since.map(|request| (request, marks.in_words(request)));
        }
        let requests = |workload: &Workload| {
            let is_request =
                |op: &&larder_sim::script::Op| matches!(op, larder_sim::script::Op::Alloc { .. });
            workload.ops.iter().filter(is_request).count() as u64
        };
        Growth {
            asked: (most_one.all.0, most_other.all.0),
            requests: (requests(before.0), requests(after.0)),
            changes: changes.into_iter().map(|(change, _)| change).collect(),
        }
    }

    /// How much more is held at the most.
    pub fn grown_bytes(&self) -> i64 {
        self.asked.1 as i64 - self.asked.0 as i64
    }

    /// Whether it grew by more than this.
    pub fn is_beyond(&self, limit: Limit) -> bool {
        let limit_bytes = match limit {
            Limit::Percent(percent) => (self.asked.0 as f64 * percent / 100.0) as i64,
            Limit::Bytes(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
        };
        self.grown_bytes() > limit_bytes
    }
}

/// The places of both: equal ones together, then those that are equal but for their lines, which
/// move when somebody edits the program.
fn paired(one: &[Place], other: &[Place]) -> Vec<(Option<usize>, Option<usize>)> {
    let by_mark: HashMap<u64, usize> =
        other.iter().enumerate().map(|(at, place)| (place.mark, at)).collect();
    let mut is_taken = vec![false; other.len()];
    let mut pairs: Vec<(Option<usize>, Option<usize>)> = Vec::new();
    let mut alone = Vec::new();
    for (at, place) in one.iter().enumerate() {
        match by_mark.get(&place.mark) {
            Some(&found) => {
                is_taken[found] = true;
                pairs.push((Some(at), Some(found)));
            }
            None => alone.push(at),
        }
    }
    for at in alone {
        let is_alike =
            |&found: &usize| !is_taken[found] && other[found].loose_mark == one[at].loose_mark;
        let found = (0..other.len()).find(is_alike);
        if let Some(found) = found {
            is_taken[found] = true;
        }
        pairs.push((Some(at), found));
    }
    pairs.extend((0..other.len()).filter(|&at| !is_taken[at]).map(|at| (None, Some(at))));
    pairs
}

type Side<'a> = (&'a Holdings, &'a Most, Option<usize>);

fn change(one: Side<'_>, other: Side<'_>) -> Option<Change> {
    let then = |(_, most, at): Side<'_>| at.map_or(0, |at| most.then[at]);
    let each = |(_, most, at): Side<'_>| at.map_or(0, |at| most.of_each[at].0);
    let words = |(held, _, at): Side<'_>| at.map(|at| held.places[at].words.clone());
    let change = Change {
        words: words(other).or_else(|| words(one))?,
        then: (then(one), then(other)),
        most: (each(one), each(other)),
        since: None,
    };
    (change.then.0 != change.then.1).then_some(change)
}

/// By how much a program may grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// By so many hundredths.
    Percent(f64),
    /// By so many bytes.
    Bytes(u64),
}

impl FromStr for Limit {
    type Err = OptionError;

    /// A percentage such as `2%`, or a size such as `100MiB`.
    fn from_str(text: &str) -> Result<Limit, OptionError> {
        let wrong = || OptionError::Limit(text.to_owned());
        if let Some(number) = text.trim().strip_suffix('%') {
            let percent = number.trim().parse::<f64>().ok();
            let percent = percent.filter(|percent| (0.0..1e6).contains(percent));
            return percent.map(Limit::Percent).ok_or_else(wrong);
        }
        if text.trim() == "0" {
            return Ok(Limit::Bytes(0));
        }
        parse_capacity(text).map(Limit::Bytes).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;
    use larder_sim::script::Script;

    use super::*;

    fn workload(script: &str) -> Workload {
        Workload { ops: Script::parse(script).expect("a script"), ..Workload::default() }
    }

    #[test]
    fn what_grew_comes_first_with_since_when() {
        let before = workload("alloc 1 8MiB 0\nalloc 2 4MiB 0\nfree 1\n");
        let after = workload("alloc 1 8MiB 0\nalloc 2 4MiB 0\nalloc 3 4MiB 0\nalloc 4 4MiB 0\n");
        let found = Growth::between((&before, None), (&after, None));
        assert_eq!((found.asked, found.requests), ((12 * MIB, 20 * MIB), (2, 4)));
        let [change] = found.changes.as_slice() else { panic!("{found:?}") };
        assert_eq!((change.then, change.most), ((4 * MIB, 12 * MIB), (4 * MIB, 12 * MIB)));
        assert_eq!(change.since, Some((2, "request 3".to_owned())));
        assert!(found.is_beyond(Limit::Percent(60.0)) && !found.is_beyond(Limit::Percent(70.0)));
        assert!(found.is_beyond(Limit::Bytes(7 * MIB)) && !found.is_beyond(Limit::Bytes(8 * MIB)));
        let same = Growth::between((&after, None), (&after, None));
        assert!(same.changes.is_empty() && !same.is_beyond(Limit::Bytes(0)));
    }

    #[test]
    fn lines_that_moved_are_the_same_place() {
        let place = |mark, loose_mark| Place { mark, loose_mark, words: Vec::new() };
        let (one, other) = ([place(1, 9), place(2, 8)], [place(3, 9), place(2, 8), place(4, 7)]);
        let expected = [(Some(1), Some(1)), (Some(0), Some(0)), (None, Some(2))];
        assert_eq!(paired(&one, &other), expected);
    }

    #[test]
    fn a_limit_is_a_part_or_a_size() {
        assert_eq!("2%".parse(), Ok(Limit::Percent(2.0)));
        assert_eq!("100MiB".parse(), Ok(Limit::Bytes(100 * MIB)));
        for bad in ["2", "-1%", "%", "much"] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
    }
}
