//! How the model gives memory back to its device.

use larder_core::device::Device;
use larder_core::types::{PoolKind, Span};

use super::segment::State;
use super::{Model, NO_FAULTS, Spot, Want, change, change_pool};

impl Model {
    /// Gives back everything in the cache that can be: of the default pools, unless a capture is
    /// on, large before small; then of the private pools that nobody uses, small before large.
    pub(super) fn release_cached(&mut self, captured: bool) {
        if !captured {
            self.release_pool(None, [PoolKind::Large, PoolKind::Small]);
        }
        for pool in self.released.in_order() {
            self.release_private(pool);
        }
    }

    /// Gives back everything of a private pool that nobody uses, and forgets it if nothing is left.
    pub(super) fn release_private(&mut self, pool: u32) {
        self.release_pool(Some(pool), [PoolKind::Small, PoolKind::Large]);
        let mut own = self.segments.iter().filter(|segment| segment.pool == Some(pool));
        if own.all(super::Segment::is_bare) {
            let own = self.segments.iter().filter(|segment| segment.pool == Some(pool));
            let spans: Vec<Span> = own.map(|segment| segment.span).collect();
            for span in spans {
                self.unreserve(span);
            }
            let Some(private) = self.privates.remove(&pool) else { return };
            if self.policy.released_pools_go || private.growths == 0 {
                self.released.remove(pool);
            }
            self.searches.retain(|&(owner, _), _| owner != Some(pool));
        }
    }

    /// Gives back what a pool has cached, plain segments before pages.
    fn release_pool(&mut self, pool: Option<u32>, kinds: [PoolKind; 2]) {
        let bare = self.segments.iter().filter(|segment| segment.pool == pool && segment.is_bare());
        let bare: Vec<Span> = bare.map(|segment| segment.span).collect();
        for kind in kinds {
            let free = self.free_blocks(pool, kind, None);
            let addr = |&spot: &Spot| self.block(spot).addr;
            let whole: Vec<u64> =
                free.iter().filter(|&&spot| self.is_releasable(spot)).map(addr).collect();
            let is_expandable = |&&(at, _): &&Spot| self.segments[at].is_expandable();
            let paged: Vec<u64> = free.iter().filter(is_expandable).map(addr).collect();
            for addr in whole {
                self.release_segment(addr);
            }
            for addr in paged {
                self.release_pages(addr);
            }
        }
        if self.policy.release_bare_segments {
            for span in bare {
                self.unreserve(span);
            }
        }
    }

    /// Whether a free block is a whole plain segment.
    fn is_releasable(&self, (at, _): Spot) -> bool {
        let segment = &self.segments[at];
        !segment.is_expandable() && !segment.is_split()
    }

    /// Gives back the plain segment that starts at this address and that nothing uses.
    fn release_segment(&mut self, addr: u64) {
        let (at, _) = self.find(addr);
        let segment = self.segments.remove(at);
        self.device.free(segment.span.addr).expect(NO_FAULTS);
        let size_bytes = segment.span.size_bytes;
        self.stats.num_device_free += 1;
        change_pool(&mut self.stats.segment, segment.kind, -1);
        change_pool(&mut self.stats.reserved_bytes, segment.kind, -(size_bytes as i64));
        let above_limit = self.config.max_split_bytes.is_some_and(|max| size_bytes >= max);
        let remembered = self.policy.oversize_is_remembered;
        if if remembered { segment.oversize } else { above_limit } {
            change(&mut self.stats.oversize_segments, -1);
        }
    }

    /// Takes the whole pages out of the free block at this address, and gives the addresses of
    /// its segment back if there is no page left.
    fn release_pages(&mut self, addr: u64) {
        let (at, block_at) = self.find(addr);
        if self.is_under_capture(self.segments[at].stream) {
            return;
        }
        let pages = self.segments[at].pages_inside(block_at);
        if let (Some(first), Some(last)) = (pages.first(), pages.last()) {
            let whole = Span::new(first.addr, last.end().0 - first.addr.0);
            self.unmap((at, block_at), &pages, whole);
        }
    }

    fn unmap(&mut self, (at, block_at): Spot, pages: &[Span], whole: Span) {
        let searches = self.searches_of(self.segments[at].pool, self.segments[at].kind);
        let numbers = [self.draw(), self.draw()];
        let segment = &mut self.segments[at];
        self.device.wait_stream(segment.stream).expect(NO_FAULTS);
        for &span in pages {
            let page = segment.pages.remove(&span.addr.0).expect("a mapped page");
            self.device.unmap(span).expect(NO_FAULTS);
            self.device.release_page(page).expect(NO_FAULTS);
        }
        let mut middle = block_at;
        segment.blocks[middle].free_since = searches;
        let head_bytes = whole.addr.0 - segment.blocks[middle].addr;
        if head_bytes > 0 {
            segment.cut(middle, head_bytes);
            segment.blocks[middle].number = numbers[0];
            middle += 1;
        }
        if whole.end().0 < segment.blocks[middle].end() {
            segment.cut(middle, whole.size_bytes);
            segment.blocks[middle + 1].number = numbers[1];
        }
        segment.blocks[middle].state = State::Unmapped;
        segment.join(middle);
        let (kind, span, bare) = (segment.kind, segment.span, segment.is_bare());
        if let Some(private) = segment.pool.and_then(|pool| self.privates.get_mut(&pool)) {
            private.growths -= 1;
        }
        change_pool(&mut self.stats.reserved_bytes, kind, -(whole.size_bytes as i64));
        self.stats.num_device_free += 1;
        if bare {
            self.unreserve(span);
        }
    }

