//! Shadow: the free blocks of the recorded allocator at one point of its trace, as far as the trace
//! lets them be followed. They say whether a request could have been served without the device.

use std::collections::{BTreeMap, HashMap};

use larder_core::config::Config;
use larder_core::heap::size::{self, Fineness};
use larder_core::types::{Addr, PoolKind, Span};
use larder_snapshot::{Action, SegmentInfo, TraceEntry};

use super::memory::rounded;
use super::places::DEFAULT_POOL;
use super::prehistory::OldBlock;

/// Whom a block can serve, and which others it can be merged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) stream: u64,
    pub(super) pool_id: (u64, u64),
    pub(super) kind: PoolKind,
    /// The segment that the device gave in one piece; none for pages of an expandable one.
    segment: Option<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    size_bytes: u64,
    lane: Lane,
}

/// The blocks at one point of a trace.
#[derive(Clone)]
pub(super) struct Shadow<'a> {
    config: &'a Config,
    free: BTreeMap<u64, Piece>,
    live: HashMap<u64, Piece>,
}

/// The pool that pages or a segment of this size are for, where no request tells it.
fn kind_of_memory(size_bytes: u64) -> PoolKind {
    if size_bytes <= size::SMALL_SEGMENT_BYTES { PoolKind::Small } else { PoolKind::Large }
}

/// A span that does not reach past the last address, which no device has.
fn whole_span(addr: u64, size_bytes: u64) -> Option<Span> {
    addr.checked_add(size_bytes).map(|_| Span::new(Addr(addr), size_bytes))
}

