//! Graph captures and checkpoints in random scripts: work on streams that wait for each other, and
//! layouts of pools that are saved and put back.

use super::{Generator, Live};
use larder_sim::script::{Op, Route};

/// A layout that was saved.
#[derive(Clone, Debug)]
pub(super) struct Saved {
    checkpoint: u32,
    pub(super) pool: u32,
    /// The pool's allocations that were live.
    live: Vec<Live>,
}

impl Generator {
    /// Whether a capture is on that several streams may join.
    pub(super) fn in_graph(&self) -> bool {
        self.scopes.iter().any(|scope| matches!(scope.route, Route::Capture(_)))
    }

    /// One of the streams under capture.
    pub(super) fn captured_stream(&mut self) -> u32 {
        let at = self.random.below(self.captured.len().max(1) as u64) as usize;
        self.captured.get(at).copied().unwrap_or(0)
    }

    /// The stream that most allocations are for.
    pub(super) fn burst_stream(&mut self) -> u32 {
        if self.in_graph() { self.captured_stream() } else { self.burst.stream }
    }

    /// Does something about graphs; false if this is not the moment.
    pub(super) fn graph_step(&mut self) -> bool {
        if self.in_graph() {
            match self.random.below(16) {
                0..=8 => {
                    let stream = self.captured_stream();
                    self.ops.push(Op::Launch { stream });
                }
                9..=14 => self.wait(),
                _ => self.end_capture(),
            }
            return true;
        }
        if !self.scopes.is_empty() {
            return false;
        }
        match self.random.below(10) {
            0..=4 => self.begin_capture(),
            5 => self.save(),
            6..=7 => self.put_back(),
            _ => false,
        }
    }

    fn begin_capture(&mut self) -> bool {
        if self.pools.is_empty() {
            return false;
        }
        let index = self.random.below(self.pools.len() as u64) as usize;
        let stream = self.any_stream();
        self.open_scope(index, Route::Capture(stream));
        self.captured.push(stream);
        self.ops.push(Op::CaptureBegin { stream });
        true
    }

    /// Some stream waits for a captured one, and is captured from then on.
    fn wait(&mut self) {
        let (stream, other) = (self.any_stream(), self.captured_stream());
        if stream == other {
            self.ops.push(Op::Launch { stream });
            return;
        }
        if !self.captured.contains(&stream) {
            self.captured.push(stream);
        }
        self.ops.push(Op::Wait { stream, other });
    }

    /// Ends a capture of several streams: the one it began on waits for all others, most times.
    pub(super) fn end_capture(&mut self) {
        let Some(at) = self.scopes.iter().position(|s| matches!(s.route, Route::Capture(_))) else {
            return;
        };
        let origin = self.captured[0];
        if self.random.chance(0.9) {
            for other in self.captured.split_off(1) {
                self.ops.push(Op::Wait { stream: origin, other });
            }
        }
        self.captured.clear();
        self.ops.push(Op::CaptureEnd { stream: origin });
        let pool = self.scopes.remove(at).pool;
        self.ops.push(Op::PoolEnd { pool });
        if let Some(entry) = self.pools.iter_mut().find(|entry| entry.number == pool) {
            entry.routed = false;
        }
    }

    /// Makes sure that no block of the pool is used or awaited by another stream: a layout can be
    /// saved and put back then only.
    fn settle(&mut self, pool: u32) {
        let is_used = |live: &&Live| live.pool == Some(pool) && live.is_used();
        let used: Vec<Live> = self.live.iter().filter(is_used).copied().collect();
        let (inside, outside): (Vec<_>, Vec<_>) =
            used.into_iter().partition(|live| live.used_inside);
        self.free_these(&outside);
        self.poll();
        let index = self.pools.iter().position(|entry| entry.number == pool);
        for few in inside.chunks(super::DEFERRED_MAX as usize) {
            let Some(index) = index else { break };
            self.open_scope(index, Route::All);
            if self.options.captures_are_marked {
                self.pools[index].captures = Some(0);
                self.captured.push(0);
                self.ops.push(Op::CaptureBegin { stream: 0 });
            }
            self.free_these(few);
            self.end_routing(index);
            self.poll();
        }
        self.poll();
    }

    /// All work is done and the allocator gets to know it: the first allocation records the events
    /// that a capture put off, or finds those done that were recorded before.
    fn poll(&mut self) {
        for stream in 0..self.options.streams {
            self.ops.push(Op::Sync { stream });
        }
        self.alloc_on(512, 0);
        let newest: Vec<Live> = self.live.back().copied().into_iter().collect();
        self.free_these(&newest);
    }

    fn save(&mut self) -> bool {
        let Some(pool) = self.pools.iter().find(|pool| pool.checkpoints) else { return false };
        let pool = pool.number;
        self.settle(pool);
        let checkpoint = self.checkpoint_next;
        self.checkpoint_next += 1;
        let live = self.live.iter().copied().filter(|live| live.pool == Some(pool)).collect();
        self.saved.push(Saved { checkpoint, pool, live });
        self.ops.push(Op::Checkpoint { checkpoint, pool });
        true
    }

    fn put_back(&mut self) -> bool {
        if self.saved.is_empty() {
            return false;
        }
        let at = self.random.below(self.saved.len() as u64) as usize;
        let Saved { checkpoint, pool, live } = self.saved[at].clone();
        self.settle(pool);
        self.ops.push(Op::Restore { checkpoint });
        self.live.retain(|live| live.pool != Some(pool));
        self.live.extend(live);
        self.live_bytes = self.live.iter().map(|live| live.size_bytes).sum();
        true
    }
}
