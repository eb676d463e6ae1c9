//! Seeking: what a request that no free block can serve gets, and what has to be asked of the
//! device for it.

use std::collections::BTreeSet;

use crate::heap::growth::MapPlan;
use crate::heap::ids::{BlockId, LaneId, PageAt, SegmentId};
use crate::heap::inventory::Inventory;
use crate::heap::paged::Paged;
use crate::heap::paged::free_runs::{Reach, Run, free_runs, lanes_beside, may_have, reach};
use crate::heap::paged::ground::{Ground, can_be_in_view, ground, wait_for};
use crate::heap::paged::stitch::{Gap, Stitch, stitch};
use crate::heap::paged::views::{ViewPlan, plan_view};
use crate::heap::paged::{Growth, PAGE_MIN_BYTES, page_limit_bytes, page_min_bytes};
use crate::heap::pools::lane::Lane;
use crate::heap::space::block::State;
use crate::heap::space::homes::{Home, Shown};
use crate::heap::{Want, size};
use crate::types::{Addr, Span, StreamId};

/// The next entry on the way to a block for a request. `waits` are streams whose work so far may
/// still use what the request gets: its own stream has to wait for them first.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    /// A free block will do.
    Fits,
    /// The request goes to this address: of a view that is there, or at home, where free blocks lie
    /// side by side of which some are other streams'.
    Place { segment: SegmentId, addr: Addr, waits: Vec<StreamId> },
    /// Reserve addresses for a home whose pages have this size.
    Reserve { page_bytes: u64, size_bytes: u64 },
    /// Make pages.
    Map(MapPlan),
    /// Show pages side by side.
    View { plan: ViewPlan, waits: Vec<StreamId> },
    /// The cap leaves no room.
    Capped,
}

/// How much may be asked of the device for a request, by what it said to it so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// It has refused nothing yet.
    Freely,
    /// It had no room for growth that the request could do without: no more is asked for than what
    /// nothing else gives, in pages of this size at most.
    Sparingly { page_most_bytes: u64 },
}

impl Asking {
    fn is_free(self) -> bool {
        self == Asking::Freely
    }

    fn page_most_bytes(self) -> u64 {
        match self {
            Asking::Freely => u64::MAX,
            Asking::Sparingly { page_most_bytes } => page_most_bytes,
        }
    }
}

/// Pieces that are smaller are looked at only when the others do not suffice.
const PIECE_BYTES: u64 = PAGE_MIN_BYTES / 4;
/// Of runs of blocks side by side, those are found in which one block has this part of what is
/// wanted.
const RUN_BLOCKS: u64 = 4;
/// So many views are looked at for a place.
const WINDOWS_TRIED: usize = 16;

/// Where memory can grow for a request: the hole to put pages into, and how much has to be made.
struct Room {
    hole: BlockId,
    more_bytes: u64,
}

impl Paged {
    /// What a request that missed should do next. What it asks for is done, and then it asks again.
    /// `open` are the streams that its own can wait for.
    pub(crate) fn plan_move(
        &mut self,
        inventory: &mut Inventory,
        want: &Want,
        open: &[StreamId],
        asking: Asking,
    ) -> Move {
        assert!(want.expandable, "a request for plain memory is not put into pages");
        let want = &Want { lane: inventory.lane_of(want), ..*want };
        self.high_bytes = inventory.recorder().phase_peak_bytes();
        if let Some(Ground { segment, span, waits, .. }) = self.plan_told(inventory, want)
            && waits.iter().all(|stream| open.contains(stream))
        {
            return Move::Place { segment, addr: span.addr, waits };
        }
        if inventory.fits(want, self.fit(want)) {
            return Move::Fits;
        }
        let reach = reach(inventory, want, open);
        let can_be_in_view = can_be_in_view(inventory, want);
        if can_be_in_view && let Some(window) = self.find_window(inventory, reach) {
            return window;
        }
        if inventory.rules().config().tight_floor_bytes > 0
            && let Some(apart) = keep_apart(inventory, want, asking)
        {
            return apart;
        }
        if let Some(claim) = find_claim(inventory, reach) {
            return claim;
        }
        let config = inventory.rules().config();
        if asking.is_free()
            && let Some(growth) =
                grow_within(inventory, reach, self.limit_bytes(inventory, want, config.tight_soft))
        {
            return growth;
        }
        if !can_be_in_view {
            return grow_hard(inventory, want, want.size_bytes, Some(reach), asking);
        }
        let next = stitch_or_grow(inventory, reach, asking);
        if asking.is_free()
            && let Move::View { plan, .. } = &next
            && let Some(growth) = self.grow_instead(inventory, reach, plan)
        {
            return growth;
        }
        next
    }

