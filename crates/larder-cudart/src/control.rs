//! What the program that runs a script asks of the simulated GPU itself.
//!
//! Streams go by their handles here too. None of these is a device call.

use larder_core::types::StreamId;

use crate::border::{Out, Status, driver};
use crate::gpu::{gpu, offer};

/// From now on `larder_open("process", …)` makes an allocator for this very GPU.
#[unsafe(no_mangle)]
extern "C" fn larder_sim_offer() -> Status {
    driver(|| {
        offer();
        Ok(())
    })
}

/// Calls that reached the device, as `larder replay` counts them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CallCounts {
    /// Plain allocations, those that failed included.
    pub malloc: u64,
    /// Plain frees.
    pub free: u64,
    /// Pages created.
    pub create: u64,
    /// Pages mapped.
    pub map: u64,
    /// Pages unmapped.
    pub unmap: u64,
}

/// All work issued on the stream so far has finished.
#[unsafe(no_mangle)]
extern "C" fn larder_sim_sync(stream: u64) -> Status {
    driver(|| {
        gpu()?.sync(StreamId(stream));
        Ok(())
    })
}

/// Begins (1) or ends (0) the stream's graph capture. A capture that was broken is ended too.
#[unsafe(no_mangle)]
extern "C" fn larder_sim_capture(stream: u64, on: i32) -> Status {
    driver(|| {
        if on != 0 {
            gpu()?.begin_capture(StreamId(stream))?;
        } else {
            gpu()?.end_capture(StreamId(stream))?;
        }
        Ok(())
    })
}

/// Issues a piece of work on the stream.
#[unsafe(no_mangle)]
extern "C" fn larder_sim_launch(stream: u64) -> Status {
    driver(|| {
        gpu()?.issue(StreamId(stream));
        Ok(())
    })
}

/// Lets the stream wait for what the other one was given so far.
#[unsafe(no_mangle)]
extern "C" fn larder_sim_wait(stream: u64, other: u64) -> Status {
    driver(|| Ok(gpu()?.follow(StreamId(stream), StreamId(other))?))
}

/// Bytes of the device in use; none where there is no device.
#[unsafe(no_mangle)]
extern "C" fn larder_sim_used() -> u64 {
    gpu().map_or(0, larder_sim::SimDevice::used_bytes)
}

/// The calls so far.
#[unsafe(no_mangle)]
extern "C" fn larder_sim_calls(counts: Out<CallCounts>) -> Status {
    driver(|| {
        let calls = gpu()?.calls();
        counts.put(CallCounts {
            malloc: calls.alloc,
            free: calls.free,
            create: calls.create,
            map: calls.map,
            unmap: calls.unmap,
        })
    })
}
