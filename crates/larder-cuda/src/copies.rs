//! Copies of contents between a GPU and the host, in large pieces on several streams.

use std::sync::{Arc, Mutex, PoisonError};

use larder_core::device::DeviceError;
use larder_core::types::Span;

use crate::context::{Context, Primary};
use crate::driver;
use crate::stream::CudaStream;

/// So many streams copy at once.
const STREAMS: usize = 2;
/// A copy is cut into pieces of this size, which the streams take in turns.
const PIECE_BYTES: u64 = 256 << 20;

/// The streams that copy, from when they are first wanted.
#[derive(Default)]
pub(crate) struct Copies {
    streams: Mutex<Vec<CudaStream>>,
}

/// A piece of a copy.
enum Piece {
    Out { from: u64, to: *mut u8, size_bytes: usize },
    In { from: *const u8, to: u64, size_bytes: usize },
    Zero { addr: u64, size_bytes: u64 },
}

impl Copies {
    /// Copies memory of the device to the host's, and waits until it is there.
    ///
    /// # Safety
    /// The device can use every span, and no work writes there.
    pub(crate) unsafe fn copy_out(
        &self,
        context: &Context,
        copies: &mut [(Span, &mut [u8])],
    ) -> Result<(), DeviceError> {
        let mut pieces = Vec::new();
        for (span, bytes) in copies {
            check_size(*span, bytes.len())?;
            let mut addr = span.addr.0;
            for part in bytes.chunks_mut(PIECE_BYTES as usize) {
                let (to, size_bytes) = (part.as_mut_ptr(), part.len());
                pieces.push(Piece::Out { from: addr, to, size_bytes });
                addr += size_bytes as u64;
            }
        }
        // SAFETY: the host's parts are borrowed until it returns, and apart; the caller promises
        // the rest.
        unsafe { self.run(context, &pieces) }
    }

    /// Copies the host's memory to that of the device, and waits until it is there.
    ///
    /// # Safety
    /// The device can use every span, and no work uses it.
    pub(crate) unsafe fn copy_in(
        &self,
        context: &Context,
        copies: &[(&[u8], Span)],
    ) -> Result<(), DeviceError> {
        let mut pieces = Vec::new();
        for &(bytes, span) in copies {
            check_size(span, bytes.len())?;
            let mut addr = span.addr.0;
            for part in bytes.chunks(PIECE_BYTES as usize) {
                let (from, size_bytes) = (part.as_ptr(), part.len());
                pieces.push(Piece::In { from, to: addr, size_bytes });
                addr += size_bytes as u64;
            }
        }
        // SAFETY: the host's parts are borrowed until it returns; the caller promises the rest.
        unsafe { self.run(context, &pieces) }
    }

    /// Writes zeros, and waits until they are there.
    ///
    /// # Safety
    /// The device can use every span, and no work uses it.
    pub(crate) unsafe fn clear(
        &self,
        context: &Context,
        spans: &[Span],
    ) -> Result<(), DeviceError> {
        let zero = |span: &Span| Piece::Zero { addr: span.addr.0, size_bytes: span.size_bytes };
        let pieces: Vec<Piece> = spans.iter().map(zero).collect();
        // SAFETY: the caller promises it.
        unsafe { self.run(context, &pieces) }
    }

    /// Hands the pieces to the streams in turns, and waits for all of them, whatever goes wrong.
    ///
    /// # Safety
    /// All memory that the pieces name is there until it returns, and nobody else uses it.
    unsafe fn run(&self, context: &Context, pieces: &[Piece]) -> Result<(), DeviceError> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.is_empty() {
            let primary: &Arc<Primary> = context.primary()?;
            for _ in 0..STREAMS {
                streams.push(CudaStream::new(Arc::clone(primary))?);
            }
        }
        let mut first = Ok(());
        for (piece, stream) in pieces.iter().zip(streams.iter().cycle()) {
            let stream = stream.handle();
            first = match *piece {
                Piece::Out { from, to, size_bytes } => {
                    // SAFETY: the stream is ours and alive, and waited for below; the caller
                    // promises the rest.
                    unsafe { driver::copy_out(from, to, size_bytes, stream) }
                }
                // SAFETY: as above.
                Piece::In { from, to, size_bytes } => unsafe {
                    driver::copy_in(from, to, size_bytes, stream)
                },
                // SAFETY: as above.
                Piece::Zero { addr, size_bytes } => unsafe {
                    driver::zero(addr, size_bytes, stream)
                },
            };
            if first.is_err() {
                break;
            }
        }
        for stream in &*streams {
            // SAFETY: it is ours and alive.
            first = first.and(unsafe { driver::wait_stream(stream.handle()) });
        }
        first
    }
}

fn check_size(span: Span, size: usize) -> Result<(), DeviceError> {
    if span.size_bytes == size as u64 {
        return Ok(());
    }
    let text = format!("{size} bytes of the host for {} of the device", span.size_bytes);
    Err(DeviceError::Other { code: 1, text })
}
