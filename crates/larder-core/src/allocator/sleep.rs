//! Sleep and wake: memory goes back to the device while its addresses stay, and comes back behind
//! them, with its contents or without.
//!
//! All contents are copied before the first page goes, and what the device refuses to take back
//! becomes an orphan, so that a sleep either happens as a whole or not at all. A wake makes all
//! pages before it changes anything; if it fails, all sleeps on with what is kept of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::allocator::pages::Orphan;
use crate::allocator::{Allocator, Inner};
use crate::device::{Device, DeviceError};
use crate::error::{Error, SleepProblem};
use crate::heap::asleep::Sleeper;
use crate::heap::inventory::asleep::SleepPlan;
use crate::keeper::{Keep, Keeper, Kept, PlainKeeper};
use crate::record::caught;
use crate::record::event::Level;
use crate::types::{Addr, GIB, PoolId, Span};

/// Contents are kept in pieces of this size: one that is kept for the next time serves then, even
/// if it is about other memory.
const PIECE_BYTES: u64 = GIB;

/// Whose memory sleeps or wakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of these tags.
    Tags(Vec<String>),
    /// That of a private pool.
    Pool(PoolId),
    /// All of it, with and without a tag, but for that of pools with sources of their own.
    All,
}

impl Which {
    /// Of one tag.
    pub fn tag(name: impl Into<String>) -> Which {
        Which::Tags(vec![name.into()])
    }
}

/// What a call to sleep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slept {
    /// Bytes of the device that went to sleep.
    pub asleep_bytes: u64,
    /// Bytes of contents that are kept for them.
    pub kept_bytes: u64,
    /// Plain segments, which cannot sleep: their addresses would go with their memory.
    pub plain: Vec<Span>,
}

/// What sleeps at this moment, and what did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SleepStats {
    /// Bytes of the device that sleep: so many are needed to wake all.
    pub asleep_bytes: u64,
    /// Bytes in blocks that sleep and were not freed.
    pub used_bytes: u64,
    /// Bytes of contents that are kept.
    pub kept_bytes: u64,
    /// Bytes of the host that are kept for the next time.
    pub spare_bytes: u64,
    /// How many calls put memory to sleep.
    pub sleeps: u64,
    /// How many calls woke memory. Whoever made memory known to others by its addresses has to do
    /// so anew when this number has risen.
    pub generation: u64,
}

/// What is kept of one sleep of one sleeper.
pub(super) struct Contents {
    pub(super) keep: Keep,
    /// In order.
    pub(super) spans: Vec<Span>,
    /// Where their bytes are, one after the other, in pieces.
    pub(super) pieces: Vec<Box<dyn Kept>>,
}

/// What sleeps, and who keeps its contents.
#[derive(Default)]
pub(super) struct Asleep {
    /// From when it is first wanted.
    pub(super) keeper: Option<Arc<dyn Keeper>>,
    pub(super) contents: BTreeMap<Sleeper, Vec<Contents>>,
    pub(super) sleeps: u64,
    pub(super) generation: u64,
}

impl Contents {
    fn size_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes().len() as u64).sum()
    }
}

