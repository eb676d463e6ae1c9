//! Recency: views in the order in which they were used last. A view is found in it by its number,
//! so that a use costs the same however many views there are.

use crate::heap::ids::SegmentId;

/// A ring of views. `SegmentId::NONE`, which no view has, stands between the newest and the oldest.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    /// By view: those that were used before and after it. Both are `NONE` where the view is not in
    /// the ring, and where it is alone there.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: SegmentId,
    newer: SegmentId,
}

const ALONE: Link = Link { older: SegmentId::NONE, newer: SegmentId::NONE };

impl Default for Recency {
    fn default() -> Recency {
        Recency { links: vec![ALONE] }
    }
}

impl Recency {
    /// The view is used, for the first time or again.
    pub(super) fn note_use(&mut self, view: SegmentId) {
        if self.newest() == view {
            return;
        }
        self.remove(view);
        if self.links.len() <= view.index() {
            self.links.resize(view.index() + 1, ALONE);
        }
        let older = self.newest();
        self.links[view.index()] = Link { older, newer: SegmentId::NONE };
        self.links[older.index()].newer = view;
        self.links[SegmentId::NONE.index()].older = view;
    }

    /// The view is gone.
    pub(super) fn remove(&mut self, view: SegmentId) {
        if !self.contains(view) {
            return;
        }
        let Link { older, newer } = std::mem::replace(&mut self.links[view.index()], ALONE);
        self.links[older.index()].newer = newer;
        self.links[newer.index()].older = older;
    }

    pub(super) fn contains(&self, view: SegmentId) -> bool {
        assert!(view != SegmentId::NONE, "a view has a number");
        let link = self.links.get(view.index()).copied().unwrap_or(ALONE);
        link.older != SegmentId::NONE || self.oldest() == view
    }

    /// All views, those first that were not used for the longest time.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.walk(|link| link.newer)
    }

    /// All views, the one that was used last first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.walk(|link| link.older)
    }

    fn walk(&self, next: fn(Link) -> SegmentId) -> impl Iterator<Item = SegmentId> + '_ {
        let mut at = SegmentId::NONE;
        std::iter::from_fn(move || {
            at = next(self.links[at.index()]);
            (at != SegmentId::NONE).then_some(at)
        })
    }

    fn oldest(&self) -> SegmentId {
        self.links[SegmentId::NONE.index()].newer
    }

    fn newest(&self) -> SegmentId {
        self.links[SegmentId::NONE.index()].older
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(recency: &Recency) -> Vec<usize> {
        let order: Vec<usize> = recency.oldest_first().map(SegmentId::index).collect();
        let mut newest_first: Vec<usize> = recency.newest_first().map(SegmentId::index).collect();
        newest_first.reverse();
        assert_eq!(order, newest_first);
        order
    }

    #[test]
    fn the_view_that_was_used_last_comes_last() {
        let mut recency = Recency::default();
        let view = |number| SegmentId(number);
        for number in [3, 1, 7] {
            recency.note_use(view(number));
        }
        assert_eq!(order(&recency), [3, 1, 7]);
        recency.note_use(view(1));
        assert_eq!(order(&recency), [3, 7, 1]);
        recency.note_use(view(1));
        assert_eq!(order(&recency), [3, 7, 1], "it is the last already");
        recency.remove(view(7));
        recency.remove(view(7));
        assert_eq!(order(&recency), [3, 1]);
        assert!(!recency.contains(view(7)) && !recency.contains(view(9)));
        recency.remove(view(3));
        assert!(recency.contains(view(1)), "alone");
        recency.remove(view(1));
        assert_eq!(order(&recency), []);
        assert!(!recency.contains(view(1)));
    }
}
