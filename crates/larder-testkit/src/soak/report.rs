//! Reports: what a run that found nothing wrong has exercised.

use std::ops::AddAssign;

/// Counts over one run, or over many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations carried out.
    pub steps: u64,
    /// Allocations asked for.
    pub mallocs: u64,
    /// Allocations served without taking memory from the device.
    pub hits: u64,
    /// Allocations that ran out of memory.
    pub out_of_memory: u64,
    /// Calls that failed because the device did.
    pub device_errors: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Frees after which the block waited for another stream.
    pub waits: u64,
    /// Times that everything cached was given back to ask the device once more.
    pub retries: u64,
    /// Allocations that gave memory back to the device without such a retry: by garbage
    /// collection, or to make room under a split limit.
    pub partial_releases: u64,
    /// Settings changed while running.
    pub changes: u64,
    /// Steps on which the model agreed to the last statistic.
    pub model_steps: u64,
    /// Pages mapped into expandable segments.
    pub maps: u64,
    /// Pages taken out of them.
    pub unmaps: u64,
    /// Device calls that failed, for whatever reason.
    pub failed_calls: u64,
    /// Scopes of private pools opened.
    pub scopes: u64,
    /// Graph captures begun.
    pub captures: u64,
    /// Blocks that came free inside a capture because its graph had done with them.
    pub reclaimed_in_captures: u64,
    /// Frees that a capture put off.
    pub deferrals: u64,
    /// Layouts of pools put back.
    pub restores: u64,
    /// Layouts that could not be saved or put back.
    pub refused_checkpoints: u64,
    /// Streams that were destroyed.
    pub forgotten_streams: u64,
    /// Blocks shared with another process.
    pub shared: u64,
    /// Requests that got a block that rested, where a model saw it.
    pub rested: u64,
    /// Steps after which blocks lay in views.
    pub view_steps: u64,
    /// Pools made with a source of their own.
    pub sources: u64,
    /// Segments that sources gave.
    pub source_segments: u64,
    /// Times that a stream was made to wait for another.
    pub follows: u64,
    /// Requests that named an address, and were put there.
    pub placed: u64,
    /// Requests that named an address that was not free.
    pub refused_addresses: u64,
    /// Requests that had to get plain memory.
    pub plain: u64,
    /// Scripts that broke a capture, and were left there.
    pub cut_short: u64,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.steps += other.steps;
        self.mallocs += other.mallocs;
        self.hits += other.hits;
        self.out_of_memory += other.out_of_memory;
        self.device_errors += other.device_errors;
        self.frees += other.frees;
        self.waits += other.waits;
        self.retries += other.retries;
        self.partial_releases += other.partial_releases;
        self.changes += other.changes;
        self.model_steps += other.model_steps;
        self.maps += other.maps;
        self.unmaps += other.unmaps;
        self.failed_calls += other.failed_calls;
        self.scopes += other.scopes;
        self.captures += other.captures;
        self.reclaimed_in_captures += other.reclaimed_in_captures;
        self.deferrals += other.deferrals;
        self.restores += other.restores;
        self.refused_checkpoints += other.refused_checkpoints;
        self.forgotten_streams += other.forgotten_streams;
        self.shared += other.shared;
        self.rested += other.rested;
        self.view_steps += other.view_steps;
        self.sources += other.sources;
        self.source_segments += other.source_segments;
        self.follows += other.follows;
        self.placed += other.placed;
        self.refused_addresses += other.refused_addresses;
        self.plain += other.plain;
        self.cut_short += other.cut_short;
    }
}
