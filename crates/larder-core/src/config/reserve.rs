//! How many addresses an expandable segment reserves.

use crate::config::number::streamed;

/// A part of the device's memory, or a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    /// This part of the device's memory.
    Fraction(f64),
    /// So many GiB.
    Gibibytes(f64),
}

impl Reserve {
    /// Reads `0.5` or `40G`; none if it is neither, or not a number above 0.
    pub(super) fn read(text: &str) -> Option<Reserve> {
        let gibibytes = text.strip_suffix(['G', 'g']);
        let number = streamed(gibibytes.unwrap_or(text)).filter(|&number| number > 0.0)?;
        let reserve = if gibibytes.is_some() { Reserve::Gibibytes } else { Reserve::Fraction };
        Some(reserve(number))
    }

    /// How many bytes that is on a device of this size.
    pub fn bytes(self, device_total_bytes: u64) -> u64 {
        match self {
            Reserve::Fraction(fraction) => (fraction * device_total_bytes as f64) as u64,
            Reserve::Gibibytes(gibibytes) => (gibibytes * (1_u64 << 30) as f64) as u64,
        }
    }
}
