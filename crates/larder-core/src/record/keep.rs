//! Keep: things that many name and that are kept once, for exactly as long as somebody names them.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::error::Unsound;

/// Names a kept thing. Whoever holds one holds a use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeptId(NonZeroU32);

impl KeptId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

struct Slot<T: ?Sized> {
    thing: Option<Arc<T>>,
    fingerprint: u64,
    uses: u32,
}

impl<T: ?Sized> Clone for Slot<T> {
    fn clone(&self) -> Slot<T> {
        let Slot { thing, fingerprint, uses } = self;
        Slot { thing: thing.clone(), fingerprint: *fingerprint, uses: *uses }
    }
}

/// The kept things.
pub(crate) struct Keep<T: ?Sized> {
    slots: Vec<Slot<T>>,
    spare: Vec<KeptId>,
    by_fingerprint: HashMap<u64, Vec<KeptId>>,
    /// What nobody names any more. The owner takes it away and drops it where that does no harm.
    dropped: Vec<Arc<T>>,
}

impl<T: ?Sized> Default for Keep<T> {
    fn default() -> Keep<T> {
        Keep {
            slots: Vec::new(),
            spare: Vec::new(),
            by_fingerprint: HashMap::new(),
            dropped: Vec::new(),
        }
    }
}

impl<T: ?Sized> Clone for Keep<T> {
    fn clone(&self) -> Keep<T> {
        Keep {
            slots: self.slots.clone(),
            spare: self.spare.clone(),
            by_fingerprint: self.by_fingerprint.clone(),
            dropped: Vec::new(),
        }
    }
}

impl<T: ?Sized> fmt::Debug for Keep<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keep of {}", self.len())
    }
}

impl<T: ?Sized> Keep<T> {
    /// Keeps a thing, or finds the same one, and adds a use. What came twice is let go of.
    pub(crate) fn add(
        &mut self,
        thing: Arc<T>,
        fingerprint: u64,
        is_same: impl Fn(&T, &T) -> bool,
    ) -> KeptId {
        let alike = self.by_fingerprint.entry(fingerprint).or_default();
        let same = |id: &&KeptId| {
            let known = self.slots[id.index()].thing.as_ref();
            known.is_some_and(|known| Arc::ptr_eq(known, &thing) || is_same(known, &thing))
        };
        if let Some(&id) = alike.iter().find(same) {
            self.slots[id.index()].uses += 1;
            self.dropped.push(thing);
            return id;
        }
        let slot = Slot { thing: Some(thing), fingerprint, uses: 1 };
        let id = if let Some(id) = self.spare.pop() {
            self.slots[id.index()] = slot;
            id
        } else {
            self.slots.push(slot);
            let count = u32::try_from(self.slots.len()).expect("fewer than 4 billion contexts");
            KeptId(NonZeroU32::new(count).expect("one was pushed"))
        };
        alike.push(id);
        id
    }

    /// Adds a use of a thing that is named already.
    pub(crate) fn add_use(&mut self, id: KeptId) {
        self.slots[id.index()].uses += 1;
    }

    /// Drops a use; with the last one the thing is let go of.
    pub(crate) fn drop_use(&mut self, id: KeptId) {
        let slot = &mut self.slots[id.index()];
        slot.uses -= 1;
        if slot.uses > 0 {
            return;
        }
        self.dropped.extend(slot.thing.take());
        let fingerprint = slot.fingerprint;
        if let Some(alike) = self.by_fingerprint.get_mut(&fingerprint) {
            alike.retain(|&other| other != id);
            if alike.is_empty() {
                self.by_fingerprint.remove(&fingerprint);
            }
        }
        self.spare.push(id);
    }

    /// The thing of this name.
    pub(crate) fn get(&self, id: KeptId) -> &Arc<T> {
        self.slots[id.index()].thing.as_ref().expect("a name holds a use")
    }

    /// Checks that each thing has as many uses as it is named here.
    pub(crate) fn check(&self, names: impl Iterator<Item = KeptId>) -> Result<(), Unsound> {
        let mut uses = vec![0; self.slots.len()];
        names.for_each(|id| uses[id.index()] += 1);
        match (0..uses.len()).find(|&at| uses[at] != self.slots[at].uses) {
            None => Ok(()),
            Some(at) => Err(format!(
                "a kept thing has {} uses and is named {} times",
                self.slots[at].uses, uses[at]
            )
            .into()),
        }
    }

    /// How many things are kept.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.spare.len()
    }

    /// What nobody names any more.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<T>> {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(keep: &mut Keep<str>, text: &str) -> KeptId {
        keep.add(text.into(), text.len() as u64, |one, other| one == other)
    }

    #[test]
    fn the_same_is_kept_once_and_goes_with_its_last_use() {
        let mut keep = Keep::default();
        let one = add(&mut keep, "one");
        let two = add(&mut keep, "two");
        assert_ne!(one, two, "equal fingerprints do not make them the same");
        assert_eq!(add(&mut keep, "one"), one);
        keep.add_use(one);
        assert_eq!((keep.len(), &**keep.get(one)), (2, "one"));
        for uses_left in [2, 1, 0] {
            keep.drop_use(one);
            assert_eq!(keep.len(), 1 + usize::from(uses_left > 0));
        }
        let dropped: Vec<_> = keep.take_dropped().iter().map(ToString::to_string).collect();
        assert_eq!(dropped, ["one", "one"], "the copy that came second, and then the thing itself");
        assert_eq!(add(&mut keep, "six"), one, "the place is used again");
        assert_eq!(&**keep.get(two), "two");
    }
}
