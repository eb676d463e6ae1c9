//! Deferred frees: blocks that were freed and not merged yet, because the next request probably
//! takes them as they are. To merge a block with its neighbours and to cut it off once more is most
//! of the work of a free and a malloc.
//!
//! There is one list of them. How one of them is found again is the placement's matter: by its size
//! (`best_fit/by_size.rs`), or by where the request lay the last time (`paged/in_place.rs`). Frees
//! are deferred on the fast path alone: before anything else changes the heap all of them are
//! coalesced, that is, merged and put into the index, as they would have been when they were freed;
//! and whoever looks is shown them merged, and changes nothing by it.

pub(in crate::heap) mod seen;

use crate::error::Unsound;
use crate::heap::deferred::seen::SeenPieces;
use crate::heap::ids::BlockId;
use crate::heap::pools::lane::Lane;
use crate::heap::space::block::{Block, State};
use crate::record::{Place, Record, Recorder};

/// Where so many are listed that are found by their places, the next one has all of them coalesced,
/// so that this never takes long.
const IN_PLACE_MAX: usize = 8192;

/// The deferred frees of all lanes.
#[derive(Clone, Debug, Default)]
pub(in crate::heap) struct Deferred {
    /// All of them, each once, and some blocks that are live again or gone.
    listed: Vec<BlockId>,
    /// By slot, whether it is listed.
    is_listed: Vec<bool>,
    /// Whether blocks are deferred that are found by their places: since a request went where its
    /// cycle told it, and nothing but the fast path was taken.
    in_place: bool,
    /// The pieces that there were when somebody looked, or when all were coalesced.
    seen: SeenPieces,
}

impl Deferred {
    /// Lists a block that was deferred, if it is not listed yet.
    #[inline]
    pub(in crate::heap) fn list(&mut self, id: BlockId) {
        if self.is_listed.get(id.place()) != Some(&true) {
            self.list_anew(id);
        }
    }

    #[cold]
    #[inline(never)]
    fn list_anew(&mut self, id: BlockId) {
        if self.is_listed.len() <= id.place() {
            self.is_listed.resize(id.place() + 1, false);
        }
        self.is_listed[id.place()] = true;
        self.listed.push(id);
        // The next request has them coalesced.
        self.in_place &= self.listed.len() < IN_PLACE_MAX;
    }

    /// Takes one off the list.
    pub(in crate::heap) fn pop(&mut self) -> Option<BlockId> {
        let id = self.listed.pop()?;
        let was_listed = std::mem::replace(&mut self.is_listed[id.place()], false);
        debug_assert!(was_listed, "{id:?} is listed twice");
        Some(id)
    }

    /// Whether nothing is deferred, and all that is live is noted where it starts.
    #[inline]
    pub(in crate::heap) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Those that may be deferred.
    pub(in crate::heap) fn listed(&self) -> &[BlockId] {
        &self.listed
    }

    /// Whether frees are deferred whose blocks are found by their places.
    #[inline]
    pub(in crate::heap) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Frees are deferred in place from now on. Says whether so many are listed that they have to
    /// be coalesced first.
    #[inline]
    pub(in crate::heap) fn begin_in_place(&mut self) -> bool {
        self.in_place = true;
        self.listed.len() >= IN_PLACE_MAX
    }

    /// Frees are deferred in place no longer.
    #[inline]
    pub(in crate::heap) fn end_in_place(&mut self) {
        self.in_place = false;
    }

    /// The pieces as they were seen.
    pub(in crate::heap) fn seen(&self) -> &SeenPieces {
        &self.seen
    }

    pub(in crate::heap) fn seen_mut(&mut self) -> &mut SeenPieces {
        &mut self.seen
    }

    /// Each is listed once.
    pub(in crate::heap) fn check(&self) -> Result<(), Unsound> {
        let marked = self.is_listed.iter().filter(|&&is_listed| is_listed).count();
        let are_marked = self.listed.iter().all(|id| self.is_listed.get(id.place()) == Some(&true));
        if marked != self.listed.len() || !are_marked {
            return Err(
                format!("{} frees are listed, and {marked} marked", self.listed.len()).into()
            );
        }
        Ok(())
    }
}

/// A live block, its lane, and who has to know that its free is deferred.
pub(in crate::heap) struct Deferral<'a> {
    pub(in crate::heap) id: BlockId,
    pub(in crate::heap) block: &'a mut Block,
    pub(in crate::heap) lane: &'a mut Lane,
    pub(in crate::heap) deferred: &'a mut Deferred,
    pub(in crate::heap) recorder: &'a mut Recorder,
}

impl Deferral<'_> {
    /// Defers the merging of the block, which is used on its own stream alone.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(in crate::heap) fn begin(self) {
        let Deferral { id, block, lane, deferred, recorder } = self;
        debug_assert!(block.state == State::Live && !block.used_elsewhere, "{id:?} is not freed");
        block.state = State::Deferred;
        lane.count_free();
        deferred.list(id);
        let &mut Block { addr, size_bytes, requested_bytes, kind, .. } = block;
        let place = Place { kind, stream: lane.stream(), addr, size_bytes };
        recorder.record(Record::Free { place, requested_bytes, oversize: false });
    }
}
