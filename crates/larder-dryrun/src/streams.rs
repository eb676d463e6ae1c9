//! The runtime's functions about streams and events.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::device::Device;
use larder_core::types::{EventId, StreamId};

use crate::border::{Answer, Out, Status, runtime};
use crate::gpu::{Gpu, fleet, gpu};

/// Handles are far from null and its like, and even: PyTorch takes an odd handle for a stream out
/// of its own pool, as if pointers could not be odd.
const FIRST_HANDLE: u64 = 1 << 40;
const HANDLE_STEP: u64 = 16;

pub(crate) fn new_handle() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(FIRST_HANDLE);
    NEXT.fetch_add(HANDLE_STEP, Ordering::Relaxed)
}

/// The default stream has several names.
pub(crate) fn stream(handle: u64) -> StreamId {
    StreamId(if handle <= 2 { 0 } else { handle })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreate(handle: Out<u64>) -> Status {
    runtime(|| handle.put(new_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithFlags(handle: Out<u64>, _flags: u32) -> Status {
    runtime(|| handle.put(new_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithPriority(
    handle: Out<u64>,
    _flags: u32,
    _priority: i32,
) -> Status {
    runtime(|| handle.put(new_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetPriority(_stream: u64, priority: Out<i32>) -> Status {
    runtime(|| priority.put(0))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamDestroy(handle: u64) -> Status {
    runtime(|| {
        gpu()?.device.wait_stream(stream(handle))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamQuery(handle: u64) -> Status {
    runtime(|| {
        let gpu = gpu()?;
        // A question takes its time, so that a program that asks again and again gets on.
        gpu.device.advance(1_500);
        if gpu.device.is_busy(stream(handle)) { Err(Status::NOT_READY) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamSynchronize(handle: u64) -> Status {
    runtime(|| Ok(gpu()?.device.wait_stream(stream(handle))?))
}

/// Lets a stream wait for an event, which is a way into a capture if it was recorded in one.
pub(crate) fn wait_event(handle: u64, event: u64) -> Answer {
    let (stream, event) = (stream(handle), EventId(event));
    let gpu = owner(event)?;
    let recorded = gpu.beside().recorded.get(&event).copied();
    let Some((other, capture)) = recorded else { return Ok(()) };
    match capture {
        Some(id) if gpu.device.capture_of(other)? == Some(id) => {
            Ok(gpu.device.follow(stream, other)?)
        }
        // The capture is over, and nothing of it ran.
        Some(_) => Ok(()),
        None => Ok(gpu.device.follow_event(stream, event)?),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamWaitEvent(handle: u64, event: u64, _flags: u32) -> Status {
    runtime(|| wait_event(handle, event))
}

// Events. The handle of an event is its number, which is never zero.

/// The card on which an event was recorded. Cards number their events alike, and a program with
/// several cards mostly waits on the card where it recorded.
fn owner(event: EventId) -> Answer<&'static Gpu> {
    let here = gpu()?;
    if here.beside().recorded.contains_key(&event) {
        return Ok(here);
    }
    let holds = |gpu: &&Gpu| gpu.beside().recorded.contains_key(&event);
    Ok(fleet()?.gpus.iter().find(holds).unwrap_or(here))
}

pub(crate) fn create_event(event: Out<u64>) -> Answer {
    event.put(gpu()?.device.create_event()?.0)
}

pub(crate) fn record_event(event: u64, handle: u64) -> Answer {
    let (gpu, event, stream) = (gpu()?, EventId(event), stream(handle));
    gpu.device.record_event(event, stream)?;
    let capture = gpu.device.capture_of(stream)?;
    let at_ns = gpu.device.busy_until_ns(stream);
    let mut beside = gpu.beside();
    beside.recorded.insert(event, (stream, capture));
    beside.recorded_ns.insert(event, at_ns);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreate(event: Out<u64>) -> Status {
    runtime(|| create_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreateWithFlags(event: Out<u64>, _flags: u32) -> Status {
    runtime(|| create_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventDestroy(event: u64) -> Status {
    runtime(|| {
        let (gpu, event) = (owner(EventId(event))?, EventId(event));
        gpu.device.destroy_event(event)?;
        let mut beside = gpu.beside();
        beside.recorded.remove(&event);
        beside.recorded_ns.remove(&event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventRecord(event: u64, handle: u64) -> Status {
    runtime(|| record_event(event, handle))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventRecordWithFlags(event: u64, handle: u64, _flags: u32) -> Status {
    runtime(|| record_event(event, handle))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventQuery(event: u64) -> Status {
    runtime(|| {
        let done = owner(EventId(event))?.device.query_event(EventId(event))?;
        if done { Ok(()) } else { Err(Status::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventSynchronize(event: u64) -> Status {
    runtime(|| Ok(owner(EventId(event))?.device.wait_event(EventId(event))?))
}

/// By the model of time: it is no measurement.
#[unsafe(no_mangle)]
extern "C" fn cudaEventElapsedTime(elapsed_ms: Out<f32>, from: u64, to: u64) -> Status {
    runtime(|| {
        let gpu = owner(EventId(from))?;
        let beside = gpu.beside();
        let at = |event: u64| beside.recorded_ns.get(&EventId(event)).copied();
        let (from, to) = at(from).zip(at(to)).ok_or(Status::INVALID_HANDLE)?;
        elapsed_ms.put((to as f64 - from as f64) as f32 / 1e6)
    })
}