    fn unreserve(&mut self, span: Span) {
        self.device.unreserve(span).expect(NO_FAULTS);
        self.segments.retain(|segment| segment.span != span);
    }

    /// Where segments are exact, free ones that are too small make room for a large request of the
    /// default pool: the largest first, the lower first, until they come to its size.
    pub(super) fn replace(&mut self, want: &Want) {
        let is_large = want.pool.is_none() && want.kind == PoolKind::Large;
        let is_meant = is_large && self.policy.exact_segments && !want.expandable;
        if !is_meant || !self.scopes.is_empty() {
            return;
        }
        let free = self.free_blocks(None, want.kind, Some(want.stream));
        let fits = |spot: &Spot| {
            self.is_releasable(*spot) && self.block(*spot).size_bytes < want.size_bytes
        };
        let found = free.into_iter().filter(fits).map(|spot| self.block(spot));
        let mut small: Vec<(u64, u64)> =
            found.map(|block| (block.size_bytes, block.addr)).collect();
        small.sort_by_key(|&(size_bytes, addr)| (std::cmp::Reverse(size_bytes), addr));
        let mut found_bytes = 0;
        for (size_bytes, addr) in small {
            if found_bytes < want.size_bytes {
                self.release_segment(addr);
                found_bytes += size_bytes;
            }
        }
    }

    /// Garbage collection: while too much is held, whole large segments that are at least as old
    /// as the average go.
    pub(super) fn collect(&mut self) {
        let limit_bytes = self.cap_bytes.unwrap_or(self.total_bytes());
        let threshold = self.config.garbage_collection_threshold * limit_bytes as f64;
        let threshold_bytes = threshold as u64;
        if self.reserved_bytes() <= threshold_bytes {
            return;
        }
        let target_bytes = self.reserved_bytes() - threshold_bytes;
        let searches = self.searches_of(None, PoolKind::Large);
        let (mut ages, mut idle) = (Vec::new(), Vec::new());
        for spot in self.free_blocks(None, PoolKind::Large, None) {
            let (segment, block) = (&self.segments[spot.0], self.block(spot));
            let age = searches - block.free_since;
            if segment.is_split() || segment.is_expandable() {
                continue;
            }
            idle.push((block.addr, age, block.size_bytes));
            ages.push(age);
        }
        let mut reclaimed_bytes = 0;
        while reclaimed_bytes < target_bytes && !ages.is_empty() {
            let average = ages.iter().sum::<u64>() as f64 / ages.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) =
                idle.into_iter().partition(|&(_, age, _)| age as f64 >= average);
            idle = young;
            if old.is_empty() {
                break;
            }
            for (addr, age, size_bytes) in old {
                let at = ages.iter().position(|&other| other == age).expect("its age is counted");
                ages.remove(at);
                reclaimed_bytes += size_bytes;
                self.release_segment(addr);
            }
        }
    }

    /// With a split limit, oversize blocks of the stream go so that the device has room for this
    /// request. Says whether enough of them went.
    pub(super) fn make_room(&mut self, want: &Want) -> bool {
        let Some(limit_bytes) = self.config.max_split_bytes else { return false };
        let key_bytes = want.size_bytes.max(limit_bytes);
        let free = self.free_blocks(want.pool, want.kind, Some(want.stream));
        let size_bytes = |spot: Spot| self.block(spot).size_bytes;
        let mut fitting = free.iter().filter(|&&spot| size_bytes(spot) >= key_bytes);
        let one = if self.policy.make_room_skips_expandable {
            fitting.find(|&&spot| self.is_releasable(spot))
        } else {
            fitting.next().filter(|&&spot| self.is_releasable(spot))
        };
        if let Some(&spot) = one {
            self.release_segment(self.block(spot).addr);
            return true;
        }
        let oversize = free.iter().rev().filter(|&&spot| {
            let size_bytes = size_bytes(spot);
            size_bytes >= limit_bytes && size_bytes < key_bytes && self.is_releasable(spot)
        });
        let oversize: Vec<_> =
            oversize.map(|&spot| (self.block(spot).addr, size_bytes(spot))).collect();
        let mut released_bytes = 0;
        for (addr, size_bytes) in oversize {
            if released_bytes < key_bytes {
                released_bytes += size_bytes;
                self.release_segment(addr);
            }
        }
        released_bytes >= key_bytes
    }
}