impl Allocator {
    /// Contents of what is put to sleep from now on are kept by this keeper. Without one it is the
    /// device's, which on a real GPU keeps them in pinned memory.
    pub fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        let before = self.lock_as_is().asleep.keeper.replace(keeper);
        drop(before);
    }

    /// Who keeps contents.
    pub fn keeper(&self) -> Arc<dyn Keeper> {
        self.lock_as_is().keeper(&self.device)
    }

    /// Puts memory to sleep: its pages go back to the device, and its addresses stay. What is
    /// cached goes back too. Contents are kept as the tags say, or as `keep` does; of memory of no
    /// tag they are kept. Nothing may use the memory until it is woken by [`Allocator::wake`]: not
    /// the host, not a kernel, not a graph. It may be freed, and requests meanwhile get what is
    /// awake. What sleeps already sleeps on.
    ///
    /// It waits for all work of the device, and is refused while a capture may be on. If it fails
    /// nothing sleeps that was awake.
    pub fn sleep(&self, which: &Which, keep: Option<Keep>) -> Result<Slept, Error> {
        let mut inner = self.enter(Level::All);
        let keeper = inner.keeper(&self.device);
        let slept = inner.put_to_sleep(&*self.device, &*keeper, which, keep);
        drop(inner);
        self.leave();
        slept
    }

    /// Wakes memory: pages are made and put behind its addresses, with their contents. What was
    /// freed meanwhile is not made again. If the device is short of memory, what is cached goes
    /// back first; if that does not suffice the error says how much is missing, and all sleeps on.
    pub fn wake(&self, which: &Which) -> Result<(), Error> {
        let mut inner = self.enter(Level::All);
        let woken = inner.wake_up(&*self.device, which);
        drop(inner);
        self.leave();
        woken
    }

    /// What sleeps.
    pub fn sleep_stats(&self) -> SleepStats {
        let spare_bytes = self.keeper().spare_bytes();
        let inner = self.look();
        let sleepers = inner.heap.all_sleepers().into_iter();
        let bytes = sleepers.map(|sleeper| inner.heap.asleep_bytes(sleeper));
        let (asleep_bytes, used_bytes) =
            bytes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        let Asleep { contents, sleeps, generation, .. } = &inner.asleep;
        let kept_bytes = contents.values().flatten().map(Contents::size_bytes).sum();
        let (sleeps, generation) = (*sleeps, *generation);
        SleepStats { asleep_bytes, used_bytes, kept_bytes, spare_bytes, sleeps, generation }
    }

    /// Copies what is kept of a block that sleeps; none if nothing is kept of it.
    pub fn kept_contents(&self, addr: Addr) -> Result<Option<Vec<u8>>, Error> {
        let inner = self.look();
        let block = inner.heap.live(addr).ok_or(Error::UnknownAddress(addr))?;
        let span = Span::new(addr, inner.heap.inventory().size_of(block));
        let mut all = inner.asleep.contents.values().flatten();
        Ok(all.find_map(|contents| contents.copy_of(span)))
    }
}

impl Inner {
    /// Who keeps contents: the device's own keeper, if no other was named.
    fn keeper(&mut self, device: &Arc<dyn Device>) -> Arc<dyn Keeper> {
        let own = || Arc::clone(device).keeper().unwrap_or_else(|| Arc::new(PlainKeeper));
        Arc::clone(self.asleep.keeper.get_or_insert_with(own))
    }

    /// Whose memory is meant.
    pub(super) fn sleepers(&self, which: &Which) -> Result<Vec<Sleeper>, Error> {
        match which {
            Which::All => Ok(self.heap.all_sleepers()),
            Which::Pool(pool) => {
                let is_there = self.heap.pools().pool_uses(*pool).is_some();
                let unknown = || Error::pool(*pool)(crate::error::PoolProblem::Unknown);
                is_there.then(|| vec![Some(*pool)]).ok_or_else(unknown)
            }
            Which::Tags(names) => {
                let mut sleepers: Vec<Sleeper> = Vec::new();
                for name in names {
                    for pool in self.tags.pools(name)? {
                        if !sleepers.contains(&Some(pool)) {
                            sleepers.push(Some(pool));
                        }
                    }
                }
                Ok(sleepers)
            }
        }
    }

    /// Refuses while a capture may be on, and waits for all work of the device.
    pub(super) fn come_to_rest(&mut self, device: &dyn Device) -> Result<(), Error> {
        if self.heap.pools().may_capture() && self.may_anybody_capture(device)? {
            return Err(Error::Sleep(SleepProblem::Captured));
        }
        device.wait_device().map_err(Error::device("wait for the device"))?;
        self.wait_for_events(device)
    }

    fn put_to_sleep(
        &mut self,
        device: &dyn Device,
        keeper: &dyn Keeper,
        which: &Which,
        keep: Option<Keep>,
    ) -> Result<Slept, Error> {
        let sleepers = self.sleepers(which)?;
        self.come_to_rest(device)?;
        // What nobody uses goes back, and need not be made again.
        self.flush(device, false, None)?;
        let (mut slept, mut planned) = (Slept::default(), Vec::new());
        for sleeper in sleepers {
            let plan = self.heap.plan_sleep(sleeper);
            slept.plain.extend(&plan.plain);
            if plan.pages.is_empty() {
                continue;
            }
            let said = sleeper.map_or(Keep::Contents, |pool| self.tags.keep_of(pool));
            let contents = save(device, keeper, &plan, keep.unwrap_or(said))?;
            slept.kept_bytes += contents.size_bytes();
            slept.asleep_bytes += plan.pages.iter().map(|(span, _)| span.size_bytes).sum::<u64>();
            planned.push((sleeper, plan, contents));
        }
        self.asleep.sleeps += u64::from(!planned.is_empty());
        for (sleeper, plan, contents) in planned {
            self.take_pages(device, &plan);
            self.tick(device);
            self.heap.commit_sleep(&plan);
            self.asleep.contents.entry(sleeper).or_default().push(contents);
        }
        Ok(slept)
    }

