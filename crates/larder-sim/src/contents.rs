//! Contents: what is written in the simulated memory, copied to the host and back.

use larder_core::device::DeviceError;
use larder_core::types::Span;

use crate::extents::Extent;
use crate::memory::{Memory, invalid};

/// So many zeros at once are passed by.
const STEP_BYTES: usize = 4096;

impl Memory {
    /// The extents of a span that the device can use, each with how far into the span it begins.
    fn extents_of(&self, span: Span) -> Result<Vec<(u64, Extent)>, DeviceError> {
        let unusable = || {
            let Span { addr, size_bytes } = span;
            invalid(format!("the device cannot use all of {size_bytes} bytes at {addr}"))
        };
        let mut offset_bytes = 0;
        let placed = self.extents(span).ok_or_else(unusable)?.into_iter().map(|extent| {
            let at = offset_bytes;
            offset_bytes += extent.size_bytes;
            (at, extent)
        });
        Ok(placed.collect())
    }

    /// Copies the bytes of each span to the host's beside it.
    pub(crate) fn copy_out(&self, copies: &mut [(Span, &mut [u8])]) -> Result<(), DeviceError> {
        for (span, bytes) in copies {
            check_size(*span, bytes)?;
            bytes.fill(0);
            for (from, extent) in self.extents_of(*span)? {
                for (at, value) in self.bytes.written(extent) {
                    bytes[(from + at) as usize] = value;
                }
            }
        }
        Ok(())
    }

    /// Copies the host's bytes to each span beside them.
    pub(crate) fn copy_in(&mut self, copies: &[(&[u8], Span)]) -> Result<(), DeviceError> {
        for &(bytes, span) in copies {
            check_size(span, bytes)?;
            for (from, extent) in self.extents_of(span)? {
                self.bytes.clear(extent);
                let here = &bytes[from as usize..(from + extent.size_bytes) as usize];
                for (step, some) in here.chunks(STEP_BYTES).enumerate() {
                    if some.iter().all(|&value| value == 0) {
                        continue;
                    }
                    for (at, &value) in some.iter().enumerate().filter(|&(_, &value)| value != 0) {
                        let at = extent.offset_bytes + (step * STEP_BYTES + at) as u64;
                        self.bytes.write(Extent::new(extent.memory, at, 1), value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes zeros to each span.
    pub(crate) fn clear(&mut self, spans: &[Span]) -> Result<(), DeviceError> {
        for &span in spans {
            for (_, extent) in self.extents_of(span)? {
                self.bytes.clear(extent);
            }
        }
        Ok(())
    }
}

fn check_size(span: Span, bytes: &[u8]) -> Result<(), DeviceError> {
    if span.size_bytes == bytes.len() as u64 {
        return Ok(());
    }
    Err(invalid(format!("{} bytes of the host for {}", bytes.len(), span.size_bytes)))
}
