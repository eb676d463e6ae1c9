//! The runtime's functions about streams and events.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::sync::{Mutex, PoisonError};

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

/// Streams wait for streams by `larder_sim_wait`; PyTorch's own allocator asks for it in a backend
/// that is not modelled.
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
