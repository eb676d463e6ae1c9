//! The runtime's functions about streams, events and graph capture.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_core::device::Device;
use larder_core::types::{EventId, StreamId};

use crate::border::{Out, Status, runtime};
use crate::gpu::gpu;

/// The handles that scripts choose are small; those of streams that are created come far above.
const FIRST_CREATED: u64 = 1 << 40;

/// PyTorch takes an odd handle for a stream out of its own pool, as if pointers could not be odd.
const HANDLE_ALIGNMENT: u64 = 16;

// Streams.

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Status {
    runtime(|| {
        least.put_if_wanted(0);
        greatest.put_if_wanted(0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithPriority(
    stream: Out<u64>,
    _flags: u32,
    _priority: i32,
) -> Status {
    static CREATED: Mutex<u64> = Mutex::new(FIRST_CREATED);
    runtime(|| {
        let mut created = CREATED.lock().unwrap_or_else(PoisonError::into_inner);
        *created += HANDLE_ALIGNMENT;
        stream.put(*created)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamQuery(stream: u64) -> Status {
    runtime(|| if gpu()?.is_busy(StreamId(stream)) { Err(Status::NOT_READY) } else { Ok(()) })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamSynchronize(stream: u64) -> Status {
    runtime(|| Ok(gpu()?.wait_stream(StreamId(stream))?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSynchronize() -> Status {
    runtime(|| Ok(gpu()?.wait_device()?))
}

/// Work of one stream that waits for another's is not modelled: it would be done no sooner.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamWaitEvent(_stream: u64, _event: u64, _flags: u32) -> Status {
    runtime(|| Err(Status::NOT_SUPPORTED))
}

// Events. The handle of an event is its number, which is never zero.

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreateWithFlags(event: Out<u64>, _flags: u32) -> Status {
    runtime(|| event.put(gpu()?.create_event()?.0))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventDestroy(event: u64) -> Status {
    runtime(|| Ok(gpu()?.destroy_event(EventId(event))?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventRecord(event: u64, stream: u64) -> Status {
    runtime(|| Ok(gpu()?.record_event(EventId(event), StreamId(stream))?))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventQuery(event: u64) -> Status {
    runtime(|| {
        let done = gpu()?.query_event(EventId(event))?;
        if done { Ok(()) } else { Err(Status::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventSynchronize(event: u64) -> Status {
    runtime(|| Ok(gpu()?.wait_event(EventId(event))?))
}

/// Events carry no time.
#[unsafe(no_mangle)]
extern "C" fn cudaEventElapsedTime(_elapsed_ms: Out<f32>, _from: u64, _to: u64) -> Status {
    runtime(|| Err(Status::NOT_SUPPORTED))
}

// Graph capture: which streams are captured, and under what number. There are no graphs.

/// The streams under capture, each with the number of its capture.
struct Captures {
    running: BTreeMap<StreamId, u64>,
    begun: u64,
}

static CAPTURES: Mutex<Captures> = Mutex::new(Captures { running: BTreeMap::new(), begun: 0 });

fn captures() -> MutexGuard<'static, Captures> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins or ends the stream's capture.
pub(crate) fn set_capture(stream: StreamId, on: bool) {
    let mut captures = captures();
    if on {
        captures.begun += 1;
        let number = captures.begun;
        captures.running.insert(stream, number);
    } else {
        captures.running.remove(&stream);
    }
}

/// CUDA's word for whether a stream is captured.
fn capture_status(capture: Option<u64>) -> i32 {
    i32::from(capture.is_some())
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamIsCapturing(stream: u64, status: Out<i32>) -> Status {
    runtime(|| {
        let capture = captures().running.get(&StreamId(stream)).copied();
        status.put(capture_status(capture))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetCaptureInfo(
    stream: u64,
    status: Out<i32>,
    number: Out<u64>,
    graph: Out<*const c_void>,
    ends: Out<*const c_void>,
    edges: Out<*const c_void>,
    end_count: Out<usize>,
) -> Status {
    runtime(|| {
        let capture = captures().running.get(&StreamId(stream)).copied();
        number.put_if_wanted(capture.unwrap_or(0));
        graph.put_if_wanted(ptr::null());
        ends.put_if_wanted(ptr::null());
        edges.put_if_wanted(ptr::null());
        end_count.put_if_wanted(0);
        status.put(capture_status(capture))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphNodeGetDependencies() -> Status {
    runtime(|| Err(Status::NOT_SUPPORTED))
}

/// Every call is legal under a simulated capture, so the mode is what the caller says it is.
#[unsafe(no_mangle)]
extern "C" fn cudaThreadExchangeStreamCaptureMode(_mode: usize) -> Status {
    runtime(|| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_capture_has_a_number_of_its_own() {
        let stream = StreamId(77);
        let running = || captures().running.get(&stream).copied();
        set_capture(stream, true);
        let first = running().unwrap();
        set_capture(stream, false);
        assert_eq!(capture_status(running()), 0);
        set_capture(stream, true);
        assert!(running().unwrap() > first && capture_status(running()) == 1);
        set_capture(stream, false);
    }
}
