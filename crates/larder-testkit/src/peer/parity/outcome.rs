//! What one run of a script came to, and where two runs part.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Keys that the peer does not print: texts, what follows from other keys, and what calls cost.
const OURS_ALONE: &str = "operations overhead first_oom first_oom.operation driver.ns driver.calls \
     driver.last_third.ns driver.last_third.calls driver.measured_on";

/// Statistics that the oldest peer does not have.
const LATER: [&str; 2] = ["num_oom_rejections", "reserved_bytes_by_private_pools"];

/// The statistics and the placements of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    stats: BTreeMap<String, i64>,
    /// A line `ID ADDRESS` for each allocation.
    placements: Vec<String>,
    /// A line for each entry of the history, and for what is there at the end.
    history: Vec<String>,
}

impl Outcome {
    /// Reads what a run printed and what it wrote; none if that is no flat object of numbers, but
    /// for what ours alone says.
    pub(super) fn read(printed: &str, placements: &str, history: &str) -> Option<Self> {
        let all: Map<String, Value> = serde_json::from_str(printed.trim()).ok()?;
        let told =
            all.into_iter().filter(|(key, _)| !OURS_ALONE.split(' ').any(|name| name == key));
        let stats = told.map(|(key, value)| Some((key, value.as_i64()?))).collect::<Option<_>>()?;
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        Some(Self { stats, placements: lines(placements), history: lines(history) })
    }

    /// Without the statistics that not every version has.
    pub(super) fn in_common(mut self) -> Self {
        self.stats.retain(|name, _| !LATER.iter().any(|later| name.starts_with(later)));
        self
    }

    /// Where two runs part.
    pub(super) fn parting(peer: &Self, ours: &Self) -> Parting {
        let placement = first_difference("placement", &peer.placements, &ours.placements);
        let history = first_difference("history line", &peer.history, &ours.history);
        let unordered = history.as_ref().and_then(|_| {
            first_difference(
                "history line, blocks that became free together in any order,",
                &peer.unordered_history(),
                &ours.unordered_history(),
            )
        });
        let names: BTreeSet<&String> =
            peer.stats.iter().chain(&ours.stats).map(|stat| stat.0).collect();
        let stats = names.into_iter().filter_map(|name| {
            let (peer, ours) = (peer.stat(name), ours.stat(name));
            let text = |value: Option<i64>| value.map_or("none".to_owned(), |v| v.to_string());
            let sentence = format!("{name}: peer {}, ours {}", text(peer), text(ours));
            (peer != ours).then(|| (name.clone(), sentence))
        });
        Parting { placement, stats: stats.collect(), history, unordered }
    }

    /// The history with blocks that became free one right after the other in the order of their
    /// lines, and without what follows from their order: which of several merged blocks' sizes is
    /// remembered, and what trackers saw one after the other.
    fn unordered_history(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::with_capacity(self.history.len());
        let mut run = 0;
        for line in &self.history {
            let words: Vec<&str> = line.split(' ').collect();
            let line = match words[..] {
                ["block", addr, size, _, "inactive", _] => format!("block {addr} {size} inactive"),
                ["segment", .., _] => words[..words.len() - 1].join(" "),
                ["tracked", count, _] => format!("tracked {count}"),
                _ => line.clone(),
            };
            if line.starts_with("free_completed ") {
                run += 1;
            } else {
                let len = lines.len();
                lines[len - run..].sort();
                run = 0;
            }
            lines.push(line);
        }
        let len = lines.len();
        lines[len - run..].sort();
        lines
    }

    fn stat(&self, name: &str) -> Option<i64> {
        self.stats.get(name).copied()
    }
}

/// The first line that is not the same, as a sentence.
fn first_difference(what: &str, peer: &[String], ours: &[String]) -> Option<String> {
    (0..peer.len().max(ours.len())).find_map(|at| {
        let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_default();
        let (peer, ours) = (line(peer), line(ours));
        (peer != ours).then(|| format!("{what} {}: peer `{peer}`, ours `{ours}`", at + 1))
    })
}

/// Where two runs part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parting {
    /// The first placement that differs, as a sentence.
    placement: Option<String>,
    /// Each statistic that differs, with a sentence.
    stats: Vec<(String, String)>,
    /// The first line of the history that differs, as a sentence.
    history: Option<String>,
    /// The first that differs where the order in which blocks become free together does not count.
    unordered: Option<String>,
}

impl Parting {
    pub(super) fn is_none(&self) -> bool {
        self.placement.is_none() && self.stats.is_empty() && self.history.is_none()
    }

    /// Whether nothing differs but lines of the history.
    pub(super) fn is_history_alone(&self) -> bool {
        self.placement.is_none() && self.stats.is_empty()
    }

    /// The first placement, statistic or line of the history that differs.
    pub(super) fn first(&self) -> String {
        let stat = self.stats.first().map(|stat| stat.1.clone());
        self.placement.clone().or(stat).or(self.history.clone()).unwrap_or_default()
    }

    /// What is left when everything on which the peer parts from itself is left out. Where it
    /// parts from itself in a placement, everything may follow from that.
    pub(super) fn beyond(&self, own: &[Self]) -> Self {
        if own.iter().any(|parting| parting.placement.is_some()) {
            return Self::default();
        }
        let unsteady: BTreeSet<&str> = own
            .iter()
            .flat_map(|parting| parting.stats.iter().map(|stat| cause(&stat.0)))
            .collect();
        let stats = self.stats.iter().filter(|stat| !unsteady.contains(cause(&stat.0))).cloned();
        // A history that comes now in this order, now in that, is no measure.
        let is_steady = own.iter().all(|parting| parting.history.is_none());
        let is_steady_unordered = own.iter().all(|parting| parting.unordered.is_none());
        let history = if is_steady {
            self.history.clone()
        } else {
            self.unordered.clone().filter(|_| is_steady_unordered)
        };
        Self { placement: self.placement.clone(), stats: stats.collect(), history, unordered: None }
    }
}

