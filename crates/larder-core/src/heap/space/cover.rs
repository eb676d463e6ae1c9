//! The cover map: from an address to the segment that it may lie in, with one or two loads.
//!
//! Addresses are looked up by granules of 2 MiB, in tables of many granules each. A device's
//! addresses lie close together, so there are few tables, and they are small.

use std::collections::HashMap;

use crate::heap::ids::SegmentId;
use crate::types::{Addr, Span};

/// The unit of the map. No segment is shorter, so that at most two share a granule: one that
/// covers its first byte, and one that starts behind it.
const GRANULE_SHIFT: u32 = 21;
/// A table covers 2^14 granules: 32 GiB.
const TABLE_SHIFT: u32 = 14;
const GRANULES: usize = 1 << TABLE_SHIFT;
/// For so many numbers of tables it is kept where they are, as long as there are fewer than 256.
const HINTS: usize = 64;

/// The segments that cover the first bytes of a run of granules.
#[derive(Clone, Debug)]
struct Table {
    /// Which run.
    number: u64,
    segments: Box<[SegmentId; GRANULES]>,
    /// How many of them are there.
    len: usize,
}

/// Which segments lie where.
#[derive(Clone, Debug)]
pub(crate) struct CoverMap {
    tables: Vec<Table>,
    /// For the lowest bits of a table's number, where a table of such a number was put last.
    hints: [u8; HINTS],
    /// Segments that start inside a granule, behind its first byte. Devices hardly ever give such
    /// addresses.
    inside: HashMap<u64, SegmentId>,
}

impl Default for CoverMap {
    fn default() -> CoverMap {
        CoverMap { tables: Vec::new(), hints: [0; HINTS], inside: HashMap::new() }
    }
}

fn granules(span: Span) -> impl Iterator<Item = u64> {
    span.addr.0 >> GRANULE_SHIFT..=(span.end().0 - 1) >> GRANULE_SHIFT
}

impl CoverMap {
    /// The segment, which starts at `start`, covers `span` from now on.
    pub(crate) fn add(&mut self, id: SegmentId, start: Addr, span: Span) {
        for granule in granules(span) {
            if granule << GRANULE_SHIFT >= start.0 {
                let entry = self.entry(granule);
                let was_empty = *entry == SegmentId::NONE;
                *entry = id;
                if was_empty {
                    self.table_mut(granule).len += 1;
                }
            } else {
                self.inside.insert(granule, id);
            }
        }
    }

    /// The segment no longer covers `span`.
    pub(crate) fn remove(&mut self, id: SegmentId, span: Span) {
        for granule in granules(span) {
            if self.inside.get(&granule) == Some(&id) {
                self.inside.remove(&granule);
            }
            let entry = self.entry(granule);
            if *entry == id {
                *entry = SegmentId::NONE;
                self.table_mut(granule).len -= 1;
            }
        }
        self.tables.retain(|table| table.len > 0);
        self.note_tables();
    }

    /// The segment that the address lies in if it starts inside the address's granule, and not
    /// behind the address. `start` says where one starts.
    pub(crate) fn segment_inside(
        &self,
        addr: Addr,
        start: impl Fn(SegmentId) -> Addr,
    ) -> Option<SegmentId> {
        let id = *self.inside.get(&(addr.0 >> GRANULE_SHIFT))?;
        (addr >= start(id)).then_some(id)
    }

    /// Any other segment that the address may lie in: the one that covers the first byte of its
    /// granule, or none.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn segment_near(&self, addr: Addr) -> SegmentId {
        let granule = addr.0 >> GRANULE_SHIFT;
        let number = granule >> TABLE_SHIFT;
        // Whether there is one table stays as it is for long; which of several it is, is anybody's
        // guess.
        let table = match self.tables.as_slice() {
            [table] if table.number == number => table,
            _ => match self.hinted_table(number) {
                Some(table) => table,
                None => return SegmentId::NONE,
            },
        };
        table.segments[granule as usize % GRANULES]
    }

    #[inline]
    fn hinted_table(&self, number: u64) -> Option<&Table> {
        let hinted = self.tables.get(usize::from(self.hints[number as usize % HINTS]));
        hinted.filter(|table| table.number == number).or_else(|| self.search_table(number))
    }

    #[cold]
    #[inline(never)]
    fn search_table(&self, number: u64) -> Option<&Table> {
        self.tables.iter().find(|table| table.number == number)
    }

    /// Notes where each table is.
    fn note_tables(&mut self) {
        for (at, table) in self.tables.iter().enumerate().take(1 << u8::BITS) {
            self.hints[table.number as usize % HINTS] = at as u8;
        }
    }

    fn table_mut(&mut self, granule: u64) -> &mut Table {
        let number = granule >> TABLE_SHIFT;
        let at = self.tables.iter().position(|table| table.number == number);
        let at = at.unwrap_or_else(|| {
            let segments = vec![SegmentId::NONE; GRANULES].into_boxed_slice();
            let segments = segments.try_into().expect("so many granules");
            self.tables.push(Table { number, segments, len: 0 });
            self.note_tables();
            self.tables.len() - 1
        });
        &mut self.tables[at]
    }

    fn entry(&mut self, granule: u64) -> &mut SegmentId {
        &mut self.table_mut(granule).segments[granule as usize % GRANULES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::MIB;

    fn segment(index: u32) -> SegmentId {
        SegmentId(index)
    }

    #[test]
    fn an_address_finds_its_segment() {
        let mut map = CoverMap::default();
        let far = Addr(1 << 52);
        map.add(segment(1), Addr(4 * MIB), Span::new(Addr(4 * MIB), 20 * MIB));
        map.add(segment(2), far, Span::new(far, 2 * MIB));
        assert_eq!(map.segment_near(Addr(4 * MIB)), segment(1));
        assert_eq!(map.segment_near(Addr(24 * MIB - 1)), segment(1));
        assert_eq!(map.segment_near(Addr(24 * MIB)), SegmentId::NONE);
        assert_eq!(map.segment_near(far.offset(512)), segment(2));
        map.remove(segment(1), Span::new(Addr(4 * MIB), 20 * MIB));
        assert_eq!(map.segment_near(Addr(4 * MIB)), SegmentId::NONE);
        assert_eq!(map.tables.len(), 1, "an empty table is dropped");
    }

    /// Two segments in one granule: the end of one and the beginning of the next.
    #[test]
    fn segments_need_not_start_where_granules_do() {
        let mut map = CoverMap::default();
        let (first, second) = (Addr(2 * MIB + 512), Addr(5 * MIB + 512));
        map.add(segment(1), first, Span::new(first, 3 * MIB));
        map.add(segment(2), second, Span::new(second, 3 * MIB));
        let starts = [Addr(0), first, second];
        let near = |map: &CoverMap, addr| {
            let start = |id| starts[usize::from(id == segment(2)) + 1];
            map.segment_inside(addr, start).unwrap_or_else(|| map.segment_near(addr))
        };
        assert_eq!(near(&map, Addr(3 * MIB)), segment(1));
        assert_eq!(near(&map, Addr(4 * MIB)), segment(1));
        assert_eq!(near(&map, second), segment(2));
        assert_eq!(near(&map, Addr(7 * MIB)), segment(2));
        map.remove(segment(2), Span::new(second, 3 * MIB));
        assert_eq!(near(&map, second), segment(1));
    }
}
