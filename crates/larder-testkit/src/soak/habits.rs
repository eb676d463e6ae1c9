//! Habits: what a program does that scripts have no words for. It destroys streams, shares blocks
//! with other processes, and opens its memory to a peer.

use larder_core::{Addr, DeviceIndex, Error, StreamId};

use super::external_checker::NOBODY;
use super::run::Run;
use larder_sim::script::{Op, Route};

/// The device that memory is opened to.
const PEER: DeviceIndex = DeviceIndex(1);
/// One in so many syncs is the end of its stream.
const SYNCS_PER_END: u64 = 3;
/// One in so many blocks is shared.
const BLOCKS_PER_SHARE: u64 = 5;
/// The peer comes when there have been so many blocks.
const PEER_BLOCKS: u64 = 40;

impl Run<'_> {
    /// The work of a stream is done. Now and then that is the end of it.
    pub(super) fn forget_now_and_then(&mut self, stream: StreamId) -> Result<(), String> {
        self.abroad.syncs += 1;
        let is_due = self.abroad.syncs.is_multiple_of(SYNCS_PER_END);
        // Who has a scope for captures of a stream keeps the stream.
        let is_free = !self.device.is_captured(stream) && self.open_pools.is_empty();
        let may_go = stream != StreamId(0) && is_free;
        if !self.plan.habits.forgets_streams || !is_due || !may_go {
            return Ok(());
        }
        match self.allocator.forget_stream(stream) {
            Err(Error::Capture { .. }) => return Ok(()),
            Err(error) => return self.tolerate(Err(error)),
            Ok(()) => {}
        }
        self.report.forgotten_streams += 1;
        self.checker.forget(stream);
        let saved = self.saved.values_mut().flat_map(|saved| &mut saved.layout);
        for placed in saved.filter(|placed| placed.stream == stream) {
            placed.stream = NOBODY;
        }
        self.order.iter_mut().for_each(|order| order.forget(stream));
        self.device.destroy_stream(stream);
        self.gone.insert(stream);
        Ok(())
    }

    /// A stream that is gone and named again is a new one with the same handle.
    pub(super) fn revive(&mut self, op: Op) {
        let named = match op {
            Op::Alloc { stream, .. }
            | Op::Record { stream, .. }
            | Op::Sync { stream }
            | Op::Launch { stream }
            | Op::CaptureBegin { stream }
            | Op::CaptureEnd { stream } => vec![stream],
            Op::Wait { stream, other } => vec![stream, other],
            Op::PoolBegin { route: Route::Capture(stream) | Route::Stream(stream), .. } => {
                vec![stream]
            }
            _ => Vec::new(),
        };
        for stream in named {
            self.revive_stream(StreamId(u64::from(stream)));
        }
    }

    fn revive_stream(&mut self, stream: StreamId) {
        if self.gone.remove(&stream) {
            self.device.create_stream(stream);
        }
    }

    /// All streams are there again.
    pub(super) fn revive_all(&mut self) {
        while let Some(&stream) = self.gone.first() {
            self.revive_stream(stream);
        }
    }

    /// Shares a block that was just handed out, now and then, and opens it in another process.
    pub(super) fn share_now_and_then(&mut self, addr: Addr) -> Result<(), String> {
        self.abroad.blocks += 1;
        let Some(process) = &self.abroad.process else { return Ok(()) };
        if !self.abroad.blocks.is_multiple_of(BLOCKS_PER_SHARE) {
            return Ok(());
        }
        match self.allocator.share(addr) {
            Ok(shared) => {
                let text = |error: Error| format!("{addr} was shared, but: {error}");
                let opened = process.open_shared(&shared.bytes).map_err(text)?;
                process.close_shared(opened).map_err(text)?;
                self.report.shared += 1;
                Ok(())
            }
            Err(error) => self.tolerate(Err(error)),
        }
    }

    /// When its time has come, the peer may use everything that is live, and all that comes.
    pub(super) fn check_peer(&mut self) -> Result<(), String> {
        let is_due = self.plan.habits.opens_to_peer && self.abroad.blocks >= PEER_BLOCKS;
        if is_due && !self.abroad.has_peer {
            match self.allocator.open_to_peer(PEER) {
                Ok(()) => self.abroad.has_peer = true,
                Err(error) => self.tolerate(Err(error))?,
            }
        }
        if !self.abroad.has_peer {
            return Ok(());
        }
        let mut live = self.checker.live_spans();
        match live.find(|&span| !self.device.is_open_to_peer(span, PEER)) {
            Some(span) => Err(format!("the peer cannot use the block at {}", span.addr)),
            None => Ok(()),
        }
    }
}
