//! Fine starts: for each unit of a segment, the small block that was last noted to start there.
//! Small blocks lie together, and most of a large segment has none, so that units are kept in
//! chunks, and a chunk is made when the first block is noted in it: the host pays for what is
//! noted, and growth copies names of chunks alone.

/// So many units have a chunk, as a power of two.
const CHUNK_SHIFT: u32 = 10;
const CHUNK: usize = 1 << CHUNK_SHIFT;

/// The chunk in which nothing is noted.
const EMPTY: [u32; CHUNK] = [0; CHUNK];

/// The table. See the module's page.
#[derive(Clone, Debug, Default)]
pub(in crate::heap) struct FineStarts {
    /// For each run of units, its chunk; 0 if it has none.
    places: Vec<u32>,
    /// All chunks. The first is for runs that have none, and is never written to.
    chunks: Vec<[u32; CHUNK]>,
}

impl FineStarts {
    /// Makes room so that a block may start in any unit before this one.
    pub(in crate::heap) fn cover(&mut self, units: usize) {
        let places = units.div_ceil(CHUNK);
        if places > self.places.len() {
            self.places.resize(places, 0);
        }
        if self.chunks.is_empty() {
            self.chunks.push(EMPTY);
        }
    }

    /// What was last noted in a unit; 0 if nothing was, and none behind the end.
    #[inline]
    pub(in crate::heap) fn get(&self, unit: usize) -> Option<&u32> {
        let chunk = *self.places.get(unit >> CHUNK_SHIFT)?;
        Some(&self.chunks.get(chunk as usize)?[unit % CHUNK])
    }

    /// Where to note what starts in a unit, which must be covered. Who does not use it may ask all
    /// the same, so that he need not decide first.
    #[inline]
    #[allow(clippy::needless_bitwise_bool)] // One branch for both, which is hardly ever taken.
    pub(in crate::heap) fn slot(&mut self, unit: usize, is_used: bool) -> &mut u32 {
        let mut chunk = self.places[unit >> CHUNK_SHIFT];
        if (chunk == 0) & is_used {
            chunk = self.make_chunk(unit);
        }
        &mut self.chunks[chunk as usize][unit % CHUNK]
    }

    #[cold]
    #[inline(never)]
    fn make_chunk(&mut self, unit: usize) -> u32 {
        let chunk = self.chunks.len() as u32;
        self.chunks.push(EMPTY);
        self.places[unit >> CHUNK_SHIFT] = chunk;
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_in_its_unit_alone() {
        let mut starts = FineStarts::default();
        assert_eq!(starts.get(0), None, "nothing is covered");
        starts.cover(3 * CHUNK);
        *starts.slot(CHUNK + 7, true) = 42;
        let noted: Vec<usize> =
            (0..3 * CHUNK).filter(|&unit| starts.get(unit) != Some(&0)).collect();
        assert_eq!((noted, starts.get(CHUNK + 7)), (vec![CHUNK + 7], Some(&42)));
        assert_eq!(starts.get(3 * CHUNK), None);
    }

    #[test]
    fn a_large_segment_with_few_small_blocks_takes_little() {
        let mut starts = FineStarts::default();
        starts.cover(1 << 28);
        (0..100).for_each(|at| *starts.slot(at * 40, true) = 1);
        starts.slot(1 << 27, false);
        assert_eq!(starts.chunks.len(), 5, "four, and the empty one");
        starts.cover(1 << 10);
        assert_eq!(starts.get((1 << 28) - 1), Some(&0), "and what was covered stays so");
    }
}
