//! Exact: now and then a request names the address that it wants to have.

use larder_core::error::{AddressProblem, Error};
use larder_core::heap::State;
use larder_core::heap::states::{BlockState, SegmentState};
use larder_core::types::{Addr, MIB, PoolKind, Span, StreamId};

use super::outcome::Outcome;
use super::run::Run;
use larder_sim::UNIT_BYTES;
use larder_sim::random::Random;

impl Run<'_> {
    /// A request that names an address, if this one does and gets it. Otherwise it goes on as if it
    /// had named none.
    pub(super) fn malloc_at_times(
        &mut self,
        id: u64,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Option<Outcome>, String> {
        // From numbers of their own, so that they stay in place when a failing script is made
        // shorter.
        let mut random = Random::new(self.plan.seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if !self.plan.habits.names_addresses || size_bytes == 0 || !random.chance(0.2) {
            return Ok(None);
        }
        let Some(addr) = self.pick_address(&mut random, size_bytes, stream) else {
            return Ok(None);
        };
        let handed_out = self.allocator.stats().allocation.all.allocated;
        let taken = self.allocator.malloc_at(size_bytes, stream, addr);
        let modelled = self.model.as_mut().map(|model| model.malloc_at(size_bytes, stream, addr));
        if modelled.is_some_and(|expected| expected != taken.is_ok()) {
            return Err(format!("{size_bytes} bytes at {addr} on {stream} gave {taken:?}"));
        }
        match taken {
            Ok(found) if found == addr => {}
            Ok(found) => return Err(format!("{found} was handed out instead of {addr}")),
            Err(Error::NotAt { problem: AddressProblem::NotFree, .. }) => {
                self.report.refused_addresses += 1;
                return Ok(None);
            }
            Err(error) => return self.tolerate(Err(error)).map(|()| None),
        }
        self.report.placed += 1;
        self.addresses.insert(id, addr);
        let usable = self.allocator.usable_bytes(addr).map_err(|error| error.to_string())?;
        self.take_into_use(id, Span::new(addr, usable), stream)?;
        // What lies before it was handed out as well, and is free again.
        let has_before = self.allocator.stats().allocation.all.allocated > handed_out + 1;
        let before_bytes = if has_before { self.free_before(addr)? } else { 0 };
        let requested_bytes = size_bytes;
        let placed =
            Outcome::Allocated { addr, size_bytes: usable, requested_bytes, stream, before_bytes };
        Ok(Some(placed))
    }

    /// An address: mostly one in a free block with room enough, at times any.
    fn pick_address(&self, random: &mut Random, size_bytes: u64, stream: StreamId) -> Option<Addr> {
        let segments = self.allocator.snapshot();
        let is_small = size_bytes <= MIB && !self.plan.policy.tight;
        let suits = |segment: &&SegmentState| {
            segment.stream == stream && (segment.kind == PoolKind::Small) == is_small
        };
        let suiting = segments.iter().filter(suits).flat_map(|segment| &segment.blocks);
        let fits =
            |block: &&BlockState| block.state == State::Free && block.span.size_bytes >= size_bytes;
        let fitting: Vec<Span> = suiting.filter(fits).map(|block| block.span).collect();
        let picks_any = fitting.is_empty() || random.chance(0.2);
        let all = segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.span);
        let spans = if picks_any { all.collect() } else { fitting };
        if spans.is_empty() {
            return None;
        }
        let span = *random.pick(&spans);
        let room_bytes = span.size_bytes.saturating_sub(if picks_any { 0 } else { size_bytes });
        let units = if random.chance(0.3) { 0 } else { random.between(0, room_bytes / UNIT_BYTES) };
        Some(span.addr.offset(units * UNIT_BYTES))
    }

    /// The size of the free block that ends at an address.
    fn free_before(&self, addr: Addr) -> Result<u64, String> {
        let segments = self.allocator.snapshot();
        let mut blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let found = blocks.find(|block| block.span.end() == addr && block.state == State::Free);
        let sentence = || format!("two blocks were handed out for {addr}, and none is free before");
        found.map(|block| block.span.size_bytes).ok_or_else(sentence)
    }
}
