//! Places: which pool an address belongs to at each point of a trace.

use std::collections::{BTreeMap, HashMap, HashSet};

use larder_core::types::{Addr, Span};

use larder_snapshot::{Action, Snapshot, TraceEntry};

/// The pool that is no private one.
pub(super) const DEFAULT_POOL: (u64, u64) = (0, 0);

struct Segment {
    span: Span,
    pool_id: (u64, u64),
}

/// The segments that are there at one point of a trace.
pub(super) struct Places<'a> {
    snapshot: &'a Snapshot,
    segments: BTreeMap<u64, Segment>,
    /// For a segment that is still there at the end: the entry that allocated it, and its pool.
    lasting: HashMap<u64, (usize, (u64, u64))>,
    /// The addresses that the device gave, in order: first those from before the recording.
    pub(super) segment_addresses: Vec<Span>,
}

impl<'a> Places<'a> {
    /// The segments that were there before the first entry.
    pub(super) fn new(snapshot: &'a Snapshot, device: u32, trace: &[TraceEntry]) -> Places<'a> {
        let mut allocated_by: HashMap<u64, usize> = HashMap::new();
        let mut seen: HashSet<u64> = HashSet::new();
        let mut before: Vec<Span> = Vec::new();
        let mut during: Vec<Span> = Vec::new();
        for (index, entry) in trace.iter().enumerate() {
            let span = Span::new(Addr(entry.addr), entry.size_bytes);
            match entry.action {
                Action::SegmentAlloc => {
                    seen.insert(entry.addr);
                    allocated_by.insert(entry.addr, index);
                    during.push(span);
                }
                Action::SegmentFree => {
                    // Freed with no allocation in sight: it is older than the recording.
                    if seen.insert(entry.addr) {
                        before.push(span);
                    }
                    allocated_by.remove(&entry.addr);
                }
                _ => {}
            }
        }
        let mut segments = BTreeMap::new();
        let mut lasting = HashMap::new();
        for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
            if let Some(&index) = allocated_by.get(&segment.addr) {
                lasting.insert(segment.addr, (index, segment.pool_id));
                continue;
            }
            let span = Span::new(Addr(segment.addr), segment.size_bytes);
            segments.insert(segment.addr, Segment { span, pool_id: segment.pool_id });
            // The parts of an expandable segment are not the device's choice.
            if !segment.is_expandable {
                before.push(span);
            }
        }
        before.sort_by_key(|span| span.addr);
        before.append(&mut during);
        Places { snapshot, segments, lasting, segment_addresses: before }
    }

    /// Moves past an entry, whatever it is about.
    pub(super) fn follow(&mut self, index: usize, entry: &TraceEntry) {
        match entry.action {
            Action::SegmentAlloc => {
                let pool_id = self.pool_of_segment(index, entry);
                let span = Span::new(Addr(entry.addr), entry.size_bytes);
                self.segments.insert(entry.addr, Segment { span, pool_id });
            }
            Action::SegmentFree => {
                self.segments.remove(&entry.addr);
            }
            _ => {}
        }
    }

    /// The pool that a segment came for.
    fn pool_of_segment(&self, index: usize, entry: &TraceEntry) -> (u64, u64) {
        match (entry.pool, self.lasting.get(&entry.addr)) {
            (Some(pool), _) => self.snapshot.pool_id(pool),
            (None, Some(&(by, pool_id))) if by == index => pool_id,
            // It was freed again, and nothing tells which pool it was of.
            (None, _) => DEFAULT_POOL,
        }
    }

    /// The pool of the block that the entry at `index` hands out. Its segment may have come just
    /// before it, and be ahead of where this stands.
    pub(super) fn pool_of_request(&self, index: usize, trace: &[TraceEntry]) -> (u64, u64) {
        let entry = &trace[index];
        let came = index.checked_sub(1).filter(|&came| {
            let segment = &trace[came];
            segment.action == Action::SegmentAlloc
                && Span::new(Addr(segment.addr), segment.size_bytes).contains(Addr(entry.addr))
        });
        match (entry.pool, came) {
            (None, Some(came)) => self.pool_of_segment(came, &trace[came]),
            _ => self.pool_of(entry),
        }
    }

    /// The pool of the segment in which the address lies now.
    pub(super) fn pool_at(&self, addr: u64) -> (u64, u64) {
        match self.segments.range(..=addr).next_back() {
            Some((_, segment)) if segment.span.contains(Addr(addr)) => segment.pool_id,
            _ => DEFAULT_POOL,
        }
    }

    /// The pool of an entry's block: what the entry says, or else where it lies.
    pub(super) fn pool_of(&self, entry: &TraceEntry) -> (u64, u64) {
        match entry.pool {
            Some(pool) => self.snapshot.pool_id(pool),
            None => self.pool_at(entry.addr),
        }
    }
}
