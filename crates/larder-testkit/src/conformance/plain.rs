//! Checks of identity, plain memory and time.

use std::thread;

use larder_core::types::{Addr, KIB, MIB, Span};

use super::{Check, Outcome, Subject, ensure, must, must_refuse, must_run_out};

pub(super) const CHECKS: &[Check] = &[
    ("properties make sense", properties),
    ("memory adds up", memory_adds_up),
    ("allocations are aligned and apart", allocations_are_apart),
    ("memory comes back", memory_comes_back),
    ("a wrong free is an error and harms nothing", wrong_free),
    ("out of memory changes nothing", out_of_memory),
    ("a full device has room again after frees", filling_up),
    ("any thread may call", threads),
    ("time does not run backwards", time),
];

fn properties(subject: &Subject<'_>) -> Outcome {
    let properties = subject.device.properties();
    let granularity_bytes = properties.granularity_bytes;
    let total_bytes = properties.total_bytes;
    ensure(granularity_bytes.is_power_of_two() && granularity_bytes >= 512, || {
        format!("the granularity of {granularity_bytes} bytes is no power of two from 512 up")
    })?;
    ensure(total_bytes >= granularity_bytes, || format!("{total_bytes} bytes hold no page"))?;
    let info = must("memory_info", subject.device.memory_info())?;
    ensure(info.total_bytes == total_bytes, || {
        format!("memory_info speaks of {} bytes in all, not {total_bytes}", info.total_bytes)
    })
}

fn memory_adds_up(subject: &Subject<'_>) -> Outcome {
    let info = must("memory_info", subject.device.memory_info())?;
    ensure(info.free_bytes <= info.total_bytes, || {
        format!("{} bytes are free of {}", info.free_bytes, info.total_bytes)
    })?;
    let processes = subject.device.processes();
    let own = processes.iter().filter(|process| process.own).count();
    ensure(processes.is_empty() || own == 1, || format!("{own} processes are this one"))?;
    let used_bytes: u64 = processes.iter().map(|process| process.used_bytes).sum();
    ensure(used_bytes <= info.total_bytes - info.free_bytes, || {
        format!("the processes hold {used_bytes} bytes, more than are used")
    })
}

fn allocations_are_apart(subject: &Subject<'_>) -> Outcome {
    let mut spans: Vec<Span> = Vec::new();
    for size_bytes in [1, 512, 513, 64 * KIB, MIB, 2 * MIB, 2 * MIB, 3 * MIB, 20 * MIB] {
        let addr = must("alloc", subject.device.alloc(size_bytes))?;
        ensure(addr.0 > 0 && addr.0.is_multiple_of(512), || {
            format!("{addr} is no multiple of 512 above zero")
        })?;
        let span = Span::new(addr, size_bytes);
        ensure(!spans.iter().any(|other| other.overlaps(span)), || {
            format!("{size_bytes} bytes at {addr} overlap what is held")
        })?;
        spans.push(span);
    }
    // Out of order, so that a device that only knows stacks is found out.
    for span in spans.iter().step_by(2).chain(spans.iter().skip(1).step_by(2)) {
        must("free", subject.device.free(span.addr))?;
    }
    Ok(())
}

fn memory_comes_back(subject: &Subject<'_>) -> Outcome {
    let before_bytes = subject.free_bytes()?;
    let size_bytes = 64 * MIB;
    let addr = must("alloc", subject.device.alloc(size_bytes))?;
    subject.expect_free(before_bytes - size_bytes, "after an allocation of 64 MiB")?;
    must("free", subject.device.free(addr))?;
    subject.expect_free(before_bytes, "after freeing it")
}

fn wrong_free(subject: &Subject<'_>) -> Outcome {
    let device = subject.device;
    let [gone, held] =
        [must("alloc", device.alloc(2 * MIB))?, must("alloc", device.alloc(2 * MIB))?];
    must("free", device.free(gone))?;
    let before_bytes = subject.free_bytes()?;
    must_refuse("a second free", device.free(gone))?;
    must_refuse("the free of an address inside a block", device.free(held.offset(512)))?;
    must_refuse("the free of address 512", device.free(Addr(512)))?;
    subject.expect_free(before_bytes, "after wrong frees")?;
    must("the free of what is still held", device.free(held))
}

fn out_of_memory(subject: &Subject<'_>) -> Outcome {
    let before_bytes = subject.free_bytes()?;
    let total_bytes = subject.device.properties().total_bytes;
    for size_bytes in [total_bytes + 1, 16 * total_bytes] {
        must_run_out("an allocation larger than the device", subject.device.alloc(size_bytes))?;
    }
    subject.expect_free(before_bytes, "after running out of memory")?;
    let addr = must("alloc after running out of memory", subject.device.alloc(MIB))?;
    must("free", subject.device.free(addr))
}

fn filling_up(subject: &Subject<'_>) -> Outcome {
    const PARTS: u64 = 8;
    let granularity_bytes = subject.granularity_bytes();
    let before_bytes = subject.free_bytes()?;
    let part_bytes = before_bytes / PARTS / granularity_bytes * granularity_bytes;
    let mut addrs = Vec::new();
    // One part more than fits, however the device rounds.
    let refused = (0..=2 * PARTS).find_map(|_| match subject.device.alloc(part_bytes) {
        Ok(addr) => {
            addrs.push(addr);
            None
        }
        Err(error) => Some(error),
    });
    must_run_out("filling the device", refused.map_or(Ok(()), Err))?;
    let Some(last) = addrs.pop() else {
        return Err(format!("{part_bytes} of {before_bytes} free bytes did not fit"));
    };
    must("free on a full device", subject.device.free(last))?;
    addrs.push(must("alloc of what was just freed", subject.device.alloc(part_bytes))?);
    for addr in addrs {
        must("free", subject.device.free(addr))?;
    }
    subject.expect_free(before_bytes, "after filling up and freeing")
}

fn threads(subject: &Subject<'_>) -> Outcome {
    let device = subject.device;
    let work = || -> Result<Vec<Addr>, String> {
        (0..16).map(|_| must("alloc on a thread", device.alloc(2 * MIB))).collect()
    };
    let mut addrs: Vec<Addr> = Vec::new();
    thread::scope(|scope| -> Outcome {
        let handles = [(); 4].map(|()| scope.spawn(work));
        for handle in handles {
            let got = handle.join().map_err(|_| String::from("a thread panicked"))?;
            addrs.extend(got?);
        }
        Ok(())
    })?;
    addrs.sort_unstable();
    ensure(addrs.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 2 * MIB), || {
        String::from("two threads got memory that overlaps")
    })?;
    addrs.into_iter().try_for_each(|addr| must("free", device.free(addr)))
}

fn time(subject: &Subject<'_>) -> Outcome {
    let mut before_ns = subject.device.now_ns();
    for _ in 0..8 {
        let addr = must("alloc", subject.device.alloc(MIB))?;
        must("free", subject.device.free(addr))?;
        let now_ns = subject.device.now_ns();
        ensure(now_ns >= before_ns, || format!("time went from {before_ns} to {now_ns}"))?;
        before_ns = now_ns;
    }
    Ok(())
}
