//! The table of names: pools in the order in which PyTorch walks them, where it keeps them in a
//! hash table: those that lend to whoever runs out of memory, and those that nobody uses any more.
//!
//! The names are small numbers, so that the order follows from them and from what was added and
//! removed before. Each name has a slot that is its home; one that finds its home taken goes on,
//! past all names of the same home, and takes the place of one that is nearer to its own, which
//! then goes on in the same way.

use std::mem;

use crate::types::PoolId;

/// The first table has so many homes; each later one twice as many. At most half of them are taken.
const HOMES_MIN: usize = 4;
/// No name is so far away from its home, or further: the table grows instead.
const REACH_MIN: usize = 4;
/// 2⁶⁴ divided by the golden ratio: names that follow each other are spread by it.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Names of pools, in the order of a hash set.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    slots: Vec<Option<Resident>>,
    /// How many slots are the home of names; none or a power of two. The slots behind them are for
    /// names that found their home taken.
    homes: usize,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    name: PoolId,
    /// How many slots it is behind its home.
    distance: usize,
}

impl NameTable {
    /// All names, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PoolId> + '_ {
        self.slots.iter().flatten().map(|resident| resident.name)
    }

    /// Puts a name on the table, unless it is there.
    pub(crate) fn add(&mut self, name: PoolId) {
        let (mut at, mut distance) = (self.home(name), 0);
        while let Some(Some(resident)) = self.slots.get(at)
            && resident.distance >= distance
        {
            if resident.name == name {
                return;
            }
            (at, distance) = (at + 1, distance + 1);
        }
        if distance == self.reach() || 2 * (self.len + 1) > self.homes {
            self.grow();
            return self.add(name);
        }
        self.settle(at, Resident { name, distance });
    }

    /// Settles a name at a slot. Whoever is there is nearer to its home, and looks for a place
    /// further on in the same way.
    fn settle(&mut self, first: usize, resident: Resident) {
        let (mut at, mut homeless) = (first, resident);
        while let Some(settled) = &mut self.slots[at] {
            if settled.distance < homeless.distance {
                mem::swap(settled, &mut homeless);
            } else if homeless.distance + 1 == self.reach() {
                // The newcomer is the one to wait for the larger table.
                if let Some(newcomer) = &mut self.slots[first] {
                    mem::swap(&mut newcomer.name, &mut homeless.name);
                }
                self.grow();
                return self.add(homeless.name);
            }
            homeless.distance += 1;
            at += 1;
        }
        self.slots[at] = Some(homeless);
        self.len += 1;
    }

    /// Takes a name off the table; says whether it was there. Those behind it that are not at home
    /// come one slot nearer.
    pub(crate) fn remove(&mut self, name: PoolId) -> bool {
        let is_here = |slot: &Option<Resident>| slot.is_some_and(|resident| resident.name == name);
        let Some(mut at) = self.slots.iter().position(is_here) else { return false };
        self.slots[at] = None;
        self.len -= 1;
        while let Some(Some(next)) = self.slots.get(at + 1).copied()
            && next.distance > 0
        {
            self.slots[at] = Some(Resident { distance: next.distance - 1, ..next });
            self.slots[at + 1] = None;
            at += 1;
        }
        true
    }

    /// All names move to a table of twice the size, in the order of this one.
    fn grow(&mut self) {
        self.homes = (2 * self.homes).max(HOMES_MIN);
        self.len = 0;
        let slots = vec![None; self.homes + self.reach() - 1];
        let old = mem::replace(&mut self.slots, slots);
        for resident in old.into_iter().flatten() {
            self.add(resident.name);
        }
    }

    fn reach(&self) -> usize {
        REACH_MIN.max(self.homes.max(1).ilog2() as usize)
    }

    fn home(&self, name: PoolId) -> usize {
        let number = if name.0 == 0 { name.1 } else { name.0 };
        match self.homes {
            0 => 0,
            homes => (number.wrapping_mul(SPREAD) >> (u64::BITS - homes.ilog2())) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order after these were added, or, where they are below zero, removed.
    fn order(steps: &[i64]) -> Vec<u64> {
        let mut table = NameTable::default();
        for &step in steps {
            let name = PoolId(0, step.unsigned_abs());
            if step > 0 {
                table.add(name);
            } else {
                assert!(table.remove(name) && !table.remove(name));
            }
        }
        table.iter().map(|name| name.1).collect()
    }

    // All orders below are what PyTorch's own container gave.

    #[test]
    fn names_of_one_home_go_by_who_came_first() {
        for [first, second] in [[2, 5], [8, 11], [1, 9]] {
            assert_eq!(order(&[first, second]), [first, second].map(i64::unsigned_abs));
            assert_eq!(order(&[second, first]), [second, first].map(i64::unsigned_abs));
        }
        assert_eq!(order(&[1, 9, 3]), [1, 9, 3], "the table has grown once");
        assert_eq!(order(&[9, 1, 3]), [9, 1, 3]);
    }

    #[test]
    fn in_a_table_with_room_names_go_by_their_homes() {
        let all: Vec<i64> = (1..=12).collect();
        let back: Vec<i64> = (1..=12).rev().collect();
        let orders = [5, 10, 2, 7, 12, 4, 9, 1, 6, 11, 3, 8];
        assert_eq!((order(&all), order(&back)), (orders.to_vec(), orders.to_vec()));
        assert_eq!(order(&[8, 11, 3, 1]), [1, 11, 3, 8]);
        assert_eq!(order(&[5, 13, 26, 34, 47, 55, 68, 76]), [34, 68, 47, 13, 26, 5, 55, 76]);
    }

    #[test]
    fn a_name_that_comes_back_comes_last_of_its_home() {
        assert_eq!(order(&[2, 5, -2, 2]), [5, 2]);
        assert_eq!(order(&[1, 4, 9, -1, 1]), [4, 9, 1]);
        assert_eq!(order(&[2, 2, 5]), [2, 5], "once is enough");
    }

    #[test]
    fn names_of_captures_stand_among_those_of_programs() {
        let mut table = NameTable::default();
        let names = [(0, 3), (4, 0), (0, 12), (0, 1)].map(|(of, number)| PoolId(of, number));
        for name in names {
            table.add(name);
        }
        let order: Vec<PoolId> = table.iter().collect();
        assert_eq!(order, [PoolId(4, 0), PoolId(0, 12), PoolId(0, 1), PoolId(0, 3)]);
        assert!(!table.remove(PoolId(0, 4)), "another name of the same number");
    }
}
