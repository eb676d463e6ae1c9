//! Abroad: what there is beside the device of a run, for habits that reach beyond it.

use std::sync::Arc;

use larder_core::{Allocator, Config, Policy};

use super::plan::Plan;
use larder_sim::{SimDevice, SimOptions, Wire};

/// What there is beside the device.
pub(super) struct Abroad {
    /// Another process, for those who share.
    pub(super) process: Option<Allocator>,
    pub(super) syncs: u64,
    pub(super) blocks: u64,
    pub(super) has_peer: bool,
}

impl Abroad {
    /// The device of a plan, and what there is beside it.
    pub(super) fn new(plan: &Plan) -> (Arc<SimDevice>, Abroad) {
        let wire = Wire::default();
        let faults = plan.trouble.fault_plan(plan.seed);
        let options = SimOptions::default().memory_bytes(plan.memory_bytes).faults(faults);
        let device = Arc::new(SimDevice::new(options.wire(wire.clone())));
        let process = plan.habits.shares.then(|| {
            let other = Arc::new(SimDevice::new(SimOptions::default().wire(wire)));
            Allocator::new(other, Config::default(), Policy::larder())
        });
        (device, Abroad { process, syncs: 0, blocks: 0, has_peer: false })
    }
}
