//! Tapes: a recording that was written while the program ran, as a snapshot.
//!
//! A tape tells what happened and not what was there in the end. That follows from it, but for what
//! is older than the tape: segments and blocks are put together from their entries.

use std::collections::BTreeMap;

use larder_core::types::KIB;
use larder_tape::{Tape, TapeEvent, TapeNote};
use serde_json::Map;

use super::Snapshot;
use super::build::{Builder, NewEntry};
use super::entry::{Action, BlockInfo, BlockState, SegmentInfo, StackId};
use super::live::{Epoch, own_doing, settings, sums};

/// Blocks begin at multiples of this and have at least this size.
const UNIT_BYTES: u64 = KIB / 2;
/// Where addresses end, and the most bytes that a snapshot's numbers can say.
const BYTES_MAX: u64 = i64::MAX as u64;

impl Snapshot {
    /// What a tape recorded.
    pub fn of_tape(tape: &Tape, epoch: Epoch) -> Snapshot {
        let mut builder = Builder::new();
        let frames: Vec<u32> = tape
            .frames
            .iter()
            .map(|&(name, file, line)| {
                builder.frame(&tape.texts[name], &tape.texts[file], line, Map::new())
            })
            .collect();
        let stacks: Vec<Option<StackId>> = tape
            .stacks
            .iter()
            .map(|stack| {
                let numbers: Vec<u32> = stack.iter().map(|&frame| frames[frame]).collect();
                builder.stack(&numbers)
            })
            .collect();
        let devices = tape.events.iter().map(|event| event.device + 1).max().unwrap_or(1);
        let mut traces: Vec<Vec<&TapeEvent>> = vec![Vec::new(); devices as usize];
        for event in &tape.events {
            traces[event.device as usize].push(event);
        }
        for (device, trace) in (0..devices).zip(traces) {
            builder.begin_trace();
            let mut ending = Ending::default();
            for event in trace {
                let stack = event.stack.and_then(|stack| stacks[stack]);
                push(&mut builder, tape, event, stack, epoch);
                ending.follow(event, stack);
            }
            let no_stack = builder.stack(&[]);
            let segments = ending.segments(device, no_stack);
            builder.segments.extend(segments);
        }
        let mut more = Map::new();
        more.insert(
            "allocator_settings".to_owned(),
            settings(&larder_core::Config::default(), &larder_core::Policy::default()),
        );
        more.insert("external_annotations".to_owned(), Vec::<u8>::new().into());
        builder.more = Some(more);
        builder.finish()
    }
}

fn push(
    builder: &mut Builder,
    tape: &Tape,
    event: &TapeEvent,
    stack: Option<StackId>,
    epoch: Epoch,
) {
    let note = event.note.map_or_else(TapeNote::default, |note| tape.notes[note]);
    let text = |text: Option<usize>, none| text.map_or(none, |text| tape.texts[text].as_str());
    builder.entry(NewEntry {
        action: event.action.into(),
        addr: event.addr,
        size_bytes: event.size_bytes,
        stream: event.stream.0,
        time_us: Some(event.time_ns.saturating_add(epoch.unix_ns) / 1000),
        compile_context: Some(text(note.compiling, "N/A")),
        user_metadata: Some(text(note.remark, "")),
        pool_id: Some((event.pool.0, event.pool.1)),
        stack,
        more: own_doing(text(note.doing, "")),
    });
}

/// What is there after an event: segments and pages by address, and blocks.
#[derive(Default)]
struct Ending {
    backed: BTreeMap<u64, Backed>,
    blocks: BTreeMap<u64, BlockInfo>,
}

#[derive(Clone, Copy)]
struct Backed {
    size_bytes: u64,
    stream: u64,
    pool_id: (u64, u64),
    is_expandable: bool,
    stack: Option<StackId>,
}

