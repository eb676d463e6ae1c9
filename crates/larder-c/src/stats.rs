//! Statistics.

use larder_core::record::stats::{ByPool, Counter as CoreCounter, Stats as CoreStats};

use crate::border::{Held, Out, PoolName, Room, Status, guard};
use crate::larder::Larder;

/// `larder_counter`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Counter {
    pub(crate) current: i64,
    pub(crate) peak: i64,
    pub(crate) allocated: i64,
    pub(crate) freed: i64,
}

impl From<CoreCounter> for Counter {
    fn from(counter: CoreCounter) -> Counter {
        let CoreCounter { current, peak, allocated, freed } = counter;
        Counter { current, peak, allocated, freed }
    }
}

/// `larder_counters`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) all: Counter,
    pub(crate) small_pool: Counter,
    pub(crate) large_pool: Counter,
}

impl From<ByPool> for Counters {
    fn from(counters: ByPool) -> Counters {
        let ByPool { all, small_pool, large_pool } = counters;
        Counters { all: all.into(), small_pool: small_pool.into(), large_pool: large_pool.into() }
    }
}

/// `larder_stats`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Stats {
    pub(crate) allocation: Counters,
    pub(crate) segment: Counters,
    pub(crate) active: Counters,
    pub(crate) inactive_split: Counters,
    pub(crate) allocated_bytes: Counters,
    pub(crate) reserved_bytes: Counters,
    pub(crate) active_bytes: Counters,
    pub(crate) inactive_split_bytes: Counters,
    pub(crate) requested_bytes: Counters,
    pub(crate) oversize_allocations: Counter,
    pub(crate) oversize_segments: Counter,
    pub(crate) num_alloc_retries: i64,
    pub(crate) num_ooms: i64,
    pub(crate) num_oom_rejections: i64,
    pub(crate) num_sync_all_streams: i64,
    pub(crate) num_device_alloc: i64,
    pub(crate) num_device_free: i64,
    pub(crate) max_split_size: i64,
}

impl Stats {
    fn new(stats: &CoreStats, max_split_bytes: Option<u64>) -> Stats {
        Stats {
            allocation: stats.allocation.into(),
            segment: stats.segment.into(),
            active: stats.active.into(),
            inactive_split: stats.inactive_split.into(),
            allocated_bytes: stats.allocated_bytes.into(),
            reserved_bytes: stats.reserved_bytes.into(),
            active_bytes: stats.active_bytes.into(),
            inactive_split_bytes: stats.inactive_split_bytes.into(),
            requested_bytes: stats.requested_bytes.into(),
            oversize_allocations: stats.oversize_allocations.into(),
            oversize_segments: stats.oversize_segments.into(),
            num_alloc_retries: stats.num_alloc_retries as i64,
            num_ooms: stats.num_ooms as i64,
            num_oom_rejections: stats.num_oom_rejections as i64,
            num_sync_all_streams: stats.num_sync_all_streams as i64,
            num_device_alloc: stats.num_device_alloc as i64,
            num_device_free: stats.num_device_free as i64,
            max_split_size: max_split_bytes.map_or(-1, |bytes| bytes as i64),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_get_stats(larder: Held<Larder>, device: i32, out: Out<Stats>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let allocator = larder.get("larder")?.device(device)?;
        out.put(Stats::new(&allocator.stats(), allocator.config().max_split_bytes));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_reset_peak_stats(larder: Held<Larder>, device: i32) -> Status {
    guard(|| {
        larder.get("larder")?.device(device)?.reset_peak_stats();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_reset_accumulated_stats(larder: Held<Larder>, device: i32) -> Status {
    guard(|| {
        larder.get("larder")?.device(device)?.reset_accumulated_stats();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_reserved(
    larder: Held<Larder>,
    device: i32,
    pools: Room<PoolName>,
    reserved: Room<Counters>,
    room: usize,
    count: Out<usize>,
) -> Status {
    guard(|| {
        let count = count.wanted("count")?;
        pools.check(room, "pools")?;
        reserved.check(room, "reserved")?;
        let held = larder.get("larder")?.device(device)?.reserved_by_pool();
        let names: Vec<PoolName> = held.iter().map(|&(id, _)| id.into()).collect();
        let counters: Vec<Counters> = held.iter().map(|&(_, counters)| counters.into()).collect();
        pools.fill(&names, room);
        reserved.fill(&counters, room);
        count.put(held.len());
        Ok(())
    })
}