    /// Growth in the place of a view that the program cannot pay for, while no more is held than
    /// the settings say.
    fn grow_instead(
        &mut self,
        inventory: &Inventory,
        reach: Reach<'_>,
        plan: &ViewPlan,
    ) -> Option<Move> {
        let (config, tally) = (inventory.rules().config(), self.tally());
        if self.budget.affords_view(config, plan.pages.len() as u64, tally) {
            return None;
        }
        let most = config.tight_most.max(config.tight_soft);
        grow_within(inventory, reach, self.limit_bytes(inventory, reach.want, most))
    }

    /// How much may be held for a request, if it may be so many times the most that was in use.
    pub(super) fn limit_bytes(&self, inventory: &Inventory, want: &Want, times: f64) -> u64 {
        let active_bytes = inventory.recorder().active_bytes().current as u64;
        let high_bytes = self.high_bytes.max(active_bytes + want.size_bytes);
        let limit_bytes = (times * high_bytes as f64) as u64;
        limit_bytes.max(inventory.rules().config().tight_floor_bytes)
    }

    /// The shortest run in a view of the lane's under which everything is free, and that is long
    /// enough. Of the views those are looked at that were used last: a program that repeats itself
    /// finds its own by the request log.
    fn find_window(&mut self, inventory: &mut Inventory, reach: Reach<'_>) -> Option<Move> {
        let want = reach.want;
        let views = self.views.newest_first().filter(|&view| {
            let segment = &inventory.space()[view];
            segment.lane() == want.lane && segment.span().size_bytes >= want.size_bytes
        });
        let views: Vec<SegmentId> = views.take(WINDOWS_TRIED).collect();
        let runs = views.into_iter().filter_map(|view| {
            let run = shortest_run(inventory, reach, view)?;
            Some((run.size_bytes, view, run.addr))
        });
        let (_, segment, addr) = runs.min_by_key(|&(size_bytes, ..)| size_bytes)?;
        let waits = ground(inventory, want, segment, addr)?.waits;
        Some(Move::Place { segment, addr, waits })
    }
}

/// The other streams whose free memory a request could have, if its own waits for them.
pub(crate) fn neighbours(inventory: &Inventory, want: &Want) -> Vec<StreamId> {
    if !inventory.pools().is_movable(want.pool) {
        return Vec::new();
    }
    let lanes = inventory.pools().lanes_of(want.pool).filter(|lane| !lane.has_no_block());
    lanes.filter_map(Lane::living_stream).filter(|&stream| stream != want.stream).collect()
}

/// The device refused pages of this size: what is left to ask for, if anything. What is short
/// by a part of a large page may be had in smaller ones.
pub(crate) fn ask_less(inventory: &Inventory, asking: Asking, page_bytes: u64) -> Option<Asking> {
    let page_most_bytes = match asking {
        Asking::Freely => u64::MAX,
        Asking::Sparingly { .. } => page_bytes / 2,
    };
    let may_be_had = page_most_bytes >= page_min_bytes(inventory.rules().config());
    may_be_had.then_some(Asking::Sparingly { page_most_bytes })
}

/// Free pages side by side, or so many more that they suffice. Most of what is free lies in a
/// few large pieces; before memory grows for want of little ones, these are looked at too.
fn stitch_or_grow(inventory: &Inventory, reach: Reach<'_>, asking: Asking) -> Move {
    let mut missing = 0;
    for least_bytes in [PIECE_BYTES, 0] {
        match stitch(
            &gaps(inventory, &free_runs(inventory, reach, least_bytes)),
            reach.want.size_bytes,
        ) {
            Stitch::PageList(page_list) => {
                let pages = page_list.pages.iter().map(|&(page, _)| page);
                let waits = waits_under(inventory, reach, pages);
                return Move::View { plan: plan_view(inventory, page_list), waits };
            }
            Stitch::Short { missing_bytes } => missing = missing_bytes,
        }
    }
    grow_hard(inventory, reach.want, missing, None, asking)
}

