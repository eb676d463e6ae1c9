//! Numbers of the model's pools in the order in which PyTorch walks them: that of a hash table
//! whose entries go on to later slots where theirs are taken.

/// The numbers of the pools, each in the slot that its hash names or in one behind it.
#[derive(Clone, Debug, Default)]
pub(super) struct NumberTable {
    slots: Vec<Option<u32>>,
    /// The table has 2 to this power of slots that a hash can name; 0 before there is a table.
    bits: u32,
}

impl NumberTable {
    pub(super) fn in_order(&self) -> Vec<u32> {
        self.slots.iter().flatten().copied().collect()
    }

    /// How far behind its own slot an entry would be at this one.
    fn distance(&self, pool: u32, at: usize) -> usize {
        at - (u64::from(pool).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.bits)) as usize
    }

    /// An entry goes behind all that are as far from their own slots as it would be in their place,
    /// and drives out one that is nearer, which then does the same.
    pub(super) fn insert(&mut self, pool: u32) {
        if self.in_order().contains(&pool) {
            return;
        }
        if 2 * (self.in_order().len() + 1) > self.homes() {
            return self.enlarge(pool);
        }
        let mut slots = self.slots.clone();
        let mut carried = pool;
        let mut at = (0..slots.len()).find(|&at| self.is_own(pool, at)).expect("it has a slot");
        while let Some(there) = slots[at] {
            if self.distance(there, at) < self.distance(carried, at) {
                (slots[at], carried) = (Some(carried), there);
            }
            at += 1;
            if self.distance(carried, at) == self.distance_max() {
                // What was driven out last takes the newcomer's place in the old table.
                if carried != pool {
                    let place = slots.iter().position(|&slot| slot == Some(pool));
                    slots[place.expect("it drove somebody out")] = Some(carried);
                }
                self.slots = slots;
                return self.enlarge(pool);
            }
        }
        slots[at] = Some(carried);
        self.slots = slots;
    }

    fn is_own(&self, pool: u32, at: usize) -> bool {
        let hash = u64::from(pool).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        at as u64 == hash >> (64 - self.bits)
    }

    /// Puts all into a table of twice the size, and then this one.
    fn enlarge(&mut self, pool: u32) {
        let all = self.in_order();
        self.bits = (self.bits + 1).max(2);
        self.slots = vec![None; self.homes() + self.distance_max()];
        all.into_iter().chain([pool]).for_each(|pool| self.insert(pool));
    }

    fn homes(&self) -> usize {
        if self.bits == 0 { 0 } else { 1 << self.bits }
    }

    fn distance_max(&self) -> usize {
        self.bits.max(4) as usize
    }

    /// Those behind it come nearer to their own slots, up to the first that is in its own.
    pub(super) fn remove(&mut self, pool: u32) -> bool {
        let Some(at) = self.slots.iter().position(|&slot| slot == Some(pool)) else {
            return false;
        };
        let stays = |at: &usize| self.slots[*at].is_none_or(|pool| self.is_own(pool, *at));
        let end = (at + 1..self.slots.len()).find(stays).unwrap_or(self.slots.len());
        self.slots[at..end].rotate_left(1);
        self.slots[end - 1] = None;
        true
    }
}