impl<'a> Shadow<'a> {
    /// What was there before the first entry: what is there at the end, with everything undone that
    /// the trace tells, and the blocks that are older than it.
    pub(super) fn before<'b>(
        config: &'a Config,
        at_the_end: impl Iterator<Item = &'b SegmentInfo>,
        trace: &[TraceEntry],
        old: &[OldBlock],
    ) -> Shadow<'a> {
        let mut shadow = Shadow { config, free: BTreeMap::new(), live: HashMap::new() };
        for info in at_the_end {
            let Some(span) = whole_span(info.addr, info.size_bytes) else { continue };
            let kind = if info.is_small { PoolKind::Small } else { PoolKind::Large };
            let segment = (!info.is_expandable).then_some(span);
            let (stream, pool_id) = (info.stream, info.pool_id);
            shadow.add(span, Lane { stream, pool_id, kind, segment });
        }
        for entry in trace.iter().rev() {
            let Some(span) = whole_span(entry.addr, entry.size_bytes) else { continue };
            let (stream, kind) = (entry.stream, kind_of_memory(entry.size_bytes));
            let lane = |segment| Lane { stream, pool_id: DEFAULT_POOL, kind, segment };
            match entry.action {
                Action::SegmentAlloc | Action::SegmentMap => shadow.remove(span),
                Action::SegmentFree => shadow.add(span, lane(Some(span))),
                Action::SegmentUnmap => shadow.add(span, lane(None)),
                _ => {}
            }
        }
        for block in old {
            shadow.take(block.addr, rounded(block.size_bytes, config));
        }
        shadow
    }

    /// Moves past an entry. `kind` and `pool_id` are those of the request that memory came for.
    pub(super) fn follow(&mut self, entry: &TraceEntry, kind: PoolKind, pool_id: (u64, u64)) {
        let Some(span) = whole_span(entry.addr, entry.size_bytes) else { return };
        let lane = |segment| Lane { stream: entry.stream, pool_id, kind, segment };
        match entry.action {
            Action::SegmentAlloc => self.add(span, lane(Some(span))),
            Action::SegmentMap => self.add(span, lane(None)),
            Action::SegmentFree | Action::SegmentUnmap => self.remove(span),
            Action::Alloc => self.take(entry.addr, rounded(entry.size_bytes, self.config)),
            Action::FreeRequested
            | Action::FreeCompleted
            | Action::Snapshot
            | Action::OutOfMemory
            | Action::Annotate
            | Action::Other => {}
        }
    }

    /// A block became free.
    pub(super) fn put(&mut self, addr: u64) {
        if let Some(block) = self.live.remove(&addr) {
            self.add(Span::new(Addr(addr), block.size_bytes), block.lane);
        }
    }

    /// Whether a request would be served by what is free.
    pub(super) fn serves(&self, stream: u64, pool_id: (u64, u64), rounded_bytes: u64) -> bool {
        let kind = size::kind(rounded_bytes);
        let fits = |piece: &&Piece| {
            let lane = &piece.lane;
            let is_usable = lane.segment.is_some() || self.config.expandable_segments;
            let is_its_lane = (lane.stream, lane.pool_id, lane.kind) == (stream, pool_id, kind);
            is_its_lane && is_usable && piece.size_bytes >= rounded_bytes
        };
        let smallest = self.free.values().filter(fits).map(|piece| piece.size_bytes).min();
        let limit_bytes = self.config.max_split_bytes.unwrap_or(u64::MAX);
        let slack_bytes = self.config.max_non_split_rounding_bytes;
        smallest.is_some_and(|bytes| {
            if rounded_bytes < limit_bytes {
                bytes < limit_bytes
            } else {
                bytes < rounded_bytes.saturating_add(slack_bytes)
            }
        })
    }

    /// Whether a whole segment of the default pools lies idle: the emptying of the cache leaves
    /// none.
    pub(super) fn has_idle_segment(&self) -> bool {
        self.free.values().any(|piece| {
            let whole = piece.lane.segment.is_some_and(|span| span.size_bytes == piece.size_bytes);
            whole && piece.lane.pool_id == DEFAULT_POOL
        })
    }

    /// Memory is free from now on, merged with what lies beside it.
    fn add(&mut self, span: Span, lane: Lane) {
        let (mut addr, mut size_bytes) = (span.addr.0, span.size_bytes);
        if let Some(next) = self.free.get(&span.end().0).copied()
            && next.lane == lane
        {
            self.free.remove(&span.end().0);
            size_bytes += next.size_bytes;
        }
        if let Some((&before, piece)) = self.free.range(..addr).next_back()
            && piece.lane == lane
            && before + piece.size_bytes == addr
        {
            (addr, size_bytes) = (before, size_bytes + piece.size_bytes);
        }
        self.free.insert(addr, Piece { size_bytes, lane });
    }

    /// Memory is gone, wherever it was free.
    fn remove(&mut self, span: Span) {
        let overlapping = |&(&addr, piece): &(&u64, &Piece)| {
            Span::new(Addr(addr), piece.size_bytes).overlaps(span)
        };
        let found: Vec<(u64, Piece)> = self
            .free
            .range(..span.end().0)
            .rev()
            .take_while(overlapping)
            .map(|(&addr, &piece)| (addr, piece))
            .collect();
        for (addr, piece) in found {
            self.free.remove(&addr);
            let end = addr + piece.size_bytes;
            if addr < span.addr.0 {
                let size_bytes = span.addr.0 - addr;
                self.free.insert(addr, Piece { size_bytes, ..piece });
            }
            if end > span.end().0 {
                let size_bytes = end - span.end().0;
                self.free.insert(span.end().0, Piece { size_bytes, ..piece });
            }
        }
    }

    /// A block was handed out, cut to size as the allocator does it.
    fn take(&mut self, addr: u64, rounded_bytes: u64) {
        let Some((&start, &piece)) = self.free.range(..=addr).next_back() else { return };
        let end = start + piece.size_bytes;
        if end <= addr {
            return;
        }
        self.free.remove(&start);
        if start < addr {
            self.free.insert(start, Piece { size_bytes: addr - start, ..piece });
        }
        let whole_bytes = end - addr;
        let (lane, config) = (piece.lane, self.config);
        let is_page = lane.segment.is_none();
        let fine =
            size::cuts_finely(lane.kind, Fineness::ByRequest, is_page, config.expandable_segments);
        let limit_bytes = config.max_split_bytes.unwrap_or(u64::MAX);
        let rest_bytes = whole_bytes.saturating_sub(rounded_bytes);
        let size_bytes = if size::should_split(fine, rounded_bytes, rest_bytes, limit_bytes) {
            self.free.insert(addr + rounded_bytes, Piece { size_bytes: rest_bytes, lane });
            rounded_bytes
        } else {
            whole_bytes
        };
        self.live.insert(addr, Piece { size_bytes, lane });
    }
}