/// What a statistic depends on. The sums and peaks of free pieces all follow from the order in
/// which blocks are merged; an order in which one of them changes may be found long before one in
/// which another does.
fn cause(name: &str) -> &str {
    const PIECES: &str = "inactive_split";
    if name.starts_with(PIECES) { PIECES } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(printed: &str, placements: &str) -> Outcome {
        Outcome::read(printed, placements, "").unwrap()
    }

    fn parting(peer: (&str, &str), ours: (&str, &str)) -> Parting {
        Outcome::parting(&outcome(peer.0, peer.1), &outcome(ours.0, ours.1))
    }

    #[test]
    fn only_flat_objects_of_numbers_are_read() {
        assert_eq!(outcome("{\"a\":1,\"b.c\": -2}\n", "").stat("b.c"), Some(-2));
        for wrong in
            ["", "{", "{\"a\":x}", "{\"a\":\"1\"}", "{\"a\":1.5}", "{a:1}", "{\"a\":1}x", "[1]"]
        {
            assert_eq!(Outcome::read(wrong, "", ""), None, "{wrong} was taken");
        }
    }

    #[test]
    fn what_ours_alone_says_is_left_out() {
        let printed =
            r#"{"a":1,"driver.ns":7,"first_oom":"GPU 0, \"full\": {so}","overhead":1.5,"b":2}"#;
        let read = outcome(printed, "");
        assert_eq!((read.stat("a"), read.stat("b"), read.stats.len()), (Some(1), Some(2), 2));
        assert_eq!(outcome(r#"{"first_oom": null, "c": -3}"#, "").stat("c"), Some(-3));
    }

    #[test]
    fn the_first_difference_is_a_placement_if_one_differs() {
        assert!(parting(("{\"a\":1}", "1 f\n"), ("{\"a\":1}", "1 f\n")).is_none());
        let both = parting(("{\"a\":1}", "1 f\n2 e\n"), ("{\"a\":2}", "1 f\n2 d\n"));
        assert_eq!(both.first(), "placement 2: peer `2 e`, ours `2 d`");
        let stat = parting(("{\"a\":1,\"b\":1}", ""), ("{\"a\":1,\"c\":1}", ""));
        assert_eq!(stat.first(), "b: peer 1, ours none");
        let short = parting(("{\"a\":1}", "1 f\n"), ("{\"a\":1}", ""));
        assert_eq!(short.first(), "placement 1: peer `1 f`, ours ``");
    }

    #[test]
    fn what_the_peer_does_now_so_now_otherwise_does_not_count() {
        let ours = ("{\"a\":1,\"b\":1}", "1 f\n");
        let found = parting(("{\"a\":2,\"b\":2}", "1 f\n"), ours);
        let own = parting(("{\"a\":2,\"b\":2}", "1 f\n"), ("{\"a\":3,\"b\":2}", "1 f\n"));
        assert_eq!(found.beyond(&[own]).first(), "b: peer 2, ours 1");
        let elsewhere = parting(("{\"a\":2,\"b\":2}", "1 f\n"), ("{\"a\":3,\"b\":2}", "1 e\n"));
        assert!(found.beyond(&[elsewhere]).is_none());
        assert_eq!(found.beyond(&[]).first(), found.first());
    }

    #[test]
    fn the_history_counts_where_the_peer_is_steady_in_it() {
        let run = |history: &str| Outcome::read("{\"a\":1}", "", history).unwrap();
        let parting = |peer, ours| Outcome::parting(&run(peer), &run(ours));
        let found = parting("alloc 1\nfree 1\n", "alloc 1\nfree 2\n");
        assert_eq!(found.first(), "history line 2: peer `free 1`, ours `free 2`");
        let steady = parting("a\n", "a\n");
        assert_eq!(found.beyond(&[steady]).first(), found.first());
        assert!(found.beyond(&[parting("a\n", "b\n")]).is_none());
    }

    #[test]
    fn the_order_in_which_blocks_become_free_counts_where_it_is_steady() {
        let run = |history: &str| Outcome::read("{\"a\":1}", "", history).unwrap();
        let parting = |peer, ours| Outcome::parting(&run(peer), &run(ours));
        let [one, other] = [
            "free_completed 1 8\nfree_completed 2 8\nalloc 1 8\nblock 9 512 1 inactive -\n",
            "free_completed 2 8\nfree_completed 1 8\nalloc 1 8\nblock 9 512 2 inactive -\n",
        ];
        let found = parting(one, other);
        assert!(found.is_history_alone() && !found.is_none());
        assert!(!found.beyond(&[]).is_none(), "the peer was not seen to do it otherwise");
        assert!(found.beyond(&[parting(one, other)]).is_none());
        let more = "free_completed 2 8\nfree_completed 1 8\nalloc 3 8\nblock 9 512 2 inactive -\n";
        let rest = parting(one, more).beyond(&[parting(one, other)]);
        assert!(rest.first().contains("peer `alloc 1 8`, ours `alloc 3 8`"), "{}", rest.first());
    }

    #[test]
    fn the_sums_of_free_pieces_are_unsteady_together() {
        let [first, second] =
            ["{\"inactive_split.all.peak\":1}", "{\"inactive_split.all.peak\":2}"];
        let ours = "{\"inactive_split.all.peak\":1,\"inactive_split_bytes.all.freed\":1}";
        let own = parting((first, ""), (second, ""));
        assert!(parting((first, ""), (ours, "")).beyond(&[own]).is_none());
    }
}
