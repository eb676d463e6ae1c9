//! Copies and fills: what is small and known is carried over, all else is forgotten.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use larder_core::device::Device;
use larder_core::types::StreamId;

use crate::border::{Answer, Out, Status, runtime};
use crate::gpu::{fleet, gpu, gpu_of};
use crate::runtime::{gpu_with, is_pinned};
use crate::values::{self, KEPT_BYTES};
use crate::work::{Route, copy_ns, kernel_ns};
use crate::{arena, kernels};

/// Carries bytes from one place to another, as far as they are known.
pub(crate) fn carry(to: u64, from: u64, size_bytes: u64) -> Answer {
    let (to_card, from_card) = (arena::is_on_card(to), arena::is_on_card(from));
    if size_bytes == 0 {
        return Ok(());
    }
    if from_card && !values::are_known(from, size_bytes) {
        if to_card {
            values::forget(to, size_bytes);
            return Ok(());
        }
        // Whoever reads what is not known is told so, or told to stop.
        let may = values::may_be_read(to, from, size_bytes);
        return if may { Ok(()) } else { Err(Status::NOT_SUPPORTED) };
    }
    if to_card && size_bytes > KEPT_BYTES {
        values::forget(to, size_bytes);
        return Ok(());
    }
    arena::copy(to, from, size_bytes as usize);
    if to_card {
        values::learn(to, size_bytes);
    }
    Ok(())
}

/// A copy on a stream. The bytes are carried at once, in the order in which the program asks for
/// it; the time that it takes passes on the stream.
fn copy(to: u64, from: u64, size_bytes: usize, stream: u64) -> Answer {
    let stream = StreamId(stream);
    let gpu = if arena::is_on_card(to) { gpu_with(to)? } else { gpu_with(from)? };
    let is_captured = gpu.device.capture_of(stream)?.is_some();
    let host = match (arena::is_on_card(to), arena::is_on_card(from)) {
        (true, true) => None,
        (true, false) => Some(from),
        _ => Some(to),
    };
    let route = match host {
        None => Route::OnCard,
        Some(host) if is_pinned(host) => Route::Pinned,
        Some(_) => Route::Pageable,
    };
    gpu.launch(stream, copy_ns(&fleet()?.card, route, size_bytes as u64))?;
    if is_captured {
        // It runs at each replay of the graph, of which nobody here knows.
        values::forget(to, size_bytes as u64);
        return Ok(());
    }
    carry(to, from, size_bytes as u64)?;
    // Memory that is not pinned is read or written before the call returns.
    if route == Route::Pageable {
        gpu.device.wait_stream(stream)?;
    }
    Ok(())
}

fn fill(to: u64, value: i32, size_bytes: usize, stream: u64) -> Answer {
    let gpu = gpu_with(to)?;
    gpu.launch(StreamId(stream), kernel_ns(&fleet()?.card, size_bytes as u64 / 32))?;
    if size_bytes as u64 > KEPT_BYTES || gpu.device.capture_of(StreamId(stream))?.is_some() {
        values::forget(to, size_bytes as u64);
    } else {
        arena::fill(to, value as u8, size_bytes);
        values::learn(to, size_bytes as u64);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpyAsync(to: u64, from: u64, size: usize, _kind: i32, stream: u64) -> Status {
    runtime(|| copy(to, from, size, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy(to: u64, from: u64, size: usize, _kind: i32) -> Status {
    runtime(|| {
        copy(to, from, size, 0)?;
        Ok(gpu()?.device.wait_stream(StreamId(0))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpyPeerAsync(
    to: u64,
    _to_device: i32,
    from: u64,
    _from_device: i32,
    size: usize,
    stream: u64,
) -> Status {
    runtime(|| copy(to, from, size, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy2DAsync(
    to: u64,
    to_pitch: usize,
    from: u64,
    from_pitch: usize,
    width: usize,
    height: usize,
    _kind: i32,
    stream: u64,
) -> Status {
    runtime(|| {
        for row in 0..height as u64 {
            let (to, from) = (to + row * to_pitch as u64, from + row * from_pitch as u64);
            copy(to, from, width, stream)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpyToSymbol() -> Status {
    runtime(|| {
        kernels::note_unknown_writes();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemsetAsync(to: u64, value: i32, size: usize, stream: u64) -> Status {
    runtime(|| fill(to, value, size, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset(to: u64, value: i32, size: usize) -> Status {
    runtime(|| fill(to, value, size, 0))
}

/// The driver's, for words of four bytes.
pub(crate) extern "C" fn fill_words(to: u64, value: u32, count: usize, stream: u64) -> Status {
    runtime(|| {
        gpu_of(crate::gpu::current())?;
        let [byte, rest @ ..] = value.to_le_bytes();
        if rest == [byte; 3] {
            return fill(to, i32::from(byte), count * 4, stream);
        }
        values::forget(to, count as u64 * 4);
        gpu_with(to)?.launch(StreamId(stream), kernel_ns(&fleet()?.card, count as u64 / 8))
    })
}

/// Unused by PyTorch's allocator; the answer is what CUDA's is for a null.
#[unsafe(no_mangle)]
extern "C" fn cudaMemPrefetchAsync(_place: Out<u8>) -> Status {
    Status::NOT_SUPPORTED
}
