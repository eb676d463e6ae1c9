//! Extents: bytes of a device's memory, at whatever addresses they are seen.

use std::collections::BTreeMap;

/// A run of bytes of a device's memory. The same bytes may be seen at several addresses, and are
/// one extent all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Which plain allocation, or which memory behind pages; no two have the same number.
    pub memory: u64,
    /// Where in it the bytes begin.
    pub offset_bytes: u64,
    /// How many there are.
    pub size_bytes: u64,
}

impl Extent {
    pub(crate) fn new(memory: u64, offset_bytes: u64, size_bytes: u64) -> Extent {
        Extent { memory, offset_bytes, size_bytes }
    }

    /// Whether the two have a byte in common.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.memory == other.memory
            && self.offset_bytes < other.offset_bytes + other.size_bytes
            && other.offset_bytes < self.offset_bytes + self.size_bytes
    }
}

/// The bytes that somebody wrote, by where they lie. There are few: only tests write.
#[derive(Debug, Default)]
pub(crate) struct Bytes(BTreeMap<(u64, u64), u8>);

impl Bytes {
    pub(crate) fn write(&mut self, extent: Extent, value: u8) {
        self.0.insert((extent.memory, extent.offset_bytes), value);
    }

    pub(crate) fn read(&self, extent: Extent) -> u8 {
        self.0.get(&(extent.memory, extent.offset_bytes)).copied().unwrap_or(0)
    }

    /// What was written in an extent: how far into it, and what.
    pub(crate) fn written(&self, extent: Extent) -> impl Iterator<Item = (u64, u8)> + '_ {
        let Extent { memory, offset_bytes, size_bytes } = extent;
        let range = (memory, offset_bytes)..(memory, offset_bytes + size_bytes);
        self.0.range(range).map(move |(&(_, at), &value)| (at - offset_bytes, value))
    }

    /// Nobody wrote in an extent.
    pub(crate) fn clear(&mut self, extent: Extent) {
        let written: Vec<u64> = self.written(extent).map(|(at, _)| at).collect();
        for at in written {
            self.0.remove(&(extent.memory, extent.offset_bytes + at));
        }
    }

    /// The memory is gone, and what was in it.
    pub(crate) fn forget(&mut self, memory: u64) {
        let mut later = self.0.split_off(&(memory, 0));
        self.0.append(&mut later.split_off(&(memory + 1, 0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_overlap_in_one_memory_only_and_not_where_they_touch() {
        let extent = Extent::new(1, 10, 5);
        for (memory, offset_bytes, size_bytes, expected) in [
            (1, 14, 1, true),
            (1, 0, 11, true),
            (1, 15, 1, false),
            (1, 0, 10, false),
            (2, 10, 5, false),
        ] {
            let other = Extent::new(memory, offset_bytes, size_bytes);
            assert_eq!(extent.overlaps(&other), expected, "{other:?}");
            assert_eq!(other.overlaps(&extent), expected, "{other:?}");
        }
    }

    #[test]
    fn bytes_go_with_their_memory_and_with_no_other() {
        let mut bytes = Bytes::default();
        for memory in 1..=3 {
            bytes.write(Extent::new(memory, 0, 1), 7);
            bytes.write(Extent::new(memory, u64::MAX, 1), 8);
        }
        bytes.forget(2);
        let read =
            |memory| [0, 1, u64::MAX].map(|offset| bytes.read(Extent::new(memory, offset, 1)));
        assert_eq!([1, 2, 3].map(read), [[7, 0, 8], [0, 0, 0], [7, 0, 8]]);
    }
}
