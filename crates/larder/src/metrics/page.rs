//! The page: what allocators count, as text in the `OpenMetrics` format.

use larder_core::Allocator;
use larder_core::heap::lane_state::{LaneState, lane_states};
use larder_core::record::stats::{ByPool, Counter as Count, Stats};
use larder_core::types::PoolKind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Device {
    device: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Side {
    device: u32,
    pool: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Lane {
    device: u32,
    stream: u64,
    pool: &'static str,
    private_pool: String,
}

/// One device at one moment.
struct Figures {
    device: u32,
    stats: Stats,
    lanes: Vec<LaneState>,
    /// What the device has, and has free, where it says so.
    memory: Option<[u64; 2]>,
}

/// The figures of these allocators at this moment, each a device, as a page in the `OpenMetrics`
/// format.
pub fn page<'a>(allocators: impl IntoIterator<Item = &'a Allocator>) -> String {
    page_with_hosts(allocators, [])
}

/// The same, and what allocators of the host's pinned memory hold together, if there is any.
pub fn page_with_hosts<'a>(
    allocators: impl IntoIterator<Item = &'a Allocator>,
    hosts: impl IntoIterator<Item = &'a Allocator>,
) -> String {
    let figures = allocators.into_iter().map(|allocator| {
        let memory = allocator.memory_info().ok();
        Figures {
            device: allocator.device_index().0,
            stats: allocator.stats(),
            lanes: lane_states(&allocator.snapshot()),
            memory: memory.map(|memory| [memory.total_bytes, memory.free_bytes]),
        }
    });
    let figures: Vec<Figures> = figures.collect();
    let mut registry = Registry::with_prefix("larder");
    by_side(&mut registry, &figures);
    counts(&mut registry, &figures);
    by_lane(&mut registry, &figures);
    of_devices(&mut registry, &figures);
    let hosts: Vec<Stats> = hosts.into_iter().map(Allocator::stats).collect();
    if !hosts.is_empty() {
        of_hosts(&mut registry, &hosts);
    }
    let mut text = String::new();
    // Writing into a text does not fail.
    let _ = encode(&mut text, &registry);
    text
}

type Which = fn(&Stats) -> &ByPool;

/// What is there now, and what was at the peak, by small and large.
fn by_side(registry: &mut Registry, figures: &[Figures]) {
    let bytes: [(&str, &str, Which); 5] = [
        ("allocated", "Bytes in live allocations", |stats| &stats.allocated_bytes),
        ("active", "Bytes that are live or still awaited by a stream", |stats| &stats.active_bytes),
        ("requested", "Bytes that programs asked for, in active blocks", |stats| {
            &stats.requested_bytes
        }),
        ("reserved", "Bytes held of the device", |stats| &stats.reserved_bytes),
        ("inactive_split", "Bytes that are free beside live ones", |stats| {
            &stats.inactive_split_bytes
        }),
    ];
    for (name, help, which) in bytes {
        let (now, peak) =
            (gauges(figures, which, |c| c.current), gauges(figures, which, |c| c.peak));
        registry.register_with_unit(name, help, Unit::Bytes, now);
        registry.register_with_unit(
            format!("{name}_peak"),
            format!("{help}, at the peak"),
            Unit::Bytes,
            peak,
        );
    }
    let numbers: [(&str, &str, Which); 3] = [
        ("live_allocations", "Live allocations", |stats| &stats.allocation),
        ("active_blocks", "Blocks that are live or still awaited by a stream", |stats| {
            &stats.active
        }),
        ("segments", "Segments held of the device", |stats| &stats.segment),
    ];
    for (name, help, which) in numbers {
        registry.register(name, help, gauges(figures, which, |count| count.current));
    }
}

fn gauges(figures: &[Figures], which: Which, value: fn(&Count) -> i64) -> Family<Side, Gauge> {
    let family = Family::<Side, Gauge>::default();
    for Figures { device, stats, .. } in figures {
        let sides = [("small", &which(stats).small_pool), ("large", &which(stats).large_pool)];
        for (pool, count) in sides {
            family.get_or_create(&Side { device: *device, pool }).set(value(count));
        }
    }
    family
}

