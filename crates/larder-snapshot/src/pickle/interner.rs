//! Interner: equal slices are kept once, in one flat vector, and known by a number.

use std::hash::{BuildHasher, Hash, RandomState};

/// A set of slices. Hashes are keyed, so that no file can be made to collide.
pub(crate) struct Interner<T> {
    items: Vec<T>,
    ends: Vec<usize>,
    /// Open addressing; a bucket holds a number plus one, or 0. At most half of it is used.
    buckets: Vec<u32>,
    hash_state: RandomState,
}

impl<T: Copy + Eq + Hash> Interner<T> {
    pub(crate) fn new() -> Interner<T> {
        Interner {
            items: Vec::new(),
            ends: Vec::new(),
            buckets: vec![0; 64],
            hash_state: RandomState::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The slice of this number, which must have come from here.
    pub(crate) fn get(&self, number: u32) -> &[T] {
        let number = number as usize;
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.items[start..self.ends[number]]
    }

    /// The number of an equal slice, if there is one; otherwise the bucket for it.
    fn find(&self, slice: &[T]) -> Result<u32, usize> {
        let mask = self.buckets.len() - 1;
        let mut bucket = self.hash_state.hash_one(slice) as usize & mask;
        loop {
            match self.buckets[bucket] {
                0 => return Err(bucket),
                taken if self.get(taken - 1) == slice => return Ok(taken - 1),
                _ => bucket = (bucket + 1) & mask,
            }
        }
    }

    pub(crate) fn number_of(&self, slice: &[T]) -> Option<u32> {
        self.find(slice).ok()
    }

    /// The number of this slice. `None` when the numbers are used up.
    pub(crate) fn intern(&mut self, slice: &[T]) -> Option<u32> {
        let bucket = match self.find(slice) {
            Ok(number) => return Some(number),
            Err(bucket) => bucket,
        };
        let number = u32::try_from(self.ends.len()).ok().filter(|&number| number < u32::MAX)?;
        self.items.extend_from_slice(slice);
        self.ends.push(self.items.len());
        self.buckets[bucket] = number + 1;
        if self.ends.len() * 2 > self.buckets.len() {
            self.grow();
        }
        Some(number)
    }

    fn grow(&mut self) {
        self.buckets = vec![0; self.buckets.len() * 2];
        for number in 0..self.ends.len() as u32 {
            if let Err(bucket) = self.find(self.get(number)) {
                self.buckets[bucket] = number + 1;
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.items.capacity() * size_of::<T>() + self.ends.capacity() * 8 + self.buckets.len() * 4)
            as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_slices_have_one_number() {
        let mut interner = Interner::new();
        assert_eq!(interner.intern(b""), Some(0));
        for round in 0..2 {
            for number in 1..1000_u32 {
                assert_eq!(interner.intern(&number.to_le_bytes()), Some(number), "{round}");
            }
        }
        assert_eq!(interner.len(), 1000);
        assert_eq!(interner.get(0), b"");
        assert_eq!(interner.get(999), &999_u32.to_le_bytes());
        assert_eq!(interner.number_of(b"never"), None);
    }
}
