//! Threads: many of them on one allocator, on many devices, and freeing what others allocated.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use crate::bench_top::{BenchTop, MAIN};
use larder_core::error::Error;
use larder_core::types::{GIB, MIB};
use larder_core::{Addr, Allocator, Config, DeviceIndex, Fleet, Policy, StreamId};
use larder_sim::random::Random;
use larder_sim::{CallKind, Fault, FaultPlan, SimDevice, SimOptions};

const STEPS: usize = 4000;

/// Whose every live block is: the first and the last address of each, and its owner.
#[derive(Default)]
struct Claims(Mutex<BTreeMap<u64, (u64, u32)>>);

impl Claims {
    /// The owner has the block now; nobody else may have a byte of it.
    fn take(&self, addr: Addr, size_bytes: u64, owner: u32) {
        let last = addr.0 + size_bytes - 1;
        let mut claims = self.0.lock().unwrap();
        if let Some((start, (end, other))) = claims.range(..=last).next_back() {
            assert!(*end < addr.0, "{owner}'s block at {addr} overlaps {other}'s at {start:#x}");
        }
        claims.insert(addr.0, (last, owner));
    }

    /// The owner gives the block back; it must still be the owner's.
    fn give(&self, addr: Addr, owner: u32) {
        let claim = self.0.lock().unwrap().remove(&addr.0);
        assert_eq!(claim.map(|(_, owner)| owner), Some(owner));
    }
}

fn random_size(random: &mut Random) -> u64 {
    if random.chance(0.7) { random.between(1, 8192) } else { random.between(1, 4 * MIB) }
}

/// Takes and gives back blocks at random, and claims what it has.
fn hammer(allocator: &Allocator, claims: &Claims, owner: u32, stream: StreamId) {
    let mut random = Random::new(u64::from(owner));
    let mut live = Vec::new();
    for _ in 0..STEPS {
        if live.len() < 20 && random.chance(0.55) {
            let addr = allocator.malloc(random_size(&mut random), stream).unwrap();
            claims.take(addr, allocator.usable_bytes(addr).unwrap(), owner);
            live.push(addr);
        } else if !live.is_empty() {
            let addr = live.swap_remove(random.below(live.len() as u64) as usize);
            claims.give(addr, owner);
            allocator.free(addr).unwrap();
        } else if random.chance(0.1) {
            allocator.empty_cache().unwrap();
        }
    }
    for addr in live {
        claims.give(addr, owner);
        allocator.free(addr).unwrap();
    }
}

#[test]
fn blocks_of_different_threads_never_overlap() {
    for settings in ["", "release_lock_on_cudamalloc:True", "expandable_segments:True"] {
        BenchTop::under_each_policy(4 * GIB, settings, |top| {
            let claims = Claims::default();
            thread::scope(|scope| {
                for owner in 1..=8 {
                    let (allocator, claims) = (&top.allocator, &claims);
                    // Two threads share each stream.
                    let stream = StreamId(u64::from(owner / 2));
                    scope.spawn(move || hammer(allocator, claims, owner, stream));
                }
            });
            top.settle();
            assert_eq!(top.stats().allocation.all.current, 0);
            top.empty();
            assert_eq!(top.device.used_bytes(), 0);
        });
    }
}

#[test]
fn a_block_may_be_freed_by_another_thread_than_the_one_that_asked_for_it() {
    BenchTop::under_each_policy(4 * GIB, "", |top| {
        let (sender, receiver) = mpsc::sync_channel::<Addr>(64);
        thread::scope(|scope| {
            for stream in 0..4 {
                let (sender, allocator) = (sender.clone(), &top.allocator);
                scope.spawn(move || {
                    let mut random = Random::new(stream);
                    for _ in 0..STEPS {
                        let size_bytes = random_size(&mut random);
                        sender
                            .send(allocator.malloc(size_bytes, StreamId(stream)).unwrap())
                            .unwrap();
                    }
                });
            }
            drop(sender);
            scope.spawn(move || receiver.iter().for_each(|addr| top.allocator.free(addr).unwrap()));
        });
        top.settle();
        let stats = top.stats();
        assert_eq!((stats.allocation.all.allocated, stats.allocation.all.current), (16_000, 0));
    });
}

