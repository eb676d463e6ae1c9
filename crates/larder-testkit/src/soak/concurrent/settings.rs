//! What a thread does with settings, with the history, and with all that can be looked at.

use std::sync::Arc;

use larder_core::Error;
use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::config::Config;
use larder_core::record::event::Level;
use larder_core::record::history::Stage;
use larder_core::types::MIB;

use super::super::plan::settings;
use super::ground::count;
use super::worker::Worker;
use larder_sim::random::Random;

/// Settings that the ones in force rule out are refused; that is no failure.
fn taken(result: Result<(), Error>) -> Result<(), String> {
    match result {
        Ok(()) | Err(Error::Config(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Changes one setting or two.
fn change(config: &mut Config, random: &mut Random) {
    for _ in 0..random.between(1, 2) {
        match random.below(7) {
            0 | 1 => config.expandable_segments ^= true,
            2 | 3 => config.release_lock_on_device_alloc ^= true,
            4 => config.max_split_bytes = random.chance(0.5).then_some(config.large_segment_bytes),
            5 => config.capture_reuse ^= true,
            _ => config.garbage_collection_threshold = *random.pick(&[0.0, 0.3, 0.8]),
        }
    }
}

impl Worker {
    pub(super) fn change_settings(&mut self) -> Result<(), String> {
        count(&self.ground.counts.changes);
        let allocator = &self.ground.allocator;
        match self.random.below(4) {
            0 => {
                let expandable = self.random.chance(0.5);
                let text = settings(&mut self.random, expandable);
                taken(allocator.configure(&text))
            }
            1 => match allocator.configure("no_such_setting:1") {
                Err(Error::Config(_)) => Ok(()),
                other => Err(format!("a setting that there is not gave {other:?}")),
            },
            _ => {
                let mut random = Random::new(self.random.next_u64());
                taken(allocator.reconfigure(|config| change(config, &mut random)))
            }
        }
    }

    pub(super) fn change_history(&mut self) -> Result<(), String> {
        let ground = self.ground.clone();
        match self.random.below(8) {
            0..=2 => {
                let level =
                    *self.random.pick(&[Level::Never, Level::State, Level::Alloc, Level::All]);
                let mut options = HistoryOptions::default()
                    .level(level)
                    .max_entries(self.random.between(1, 64) as usize)
                    .clear(self.random.chance(0.3));
                if level > Level::Never {
                    options = options.context_hook(Arc::new(ground.gather()));
                }
                ground.allocator.record_history(options).map_err(|error| error.to_string())?;
            }
            3 => ground.allocator.stop_history(),
            4 => {
                let stage = if self.random.chance(0.5) { Stage::Start } else { Stage::End };
                ground.allocator.annotate("a part", stage);
            }
            5 => {
                ground.allocator.is_recording();
                ground.allocator.context_count();
                if let Some(held) = self.held.last() {
                    ground.allocator.context_of(held.span.addr);
                }
            }
            _ => {
                let at = self.random.next_u64();
                let pool = if self.random.chance(0.5) { ground.some_name(at) } else { None };
                let traces = self.random.chance(0.7);
                ground
                    .allocator
                    .take_snapshot(SnapshotOptions::default().pool(pool).traces(traces));
            }
        }
        Ok(())
    }

    /// Looks at what there is. What it sees belongs to some moment; only what holds at any is
    /// checked.
    pub(super) fn look(&mut self) -> Result<(), String> {
        let ground = self.ground.clone();
        let allocator = &ground.allocator;
        match self.random.below(8) {
            0 => {
                let stats = allocator.stats();
                let (live, active) = (stats.allocation.all.current, stats.active.all.current);
                let (allocated, reserved) =
                    (stats.allocated_bytes.all.current, stats.reserved_bytes.all.current);
                if live > active || allocated > reserved || live < self.held.len() as i64 {
                    return Err(format!("the statistics make no sense: {stats:?}"));
                }
            }
            1 => allocator.reset_peak_stats(),
            2 if ground.plan.resets_sums => allocator.reset_accumulated_stats(),
            3 => {
                let snapshot = allocator.snapshot();
                for held in &self.held {
                    if !snapshot.iter().any(|segment| segment.span.contains(held.span.addr)) {
                        return Err(format!("{held:?} is in no segment of a snapshot"));
                    }
                }
            }
            4 => {
                allocator.reserved_by_pool();
                allocator.expandable_segments();
            }
            5 => {
                let settings = allocator.config();
                settings.check().map_err(|error| error.to_string())?;
            }
            6 => {
                let at = self.random.next_u64();
                let pool = ground.some_name(at);
                pool.map(|pool| (allocator.pool_stats(pool), allocator.pool_snapshot(pool)));
            }
            _ => {
                if allocator.largest_free_bytes() > ground.plan.memory_bytes + 64 * MIB {
                    return Err("a free block is larger than all memory".to_owned());
                }
            }
        }
        Ok(())
    }
}