    /// Takes the pages of a plan away. What the device refuses is offered to it again later.
    fn take_pages(&mut self, device: &dyn Device, plan: &SleepPlan) {
        let mut places: BTreeMap<_, Vec<Span>> = BTreeMap::new();
        for &(span, page) in plan.shown.iter().chain(&plan.pages) {
            places.entry(page).or_default().push(span);
        }
        for (page, mapped) in places {
            self.drop_page(device, Orphan::new(page, mapped));
        }
    }
}

/// Copies what is to be there again after waking.
fn save(
    device: &dyn Device,
    keeper: &dyn Keeper,
    plan: &SleepPlan,
    keep: Keep,
) -> Result<Contents, Error> {
    let spans = plan.contents.clone();
    if keep != Keep::Contents {
        return Ok(Contents { keep, spans, pieces: Vec::new() });
    }
    let mut left_bytes: u64 = spans.iter().map(|span| span.size_bytes).sum();
    let mut pieces: Vec<Box<dyn Kept>> = Vec::new();
    while left_bytes > 0 {
        let size_bytes = left_bytes.min(PIECE_BYTES);
        let refused = |said| Error::Sleep(SleepProblem::NoKeep { size_bytes, said });
        let kept = caught::catch(|| keeper.keep(size_bytes));
        let kept = kept.unwrap_or_else(|| Err("it panicked".into())).map_err(refused)?;
        if kept.bytes().len() as u64 != size_bytes {
            let said = format!("it gave {} bytes of room", kept.bytes().len());
            return Err(refused(said.into()));
        }
        pieces.push(kept);
        left_bytes -= size_bytes;
    }
    let mut copies: Vec<(Span, &mut [u8])> = Vec::with_capacity(spans.len());
    let mut rooms = pieces.iter_mut().map(|piece| piece.bytes_mut());
    let mut room: &mut [u8] = &mut [];
    for mut span in spans.iter().copied() {
        while span.size_bytes > 0 {
            if room.is_empty() {
                room = rooms.next().expect("there is room for all");
            }
            let here_bytes = span.size_bytes.min(room.len() as u64);
            let (here, rest) = std::mem::take(&mut room).split_at_mut(here_bytes as usize);
            copies.push((Span::new(span.addr, here_bytes), here));
            room = rest;
            span = Span::new(span.addr.offset(here_bytes), span.size_bytes - here_bytes);
        }
    }
    device.copy_out(&mut copies).map_err(Error::device("copy contents to the host"))?;
    drop(copies);
    Ok(Contents { keep, spans, pieces })
}

impl Contents {
    /// Where the bytes of a span are, as places in the pieces; none if not all of it is kept.
    fn copy_of(&self, span: Span) -> Option<Vec<u8>> {
        if self.pieces.is_empty() {
            return None;
        }
        let mut offset_bytes = 0;
        for kept in &self.spans {
            if kept.covers(span) {
                let begin = offset_bytes + (span.addr.0 - kept.addr.0);
                return Some(self.slices(begin, span.size_bytes).concat());
            }
            offset_bytes += kept.size_bytes;
        }
        None
    }

    /// So many kept bytes from a place on, which may lie in several pieces.
    pub(super) fn slices(&self, begin_bytes: u64, size_bytes: u64) -> Vec<&[u8]> {
        let (mut at, mut left, mut slices) = (begin_bytes, size_bytes, Vec::new());
        while left > 0 {
            let piece = self.pieces[(at / PIECE_BYTES) as usize].bytes();
            let within = (at % PIECE_BYTES) as usize;
            let here = left.min((piece.len() - within) as u64);
            slices.push(&piece[within..within + here as usize]);
            (at, left) = (at + here, left - here);
        }
        slices
    }
}

/// A refusal for want of memory, or another.
pub(super) fn is_short(error: &DeviceError) -> bool {
    *error == DeviceError::OutOfMemory
}
