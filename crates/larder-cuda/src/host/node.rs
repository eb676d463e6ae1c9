//! The host: how much memory it has, and which part of it lies nearest to a GPU.

use std::fs;
use std::path::Path;

use larder_core::device::MemoryInfo;

/// The part of the host that a GPU is plugged into, by its processors; none where the host has one
/// part alone, or does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) processors: Vec<usize>,
}

impl Node {
    /// That of the GPU at this address on the bus.
    pub(super) fn of_gpu(bus_id: &str) -> Node {
        let path = format!("/sys/bus/pci/devices/{}/numa_node", bus_id.to_lowercase());
        let number = fs::read_to_string(path).ok();
        let number: Option<u32> = number.and_then(|text| text.trim().parse().ok());
        let Some(number) = number.filter(|_| Path::new("/sys/devices/system/node/node1").exists())
        else {
            return Node::default();
        };
        let list = fs::read_to_string(format!("/sys/devices/system/node/node{number}/cpulist"));
        Node { processors: list.map_or_else(|_| Vec::new(), |list| numbers_of(&list)) }
    }

    /// Lets the calling thread run there alone, so that what it touches first lies there. A system
    /// that forbids it puts the memory somewhere.
    #[cfg(target_os = "linux")]
    pub(super) fn bind_thread(&self) {
        use rustix::thread::{CpuSet, sched_setaffinity};

        let mut processors = CpuSet::new();
        for &processor in self.processors.iter().filter(|&&number| number < CpuSet::MAX_CPU) {
            processors.set(processor);
        }
        if processors.count() > 0 {
            let _ = sched_setaffinity(None, &processors);
        }
    }
}

/// Reads a list such as `0-3,8,10-11`.
fn numbers_of(list: &str) -> Vec<usize> {
    let range = |word: &str| -> Option<Vec<usize>> {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.parse().ok()?..=last.parse().ok()?).collect())
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// How much memory the process may have, and how much of it nobody has: the host's, or less where
/// the process is confined to a part of it.
pub(super) fn host_memory() -> MemoryInfo {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let whole =
        memory_of(&text).unwrap_or(MemoryInfo { free_bytes: 1 << 40, total_bytes: 1 << 40 });
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let Some(most_bytes) = number("memory.max") else { return whole };
    let used_bytes = number("memory.current").unwrap_or(0);
    MemoryInfo {
        free_bytes: whole.free_bytes.min(most_bytes.saturating_sub(used_bytes)),
        total_bytes: whole.total_bytes.min(most_bytes),
    }
}

/// Reads what `/proc/meminfo` says.
fn memory_of(text: &str) -> Option<MemoryInfo> {
    let bytes = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kibibytes << 10)
    };
    Some(MemoryInfo { free_bytes: bytes("MemAvailable:")?, total_bytes: bytes("MemTotal:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers_of("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(numbers_of(""), [0_usize; 0]);
    }

    #[test]
    fn the_hosts_memory_is_read() {
        let text = "MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:    600 kB\n";
        let info = MemoryInfo { free_bytes: 600 << 10, total_bytes: 1000 << 10 };
        assert_eq!(memory_of(text), Some(info));
        assert_eq!(memory_of("nothing"), None);
    }
}