#[test]
fn of_many_threads_that_free_one_block_exactly_one_succeeds() {
    BenchTop::under_each_policy(4 * GIB, "", |top| {
        for _ in 0..200 {
            let addr = top.malloc(4096);
            let freed = AtomicU64::new(0);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| match top.allocator.free(addr) {
                        Ok(()) => _ = freed.fetch_add(1, Ordering::Relaxed),
                        Err(error) => assert_eq!(error, Error::UnknownAddress(addr)),
                    });
                }
            });
            assert_eq!(freed.into_inner(), 1);
        }
        top.settle();
    });
}

#[test]
fn streams_are_recorded_and_finished_while_others_allocate() {
    BenchTop::under_each_policy(4 * GIB, "", |top| {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..4_u64)
                .map(|stream| {
                    scope.spawn(move || {
                        let mut random = Random::new(stream);
                        for _ in 0..STEPS {
                            let size_bytes = random_size(&mut random);
                            let addr = top.allocator.malloc(size_bytes, StreamId(stream)).unwrap();
                            let other = StreamId(random.below(4));
                            top.allocator.record_stream(addr, other).unwrap();
                            top.allocator.free(addr).unwrap();
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    (0..4).for_each(|stream| top.device.sync(StreamId(stream)));
                }
            });
            for worker in workers {
                worker.join().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        top.settle();
        top.empty();
        assert_eq!((top.device.used_bytes(), top.stats().active.all.current), (0, 0));
    });
}

#[test]
fn observers_and_callbacks_run_while_threads_hammer() {
    BenchTop::under_each_policy(40 * MIB, "", |top| {
        let (told, missed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (count, allocator) = (told.clone(), Arc::downgrade(&top.allocator));
        top.allocator.on_out_of_memory(move |report| {
            let allocator = allocator.upgrade().unwrap();
            assert!(allocator.stats().num_ooms >= 1);
            assert_eq!(report.total_bytes, 40 * MIB);
            count.fetch_add(1, Ordering::Relaxed);
        });
        let (count, allocator) = (missed.clone(), Arc::downgrade(&top.allocator));
        top.allocator.on_miss(move || {
            allocator.upgrade().unwrap().snapshot();
            count.fetch_add(1, Ordering::Relaxed) % 2 == 0
        });
        let failed = AtomicU64::new(0);
        thread::scope(|scope| {
            for seed in 0..4 {
                let failed = &failed;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..500 {
                        match top.allocator.malloc(random.between(1, 15) * MIB, MAIN) {
                            Ok(addr) => {
                                thread::yield_now();
                                top.allocator.free(addr).unwrap();
                            }
                            Err(Error::OutOfMemory(_)) => {
                                _ = failed.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        top.settle();
        // However the threads took turns, one more request cannot be met.
        top.oom(41 * MIB);
        assert_eq!(told.load(Ordering::Relaxed), failed.into_inner() + 1);
        assert_eq!(top.stats().num_ooms, told.load(Ordering::Relaxed));
        assert!(missed.load(Ordering::Relaxed) >= 1);
    });
}

#[test]
fn settings_and_caps_change_while_threads_allocate() {
    BenchTop::under_each_policy(4 * GIB, "", |top| {
        thread::scope(|scope| {
            for owner in 1..=3 {
                scope.spawn(move || {
                    let mut random = Random::new(owner);
                    for _ in 0..STEPS {
                        let size_bytes = random_size(&mut random);
                        let addr = top.allocator.malloc(size_bytes, StreamId(owner % 2)).unwrap();
                        top.allocator.free(addr).unwrap();
                    }
                });
            }
            scope.spawn(|| {
                for round in 0..300 {
                    let settings = ["expandable_segments:True", "expandable_segments:False"];
                    top.allocator.configure(settings[round % 2]).unwrap();
                    top.allocator.set_memory_fraction([0.9, 1.0][round % 2]).unwrap();
                    top.allocator.empty_cache().unwrap();
                    top.allocator.reset_peak_stats();
                    assert_eq!(top.allocator.check(), Ok(()));
                }
            });
        });
        top.settle();
        top.empty();
        assert_eq!(top.device.used_bytes(), 0);
    });
}

/// One allocator for each of so many devices.
fn fleet(count: u32) -> (Vec<Arc<SimDevice>>, Fleet) {
    let device =
        |index| Arc::new(SimDevice::new(SimOptions::default().index(index).memory_bytes(4 * GIB)));
    let devices: Vec<_> = (0..count).map(device).collect();
    let allocators = devices
        .iter()
        .map(|device| Allocator::new(device.clone(), Config::default(), Policy::default()))
        .collect();
    (devices, Fleet::new(allocators))
}

#[test]
fn a_fleet_serves_each_device_and_frees_without_being_told_whose_it_is() {
    let (devices, fleet) = fleet(4);
    let addrs = [3, 0, 2].map(|index| fleet.malloc(DeviceIndex(index), 12 * MIB, MAIN).unwrap());
    let used: Vec<_> = devices.iter().map(|device| device.used_bytes() / MIB).collect();
    assert_eq!(used, [12, 0, 12, 12]);
    assert_eq!(addrs.iter().collect::<HashSet<_>>().len(), 3);
    fleet.free(addrs[2]).unwrap();
    let stats = fleet.device(DeviceIndex(2)).unwrap().stats();
    assert_eq!(stats.allocation.all.freed, 1);
    assert_eq!(fleet.free(addrs[2]), Err(Error::UnknownAddress(addrs[2])));
    assert_eq!(fleet.free(Addr(0)), Ok(()));
    assert_eq!(fleet.malloc(DeviceIndex(4), 512, MAIN), Err(Error::NoDevice(DeviceIndex(4))));
    fleet.empty_cache().unwrap();
    let used: Vec<_> = devices.iter().map(|device| device.used_bytes() / MIB).collect();
    assert_eq!(used, [12, 0, 0, 12]);
}

#[test]
fn every_device_of_a_fleet_is_emptied_although_one_fails() {
    let (devices, fleet) = fleet(3);
    for index in 0..3 {
        let addr = fleet.malloc(DeviceIndex(index), 12 * MIB, MAIN).unwrap();
        fleet.free(addr).unwrap();
    }
    devices[1].set_faults(FaultPlan::new(0).fail_nth(CallKind::Free, 1, Fault::Other));
    assert!(fleet.empty_cache().is_err());
    let used: Vec<_> = devices.iter().map(|device| device.used_bytes() / MIB).collect();
    assert_eq!(used, [0, 12, 0]);
    fleet.empty_cache().unwrap();
    assert_eq!(devices[1].used_bytes(), 0);
}

#[test]
fn an_empty_fleet_knows_no_address() {
    let (_, fleet) = fleet(0);
    assert_eq!(fleet.free(Addr(512)), Err(Error::UnknownAddress(Addr(512))));
    assert_eq!(fleet.allocators().len(), 0);
    fleet.empty_cache().unwrap();
}

#[test]
fn threads_share_a_fleet_and_free_each_others_blocks() {
    let (devices, fleet) = fleet(4);
    let (sender, receiver) = mpsc::sync_channel::<Addr>(64);
    thread::scope(|scope| {
        for seed in 0..4 {
            let (sender, fleet) = (sender.clone(), &fleet);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..STEPS {
                    let index = DeviceIndex(random.below(4) as u32);
                    let size_bytes = random_size(&mut random);
                    let addr = fleet.malloc(index, size_bytes, StreamId(seed % 2)).unwrap();
                    if random.chance(0.5) {
                        fleet.free(addr).unwrap();
                    } else {
                        sender.send(addr).unwrap();
                    }
                }
            });
        }
        drop(sender);
        let fleet = &fleet;
        scope.spawn(move || receiver.iter().for_each(|addr| fleet.free(addr).unwrap()));
    });
    let stats: Vec<_> = fleet.allocators().iter().map(Allocator::stats).collect();
    assert_eq!(stats.iter().map(|stats| stats.allocation.all.allocated).sum::<i64>(), 16_000);
    assert!(stats.iter().all(|stats| stats.active.all.current == 0));
    fleet.empty_cache().unwrap();
    assert!(devices.iter().all(|device| device.used_bytes() == 0));
    assert!(fleet.allocators().iter().all(|allocator| allocator.check().is_ok()));
}