/// The streams whose free blocks lie under these pages, and that the request's own has yet to
/// wait for.
fn waits_under(
    inventory: &Inventory,
    reach: Reach<'_>,
    pages: impl Iterator<Item = PageAt>,
) -> Vec<StreamId> {
    let mut waits = BTreeSet::new();
    for page in pages {
        let home = Home { segment: page.segment, span: inventory.space().page_span(page) };
        let blocks =
            inventory.space().blocks_under(home).filter(|&id| may_have(inventory, reach, id));
        let lanes = blocks.map(|id| inventory.space()[id].lane);
        waits.extend(lanes.filter_map(|lane| wait_for(inventory, reach.want.lane, lane)));
    }
    waits.into_iter().collect()
}

/// The smallest free block of another lane that is large enough; or else the shortest run of
/// several lanes' blocks, side by side, that is long enough.
fn find_claim(inventory: &mut Inventory, reach: Reach<'_>) -> Option<Move> {
    let want = reach.want;
    let mut lanes = lanes_beside(inventory, reach).filter(|lane| !lane.has_no_block()).peekable();
    lanes.peek()?;
    let whole = lanes.filter_map(|lane| {
        let mut fitting = lane.free_blocks_from(inventory.space().blocks(), want.size_bytes);
        fitting.find(|&id| inventory.space()[id].expandable)
    });
    let key = |id: &BlockId| (inventory.space()[*id].size_bytes, inventory.space()[*id].addr);
    let (segment, addr) = if let Some(id) = whole.min_by_key(key) {
        (inventory.space()[id].segment, inventory.space()[id].addr)
    } else {
        let runs = free_runs(inventory, reach, want.size_bytes / RUN_BLOCKS).into_iter();
        let fitting = runs.filter(|run| run.span.size_bytes >= want.size_bytes);
        let run = fitting.min_by_key(|run| (run.span.size_bytes, run.span.addr))?;
        (run.segment, run.span.addr)
    };
    let waits = ground(inventory, want, segment, addr)?.waits;
    Some(Move::Place { segment, addr, waits })
}

/// How things stand when memory is about to grow by so much.
fn growth_by(inventory: &Inventory, more_bytes: u64) -> Growth {
    let active_bytes = inventory.recorder().active_bytes().current as u64;
    let reserved_bytes = inventory.space().reserved_bytes();
    Growth { reserved_bytes, lost_bytes: reserved_bytes.saturating_sub(active_bytes), more_bytes }
}

/// Growth while no more than this is held, in the largest pages that are right.
fn grow_within(inventory: &Inventory, reach: Reach<'_>, limit_bytes: u64) -> Option<Move> {
    let want = reach.want;
    let mut page_bytes =
        page_limit_bytes(inventory.rules().config(), growth_by(inventory, want.size_bytes));
    let page_min_bytes = page_min_bytes(inventory.rules().config());
    loop {
        let (growth, more_bytes) =
            plan_pages(inventory, want, want.size_bytes, Some(reach), page_bytes);
        let is_right = page_bytes == page_min_bytes || page_bytes <= more_bytes;
        let held_bytes = inventory.space().held_or_asked_bytes() + more_bytes;
        if is_right && held_bytes <= limit_bytes && !inventory.exceeds_cap(more_bytes) {
            return Some(growth);
        }
        if page_bytes == page_min_bytes {
            return None;
        }
        page_bytes /= 2;
    }
}

/// Growth by so much, because nothing else is left. If it has to lie in one piece, `whole` is
/// what it may begin in.
fn grow_hard(
    inventory: &Inventory,
    want: &Want,
    size_bytes: u64,
    whole: Option<Reach<'_>>,
    asking: Asking,
) -> Move {
    let page_min_bytes = page_min_bytes(inventory.rules().config());
    let page_most_bytes = size_bytes.min(asking.page_most_bytes()).max(page_min_bytes);
    let mut page_bytes =
        page_limit_bytes(inventory.rules().config(), growth_by(inventory, size_bytes));
    while page_bytes > page_most_bytes {
        page_bytes /= 2;
    }
    loop {
        let (growth, more_bytes) = plan_pages(inventory, want, size_bytes, whole, page_bytes);
        if !inventory.exceeds_cap(more_bytes) {
            return growth;
        }
        if page_bytes == page_min_bytes {
            return Move::Capped;
        }
        page_bytes /= 2;
    }
}

