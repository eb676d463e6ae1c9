//! Who names or calls whom, and which of them do so in a circle.

use std::collections::{BTreeMap, BTreeSet};

/// For each node those that it leads to.
pub(super) type Graph<N> = BTreeMap<N, BTreeSet<N>>;

/// Each group of two nodes or more that all reach each other, once.
pub(super) fn circles<N: Ord + Clone>(graph: &Graph<N>) -> BTreeSet<BTreeSet<N>> {
    let reached = |from: &N| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            let next = graph.get(node).into_iter().flatten();
            open.extend(next.filter(|next| seen.insert((*next).clone())));
        }
        seen
    };
    let reach: Graph<N> = graph.keys().map(|node| (node.clone(), reached(node))).collect();
    let leads_back = |node: &N, to: &N| reach.get(to).is_some_and(|reached| reached.contains(node));
    let circles = reach.iter().map(|(node, reached)| {
        reached.iter().filter(|other| leads_back(node, other)).cloned().collect::<BTreeSet<N>>()
    });
    circles.filter(|circle| circle.len() > 1).collect()
}
