//! The steps of a run that are about private pools, graph captures and checkpoints.

use larder_core::heap::{Filter, State};
use larder_core::types::Span;
use larder_core::{Addr, Error, PoolId, StreamId};

use super::external_checker::NOBODY;
use super::outcome::{Outcome, Placed};
use super::run::{Run, Saved};
use larder_sim::Calls;
use larder_sim::script::{Op, Route};

fn pool_id(pool: u32) -> PoolId {
    PoolId(0, u64::from(pool))
}

fn stream_id(stream: u32) -> StreamId {
    StreamId(u64::from(stream))
}

fn filter(route: Route) -> Filter {
    match route {
        Route::All => Filter::Any,
        Route::Stream(stream) => Filter::Stream(stream_id(stream)),
        Route::Capture(stream) => Filter::Capture(stream_id(stream)),
    }
}

impl Run<'_> {
    /// Carries out an operation about pools or captures.
    pub(super) fn pool_step(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Launch { stream } => {
                self.on_devices(|device| device.issue(stream_id(stream)));
                Ok(())
            }
            Op::Wait { stream, other } => {
                // What a capture does not allow breaks it, on both devices alike.
                self.on_devices(|device| {
                    let _ = device.follow(stream_id(stream), stream_id(other));
                });
                Ok(())
            }
            Op::CaptureBegin { stream } => {
                self.report.captures += 1;
                self.on_devices(|device| {
                    let _ = device.begin_capture(stream_id(stream));
                });
                Ok(())
            }
            Op::CaptureEnd { stream } => {
                self.on_devices(|device| {
                    let _ = device.end_capture(stream_id(stream));
                });
                Ok(())
            }
            Op::Checkpoint { checkpoint, pool } => self.checkpoint(checkpoint, pool),
            Op::PoolEmpty { pool } => {
                let before = self.device.calls();
                let emptied = self.allocator.empty_pool(pool_id(pool));
                self.tolerate(emptied)?;
                self.note_waits(before);
                self.model.iter_mut().for_each(|model| model.empty_pool(pool));
                Ok(())
            }
            other => self.scope_step(other),
        }
    }

    /// What was waited for since may be the end of other blocks' uses too, on any stream.
    pub(super) fn note_waits(&mut self, before: Calls) {
        let waits = |calls: Calls| calls.wait_event + calls.wait_stream;
        if waits(self.device.calls()) > waits(before) {
            for stream in 0..self.plan.script.streams {
                self.checker.sync(stream_id(stream));
            }
        }
    }

    /// Carries out an operation that asks no device; the model must agree on whether it is refused.
    fn scope_step(&mut self, op: Op) -> Result<(), String> {
        let (allocator, mut model) = (&self.allocator, self.model.as_mut());
        let (done, modelled) = match op {
            Op::PoolNew { pool } => {
                self.pools.insert(pool);
                let gives = self.plan.habits.gives_source(pool);
                let modelled = model.as_mut().map(|model| model.add_pool_use(pool, gives));
                let is_new = allocator.pool_uses(pool_id(pool)).is_none();
                let done = if gives && is_new {
                    self.report.sources += 1;
                    allocator.add_pool_with_source(pool_id(pool), self.source.clone())
                } else {
                    allocator.add_pool_use(pool_id(pool))
                };
                (done, modelled)
            }
            Op::PoolRelease { pool } => {
                let modelled = model.as_mut().map(|model| model.drop_pool_use(pool));
                (allocator.drop_pool_use(pool_id(pool)), modelled)
            }
            Op::PoolBegin { pool, route } => {
                self.pools.insert(pool);
                let begun = allocator.begin_pool(pool_id(pool), filter(route));
                if begun.is_ok() {
                    self.open_pools.push(pool);
                    self.report.scopes += 1;
                }
                (begun, model.as_mut().map(|model| model.begin_pool(pool, route)))
            }
            Op::PoolEnd { pool } => {
                self.open_pools.retain(|&open| open != pool);
                let modelled = model.as_mut().map(|model| model.end_pool(pool));
                (allocator.end_pool(pool_id(pool)), modelled)
            }
            Op::PoolUseOnOom { pool, on } => {
                let modelled = model.as_mut().map(|model| model.set_use_on_oom(pool, on));
                (allocator.set_pool_use_on_oom(pool_id(pool), on), modelled)
            }
            Op::PoolNoSplit { pool } => {
                let modelled = model.as_mut().map(|model| model.set_no_split(pool));
                (allocator.set_pool_no_split(pool_id(pool)), modelled)
            }
            other => return Err(format!("'{other}' is no operation of a soak run")),
        };
        match (&done, modelled) {
            (Ok(()), Some(None)) => Err("this should have been refused".to_owned()),
            (Err(error), Some(Some(()))) => Err(format!("this should not be refused: {error}")),
            // A script that was cut short may name pools that are not there.
            (Ok(()) | Err(Error::Pool { .. }), _) => Ok(()),
            (Err(error), _) => Err(format!("unexpected: {error}")),
        }
    }

    fn on_devices(&mut self, act: impl Fn(&larder_sim::SimDevice)) {
        act(&self.device);
        self.model.iter().for_each(|model| act(model.device()));
    }

    fn checkpoint(&mut self, name: u32, pool: u32) -> Result<(), String> {
        let saved = self.allocator.checkpoint_pool(pool_id(pool));
        let modelled = self.model.as_mut().map(|model| model.checkpoint(pool));
        let agreed = self.agree(saved, modelled.as_ref().map(Option::is_some))?;
        let Some(checkpoint) = agreed else { return Ok(()) };
        let segments = self.allocator.pool_snapshot(pool_id(pool)).unwrap_or_default();
        let mut layout = Vec::new();
        for segment in &segments {
            for block in segment.blocks.iter().filter(|block| block.state != State::Unmapped) {
                layout.push(Placed {
                    addr: block.span.addr,
                    size_bytes: block.span.size_bytes,
                    // Its own may be gone.
                    stream: self.checker.stream_of(block.span.addr).unwrap_or(segment.stream),
                    kind: segment.kind,
                    live: block.state == State::Live,
                });
            }
        }
        let live: Vec<Addr> =
            layout.iter().filter(|placed| placed.live).map(|placed| placed.addr).collect();
        if checkpoint.live().iter().map(|span| span.addr).collect::<Vec<_>>() != live
            || self.allocator.pool_has_live(pool_id(pool), &live) != Ok(true)
        {
            return Err("a checkpoint has other live blocks than its pool".to_owned());
        }
        let ids = self.addresses.iter().map(|(&id, &addr)| (addr, id)).collect();
        let modelled = modelled.flatten();
        self.saved.insert(name, Saved { checkpoint, modelled, ids, layout });
        Ok(())
    }

    /// Puts a layout back, if it can be; a refusal changes nothing.
    pub(super) fn restore(&mut self, name: u32) -> Result<Outcome, String> {
        let Some(saved) = self.saved.get(&name) else { return Ok(Outcome::Nothing) };
        let before = (self.allocator.stats(), self.allocator.snapshot());
        let restored = self.allocator.restore_pool(&saved.checkpoint);
        let modelled = match (&mut self.model, &saved.modelled) {
            (Some(model), Some(checkpoint)) => Some(model.restore(checkpoint)),
            _ => None,
        };
        let restored = self.agree(restored, modelled.as_ref().map(Option::is_some))?;
        let Some(restored) = restored else {
            if before != (self.allocator.stats(), self.allocator.snapshot()) {
                return Err("a checkpoint that was refused changed something".to_owned());
            }
            return Ok(Outcome::Nothing);
        };
        if let Some(Some((freed, created))) = modelled
            && (&freed, &created) != (&restored.freed, &restored.created)
        {
            return Err(format!("{restored:?} should be {freed:?} and {created:?}"));
        }
        for addr in restored.freed.iter().chain(&restored.created) {
            self.forget_block(*addr);
        }
        let saved = &self.saved[&name];
        if let Some(order) = &mut self.order {
            for placed in saved.layout.iter().filter(|placed| placed.live) {
                let block = Span::new(placed.addr, placed.size_bytes);
                if placed.stream == NOBODY {
                    order.adopt(block);
                } else {
                    order.taken(&self.device, block, placed.stream)?;
                }
            }
        }
        let pool = saved.checkpoint.pool();
        if self.allocator.pool_has_live(pool, &restored.created) != Ok(true) {
            return Err("other blocks are live than the checkpoint says".to_owned());
        }
        self.report.restores += 1;
        self.addresses.retain(|_, addr| restored.freed.binary_search(addr).is_err());
        let back = restored.created.iter().filter_map(|addr| Some((*saved.ids.get(addr)?, *addr)));
        self.addresses.extend(back);
        let in_scope = !self.open_pools.is_empty();
        self.checker.freeing_in_scope(in_scope);
        Ok(Outcome::Restored { freed: restored.freed, layout: saved.layout.clone() })
    }

    /// What a call gave; none if it was refused for a reason that it may be refused for. The model
    /// must agree on that.
    fn agree<T>(
        &mut self,
        result: Result<T, Error>,
        modelled: Option<bool>,
    ) -> Result<Option<T>, String> {
        if modelled.is_some_and(|is_done| is_done != result.is_ok()) {
            let said = result.err().map_or("done".to_owned(), |error| error.to_string());
            return Err(format!("the model disagrees with this: {said}"));
        }
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Pool { .. }) => {
                self.report.refused_checkpoints += 1;
                Ok(None)
            }
            Err(error) => self.tolerate(Err(error)).map(|()| None),
        }
    }

    /// Ends all captures, closes all scopes and drops all uses.
    pub(super) fn leave_pools(&mut self) -> Result<(), String> {
        let text = |error: Error| error.to_string();
        for stream in 0..self.plan.script.streams {
            let _ = self.device.end_capture(stream_id(stream));
        }
        for pool in std::mem::take(&mut self.open_pools) {
            self.allocator.end_pool(pool_id(pool)).map_err(text)?;
        }
        for &pool in &self.pools {
            while self.allocator.pool_uses(pool_id(pool)).is_some_and(|uses| uses > 0) {
                self.allocator.drop_pool_use(pool_id(pool)).map_err(text)?;
            }
        }
        Ok(())
    }

    /// A pool that is still there.
    pub(super) fn left_pool(&self) -> Option<u32> {
        let mut pools = self.pools.iter().copied();
        pools.find(|&pool| self.allocator.pool_uses(pool_id(pool)).is_some())
    }
}
