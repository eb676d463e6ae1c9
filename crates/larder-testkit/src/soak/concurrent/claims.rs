//! Claims: what is live, as those who asked for it know it.
//!
//! The addresses are cut into granules, and the granules are dealt out to shards, so that threads
//! seldom meet. A block is claimed in every granule that it touches: two blocks that share an
//! address meet in one of them, whichever of the two comes second finds out at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_core::types::Span;
use larder_core::{Addr, StreamId};

const GRANULE_BYTES: u64 = 32 << 20;
const SHARDS: usize = 16;

/// A live block, as whoever asked for it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) span: Span,
    pub(super) requested_bytes: u64,
    /// The stream that it was handed out on.
    pub(super) stream: StreamId,
}

/// The part of a claim that lies in one granule: its end, and the whole.
type Piece = (u64, Held);

/// All claims.
pub(super) struct Claims {
    shards: Vec<Mutex<BTreeMap<u64, Piece>>>,
}

impl Default for Claims {
    fn default() -> Claims {
        Claims { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

/// The pieces of a span, granule by granule: the first address, the end.
fn pieces(span: Span) -> impl Iterator<Item = (u64, u64)> {
    let (start, end) = (span.addr.0, span.end().0);
    let granules = start / GRANULE_BYTES..=(end - 1) / GRANULE_BYTES;
    granules.map(move |granule| {
        let from = granule * GRANULE_BYTES;
        (start.max(from), end.min(from + GRANULE_BYTES))
    })
}

impl Claims {
    fn shard(&self, addr: u64) -> MutexGuard<'_, BTreeMap<u64, Piece>> {
        let shard = (addr / GRANULE_BYTES) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has the block now; nobody else may have a byte of it.
    pub(super) fn take(&self, held: Held) -> Result<(), String> {
        for (start, end) in pieces(held.span) {
            let mut shard = self.shard(start);
            if let Some((_, &(other_end, other))) = shard.range(..end).next_back()
                && other_end > start
            {
                return Err(format!("{held:?} was handed out over {other:?}, which is live"));
            }
            shard.insert(start, (end, held));
        }
        Ok(())
    }

    /// The holder is about to give the block back.
    pub(super) fn give(&self, held: Held) -> Result<(), String> {
        for (start, _) in pieces(held.span) {
            if self.shard(start).remove(&start).is_none_or(|(_, known)| known.span != held.span) {
                return Err(format!("{held:?} was lost to another claim"));
            }
        }
        Ok(())
    }

    /// Every claimed block, by its address.
    pub(super) fn all(&self) -> BTreeMap<Addr, Held> {
        let mut all = BTreeMap::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let heads = shard.iter().filter(|&(&start, (_, held))| start == held.span.addr.0);
            all.extend(heads.map(|(_, &(_, held))| (held.span.addr, held)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;

    use super::*;

    fn held(start: u64, size_bytes: u64) -> Held {
        let span = Span::new(Addr(start), size_bytes);
        Held { span, requested_bytes: size_bytes, stream: StreamId(0) }
    }

    #[test]
    fn blocks_that_share_a_byte_are_found_wherever_they_meet() {
        let long = held(20 * MIB, 100 * MIB);
        for (start, size_bytes) in
            [(0, 20 * MIB + 1), (70 * MIB, 512), (120 * MIB - 1, 1), (0, 512 * MIB)]
        {
            let claims = Claims::default();
            claims.take(long).unwrap();
            assert!(claims.take(held(start, size_bytes)).is_err(), "{start} {size_bytes}");
        }
    }

    #[test]
    fn neighbours_are_no_conflict_and_what_is_given_back_can_be_had_again() {
        let claims = Claims::default();
        let all = [held(0, 20 * MIB), held(20 * MIB, 100 * MIB), held(120 * MIB, 512)];
        for held in all {
            claims.take(held).unwrap();
        }
        assert_eq!(claims.all().into_values().collect::<Vec<_>>(), all);
        claims.give(all[1]).unwrap();
        assert!(claims.give(all[1]).is_err(), "it was given back already");
        claims.take(held(64 * MIB, MIB)).unwrap();
        assert_eq!(claims.all().len(), 3);
    }
}