/// A figure: its name, what it is, and where it is read off.
type Named<T> = (&'static str, &'static str, fn(&T) -> u64);

/// What has happened since the program began, or since its statistics were reset.
fn counts(registry: &mut Registry, figures: &[Figures]) {
    let counts: [Named<Stats>; 6] = [
        ("allocations", "Allocations", |stats| stats.allocation.all.allocated.max(0) as u64),
        ("frees", "Allocations given back", |stats| stats.allocation.all.freed.max(0) as u64),
        ("segments_taken", "Segments that came from the device", |stats| {
            stats.segment.all.allocated.max(0) as u64
        }),
        ("segments_given_back", "Segments that went back to the device", |stats| {
            stats.segment.all.freed.max(0) as u64
        }),
        ("retries", "Times the cache was given back to try again", |stats| stats.num_alloc_retries),
        ("ooms", "Requests that could not be met", |stats| stats.num_ooms),
    ];
    for (name, help, value) in counts {
        let family = Family::<Device, Counter>::default();
        for Figures { device, stats, .. } in figures {
            family.get_or_create(&Device { device: *device }).inc_by(value(stats));
        }
        registry.register(name, help, family);
    }
}

/// What each stream has in each pool.
fn by_lane(registry: &mut Registry, figures: &[Figures]) {
    let parts: [Named<LaneState>; 5] = [
        ("lane_reserved", "Bytes held of the device, by stream and pool", |lane| {
            lane.reserved_bytes
        }),
        ("lane_live", "Bytes in live allocations, by stream and pool", |lane| lane.live_bytes),
        ("lane_waiting", "Bytes still awaited by a stream, by stream and pool", |lane| {
            lane.waiting_bytes
        }),
        ("lane_free", "Bytes that are free, by stream and pool", |lane| lane.free_bytes),
        ("lane_largest_free", "The largest free piece, by stream and pool", |lane| {
            lane.largest_bytes
        }),
    ];
    for (name, help, value) in parts {
        let family = Family::<Lane, Gauge>::default();
        for Figures { device, lanes, .. } in figures {
            for lane in lanes {
                let labels = Lane {
                    device: *device,
                    stream: lane.stream.0,
                    pool: if lane.kind == PoolKind::Small { "small" } else { "large" },
                    private_pool: lane
                        .pool
                        .map_or(String::new(), |pool| format!("{}.{}", pool.0, pool.1)),
                };
                family.get_or_create(&labels).set(value(lane) as i64);
            }
        }
        registry.register_with_unit(name, help, Unit::Bytes, family);
    }
}

/// Pinned memory, which is no device's.
fn of_hosts(registry: &mut Registry, hosts: &[Stats]) {
    let bytes: [(&str, &str, Which); 2] = [
        ("pinned_reserved", "Bytes of pinned memory held of the host", |stats| {
            &stats.reserved_bytes
        }),
        ("pinned_active", "Bytes of pinned memory that are live or awaited by copies", |stats| {
            &stats.active_bytes
        }),
    ];
    for (name, help, which) in bytes {
        let gauge = Gauge::<i64>::default();
        gauge.set(hosts.iter().map(|stats| which(stats).all.current).sum());
        registry.register_with_unit(name, help, Unit::Bytes, gauge);
    }
}

fn of_devices(registry: &mut Registry, figures: &[Figures]) {
    let names = [
        ("device_total", "All memory of the device"),
        ("device_free", "Memory of the device that nobody holds"),
    ];
    for (at, (name, help)) in names.into_iter().enumerate() {
        let family = Family::<Device, Gauge>::default();
        for Figures { device, memory, .. } in figures {
            if let Some(memory) = memory {
                family.get_or_create(&Device { device: *device }).set(memory[at] as i64);
            }
        }
        registry.register_with_unit(name, help, Unit::Bytes, family);
    }
}
