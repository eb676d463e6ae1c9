//! Followed: the memory of a program, put together from the events on its tape as they come.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use larder_core::record::event::Action;
use larder_core::types::{PoolId, StreamId};
use larder_tape::{Follower, Tape, TapeError, TapeEvent};

use super::{LiveLane, Look, Sums};

/// How many stacks a look has.
const STACKS: usize = 8;
/// How many frames of each are named.
const FRAMES: usize = 3;

#[derive(Clone, Copy)]
struct Block {
    size_bytes: u64,
    lane: Lane,
    stack: Option<usize>,
    is_live: bool,
}

type Lane = (u32, StreamId, PoolId);

/// A program, followed through its tape.
pub struct Followed {
    follower: Follower,
    blocks: HashMap<(u32, u64), Block>,
    /// What is held, by device and address; pieces of expandable segments one by one.
    held: BTreeMap<(u32, u64), (u64, Lane)>,
    sums: Sums,
}

impl Followed {
    /// Begins at the beginning of a tape.
    pub fn open(path: &Path) -> Result<Followed, TapeError> {
        let follower = Follower::open(path)?;
        let (blocks, held, sums) = (HashMap::new(), BTreeMap::new(), Sums::default());
        Ok(Followed { follower, blocks, held, sums })
    }

    /// Takes what has come since the last look.
    pub fn look(&mut self) -> Result<Look, TapeError> {
        self.follower.look()?;
        let events = std::mem::take(&mut self.follower.tape().events);
        for event in &events {
            self.follow(event);
        }
        let held = self.held.values();
        self.sums.reserved_bytes = held.clone().map(|(bytes, _)| bytes).sum();
        self.sums.segments = held.count() as u64;
        Ok(Look { sums: self.sums, lanes: self.lanes(), stacks: self.stacks() })
    }

    fn follow(&mut self, event: &TapeEvent) {
        let lane = (event.device, event.stream, event.pool);
        let place = (event.device, event.addr);
        match event.action {
            Action::Alloc => {
                let (size_bytes, stack) = (event.size_bytes, event.stack);
                self.blocks.insert(place, Block { size_bytes, lane, stack, is_live: true });
                self.sums.allocations += 1;
                self.sums.live_allocations += 1;
                self.sums.requested_bytes += size_bytes;
            }
            Action::FreeRequested => {
                self.sums.frees += 1;
                // What is older than the tape was never counted.
                if let Some(block) = self.blocks.get_mut(&place) {
                    block.is_live = false;
                    self.sums.live_allocations -= 1;
                }
            }
            Action::FreeCompleted => {
                if let Some(block) = self.blocks.remove(&place) {
                    self.sums.requested_bytes -= block.size_bytes;
                    self.sums.live_allocations -= u64::from(block.is_live);
                }
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                self.held.insert(place, (event.size_bytes, lane));
            }
            Action::SegmentFree => drop(self.held.remove(&place)),
            Action::SegmentUnmap => self.unmap(event.device, event.addr, event.size_bytes),
            Action::OutOfMemory => self.sums.ooms += 1,
            Action::Snapshot | Action::Annotate => {}
        }
    }

    /// Takes a span out of what is held; it may be a part of one piece, or all of several.
    fn unmap(&mut self, device: u32, addr: u64, size_bytes: u64) {
        let end = addr.saturating_add(size_bytes);
        let touched: Vec<(u64, u64, Lane)> = self
            .held
            .range((device, 0)..(device, end))
            .filter(|&(&(_, at), &(bytes, _))| at + bytes > addr)
            .map(|(&(_, at), &(bytes, lane))| (at, bytes, lane))
            .collect();
        for (at, bytes, lane) in touched {
            self.held.remove(&(device, at));
            if at < addr {
                self.held.insert((device, at), (addr - at, lane));
            }
            if at + bytes > end {
                self.held.insert((device, end), (at + bytes - end, lane));
            }
        }
    }

    fn lanes(&self) -> Vec<LiveLane> {
        let mut lanes: BTreeMap<(u32, u64, (u64, u64)), LiveLane> = BTreeMap::new();
        let mut lane = |(device, stream, pool): Lane, reserved_bytes: u64, used_bytes: u64| {
            let none = LiveLane { device, stream, pool, reserved_bytes: 0, used_bytes: 0 };
            let lane = lanes.entry((device, stream.0, (pool.0, pool.1))).or_insert(none);
            lane.reserved_bytes += reserved_bytes;
            lane.used_bytes += used_bytes;
        };
        self.held.values().for_each(|&(bytes, of)| lane(of, bytes, 0));
        self.blocks.values().for_each(|block| lane(block.lane, 0, block.size_bytes));
        let mut lanes: Vec<LiveLane> = lanes.into_values().collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse((lane.reserved_bytes, lane.used_bytes)));
        lanes
    }

    fn stacks(&mut self) -> Vec<(String, u64, u64)> {
        let mut sums: HashMap<usize, (u64, u64)> = HashMap::new();
        for block in self.blocks.values().filter(|block| block.is_live) {
            let Some(stack) = block.stack else { continue };
            let (bytes, count) = sums.entry(stack).or_default();
            *bytes += block.size_bytes;
            *count += 1;
        }
        let mut sums: Vec<(usize, (u64, u64))> = sums.into_iter().collect();
        sums.sort_by_key(|&(stack, (bytes, _))| (std::cmp::Reverse(bytes), stack));
        let tape = self.follower.tape();
        let named = sums.into_iter().take(STACKS);
        named.map(|(stack, (bytes, count))| (frames(tape, stack), bytes, count)).collect()
    }
}

/// The innermost frames of a stack that have a file, or else the innermost.
fn frames(tape: &Tape, stack: usize) -> String {
    let frames = &tape.stacks[stack];
    let is_named =
        |&&frame: &&usize| !matches!(tape.texts[tape.frames[frame].1].as_str(), "" | "??");
    let mut chosen: Vec<usize> = frames.iter().filter(is_named).take(FRAMES).copied().collect();
    if chosen.is_empty() {
        chosen.extend(frames.iter().take(FRAMES));
    }
    let words = chosen.into_iter().map(|frame| {
        let (name, file, line) = tape.frames[frame];
        let file = tape.texts[file].rsplit('/').next().unwrap_or_default();
        let name = &tape.texts[name];
        if file.is_empty() { name.clone() } else { format!("{file}:{line} {name}") }
    });
    words.collect::<Vec<_>>().join(" < ")
}