/// How to grow by pages of this size, and by how much. A piece that has to be whole may begin
/// in the free block before the new pages, if the request may have that.
fn plan_pages(
    inventory: &Inventory,
    want: &Want,
    size_bytes: u64,
    whole: Option<Reach<'_>>,
    page_bytes: u64,
) -> (Move, u64) {
    if let Some(room) = find_room_of(inventory, want.lane, size_bytes, whole, page_bytes) {
        let plan = inventory.plan_map(room.hole, room.more_bytes);
        let more_bytes = plan.span.size_bytes;
        return (Move::Map(plan), more_bytes);
    }
    let reserve_bytes =
        size::reserve_bytes(inventory.rules().device_total_bytes(), page_bytes, None);
    let more_bytes = size_bytes.next_multiple_of(page_bytes);
    (Move::Reserve { page_bytes, size_bytes: reserve_bytes }, more_bytes)
}

/// The hole that takes the fewest new pages, and the lowest of those.
fn find_room_of(
    inventory: &Inventory,
    lane: LaneId,
    size_bytes: u64,
    whole: Option<Reach<'_>>,
    page_bytes: u64,
) -> Option<Room> {
    let holes = inventory.pools().lane(lane).unmapped();
    let rooms = holes.filter_map(|(_, hole)| {
        let block = &inventory.space()[hole];
        if inventory.space()[block.segment].page_bytes() != page_bytes {
            return None;
        }
        let before =
            block.prev.filter(|&prev| whole.is_some_and(|reach| may_have(inventory, reach, prev)));
        let before_bytes = before.map_or(0, |before| inventory.space()[before].size_bytes);
        let more_bytes = size_bytes.saturating_sub(before_bytes);
        (more_bytes <= block.size_bytes).then_some(Room { hole, more_bytes })
    });
    rooms.min_by_key(|room| room.more_bytes.next_multiple_of(page_bytes))
}

/// What a list of free runs has, as pages see it.
fn gaps(inventory: &Inventory, free_runs: &[Run]) -> Vec<Gap> {
    let gap = |&Run { span, segment, last }: &Run| {
        let owner = &inventory.space()[segment];
        let next = inventory.space()[last].next.map(|next| inventory.space()[next].state);
        let is_end = matches!(next, None | Some(State::Unmapped));
        let (origin, page_bytes) = (owner.span().addr, owner.page_bytes());
        Gap { span, segment, origin, page_bytes, is_end }
    };
    free_runs.iter().map(gap).collect()
}

/// The shortest run of a view under which everything is free at home, and that is long enough.
fn shortest_run(inventory: &mut Inventory, reach: Reach<'_>, view: SegmentId) -> Option<Span> {
    let span = inventory.space()[view].span();
    let (mut best, mut run) = (None::<Span>, Span::new(span.addr, 0));
    let mut keep = |run: Span| {
        if run.size_bytes >= reach.want.size_bytes
            && best.is_none_or(|best| run.size_bytes < best.size_bytes)
        {
            best = Some(run);
        }
    };
    for Shown { addr: shown, home } in inventory.space().shown(view, span) {
        let Some(first) = inventory.space_mut().first_under(home.segment, home.span.addr) else {
            continue;
        };
        let free = inventory.space().blocks_from(first, home.span.end());
        for id in free.filter(|&id| may_have(inventory, reach, id)) {
            let free = inventory.space()[id].span();
            let begin = free.addr.max(home.span.addr);
            let end = free.end().min(home.span.end());
            let piece = Span::new(shown.offset(begin.0 - home.span.addr.0), end.0 - begin.0);
            if run.end() == piece.addr {
                run.size_bytes += piece.size_bytes;
            } else {
                keep(std::mem::replace(&mut run, piece));
            }
        }
    }
    keep(run);
    best
}

/// Below the floor, what nobody has to be waited for, or growth. Once lanes lie in between each
/// other, each finds its places taken by others, and goes on looking for new ones however much
/// is free.
fn keep_apart(inventory: &mut Inventory, want: &Want, asking: Asking) -> Option<Move> {
    let alone = reach(inventory, want, &[]);
    if let Some(claim) = find_claim(inventory, alone) {
        return Some(claim);
    }
    let grown = asking
        .is_free()
        .then(|| grow_within(inventory, alone, inventory.rules().config().tight_floor_bytes));
    grown.flatten()
}