impl Ending {
    fn follow(&mut self, event: &TapeEvent, stack: Option<StackId>) {
        let action = Action::from(event.action);
        match action {
            Action::SegmentAlloc | Action::SegmentMap => {
                let backed = Backed {
                    size_bytes: event.size_bytes,
                    stream: event.stream.0,
                    pool_id: (event.pool.0, event.pool.1),
                    is_expandable: action == Action::SegmentMap,
                    stack,
                };
                self.backed.insert(event.addr, backed);
            }
            Action::SegmentFree => drop(self.backed.remove(&event.addr)),
            Action::SegmentUnmap => self.unmap(event.addr, event.size_bytes),
            Action::Alloc => {
                let size_bytes = event.size_bytes.max(1).next_multiple_of(UNIT_BYTES);
                let info = BlockInfo {
                    addr: event.addr,
                    // Rounded up, but not past the last address.
                    size_bytes: size_bytes.min(BYTES_MAX - event.addr),
                    requested_bytes: event.size_bytes,
                    stack,
                    state: BlockState::Allocated,
                    more: None,
                };
                self.blocks.insert(event.addr, info);
            }
            Action::FreeRequested => {
                if let Some(block) = self.blocks.get_mut(&event.addr) {
                    block.state = BlockState::PendingFree;
                }
            }
            Action::FreeCompleted => drop(self.blocks.remove(&event.addr)),
            Action::Snapshot | Action::OutOfMemory | Action::Annotate | Action::Other => {}
        }
    }

    /// Takes a span out of what is mapped; it may be a part of one piece, or all of several.
    fn unmap(&mut self, addr: u64, size_bytes: u64) {
        let end = addr.saturating_add(size_bytes);
        let touched: Vec<(u64, Backed)> = self
            .backed
            .range(..end)
            .rev()
            .map(|(&begin, &backed)| (begin, backed))
            .take_while(|&(begin, backed)| begin.saturating_add(backed.size_bytes) > addr)
            .collect();
        for (begin, backed) in touched {
            self.backed.remove(&begin);
            let backed_end = begin.saturating_add(backed.size_bytes);
            if begin < addr {
                self.backed.insert(begin, Backed { size_bytes: addr - begin, ..backed });
            }
            if backed_end > end {
                self.backed.insert(end, Backed { size_bytes: backed_end - end, ..backed });
            }
        }
    }

    /// The segments; pages that lie side by side are one.
    fn segments(&self, device: u32, no_stack: Option<StackId>) -> Vec<SegmentInfo> {
        let mut runs: Vec<(u64, Backed)> = Vec::new();
        for (&addr, &backed) in &self.backed {
            if let Some((begin, last)) = runs.last_mut()
                && backed.is_expandable
                && last.is_expandable
                && *begin + last.size_bytes == addr
                && (last.stream, last.pool_id) == (backed.stream, backed.pool_id)
            {
                last.size_bytes += backed.size_bytes;
            } else {
                runs.push((addr, backed));
            }
        }
        runs.into_iter().map(|(addr, run)| self.segment(device, addr, run, no_stack)).collect()
    }

    fn segment(
        &self,
        device: u32,
        addr: u64,
        run: Backed,
        no_stack: Option<StackId>,
    ) -> SegmentInfo {
        let end = addr.saturating_add(run.size_bytes);
        let mut blocks = Vec::new();
        let free = |addr: u64, size_bytes| BlockInfo {
            addr,
            size_bytes,
            requested_bytes: 0,
            stack: no_stack,
            state: BlockState::Inactive,
            more: None,
        };
        let mut at = addr;
        for block in self.blocks.range(addr..end).map(|(_, block)| *block) {
            if block.addr > at {
                blocks.push(free(at, block.addr - at));
            }
            at = (block.addr + block.size_bytes).min(end);
            blocks.push(BlockInfo { stack: block.stack.or(no_stack), ..block });
        }
        if at < end {
            blocks.push(free(at, end - at));
        }
        let sum = |bytes: fn(&BlockInfo) -> u64, states: &[BlockState]| -> u64 {
            let counted = blocks.iter().filter(|block| states.contains(&block.state)).map(bytes);
            // A tape that is damaged may have blocks that overlap, and sums of any size.
            counted.fold(0, u64::saturating_add).min(BYTES_MAX)
        };
        let active = [BlockState::Allocated, BlockState::PendingFree];
        let more = sums(
            sum(|block| block.size_bytes, &active[..1]),
            sum(|block| block.size_bytes, &active),
            sum(|block| block.requested_bytes, &active),
        );
        // The small pool's segments have 2 MiB; those of the large pool have more.
        let is_small = run.size_bytes <= 2 * KIB * KIB
            || blocks.iter().all(|block| block.requested_bytes <= KIB * KIB)
                && blocks.iter().any(|block| block.requested_bytes > 0)
                && run.is_expandable;
        SegmentInfo {
            device,
            addr,
            size_bytes: run.size_bytes,
            stream: run.stream,
            pool_id: run.pool_id,
            is_small,
            is_expandable: run.is_expandable,
            stack: run.stack.or(no_stack),
            blocks,
            more,
        }
    }
}
