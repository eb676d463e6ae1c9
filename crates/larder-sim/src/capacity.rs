//! Capacity: how much memory a simulated GPU has, as people write it.

use std::fmt;

use larder_core::types::{GIB, KIB, MIB};

/// Why a text is no amount of memory that a device can have. Each case has the text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CapacityError {
    /// It is not a number with a unit.
    Unreadable(String),
    /// No device has so little or so much.
    OutOfRange(String),
    /// The number has no unit, and no device has so few or so many bytes.
    NoUnit(String),
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = "a device has from 2MiB to 1024TiB of memory";
        match self {
            CapacityError::Unreadable(text) => {
                write!(f, "a size is a number with a unit, such as 80GiB or 400MiB, not '{text}'")
            }
            CapacityError::OutOfRange(text) => write!(f, "{range}, not {text}"),
            CapacityError::NoUnit(text) => {
                write!(f, "{range}, not {text} bytes; give a unit, such as GiB")
            }
        }
    }
}

impl std::error::Error for CapacityError {}

/// Reads a number of bytes with its unit, such as `80GiB`, that a device can have.
///
/// `80GB`, `80G` and `80 GiB` are the same, in large or small letters: a card that is sold with 80
/// GB has 80 GiB of memory, or a little less, and nobody means the 74.5 GiB that the letters say.
pub fn parse_capacity(text: &str) -> Result<u64, CapacityError> {
    let wrong = || CapacityError::Unreadable(text.to_owned());
    let trimmed = text.trim();
    let digits = trimmed.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let (number, unit) = trimmed.split_at(digits.unwrap_or(trimmed.len()));
    let unit = unit.trim_start();
    let unit_bytes = match unit.to_ascii_lowercase().as_str() {
        "tib" | "tb" | "t" => 1024 * GIB,
        "gib" | "gb" | "g" => GIB,
        "mib" | "mb" | "m" => MIB,
        "kib" | "kb" | "k" => KIB,
        "" | "b" => 1,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = number * unit_bytes as f64;
    if bytes < (2 * MIB) as f64 || bytes > (1_u64 << 50) as f64 {
        let text = text.to_owned();
        let has_unit = !unit.is_empty();
        return Err(if has_unit {
            CapacityError::OutOfRange(text)
        } else {
            CapacityError::NoUnit(text)
        });
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_written_as_people_write_them() {
        for text in ["80GiB", "80GB", "80G", "80 GiB", "80g", "80gb", " 80 GB ", "81920MB"] {
            assert_eq!(parse_capacity(text), Ok(80 * GIB), "{text}");
        }
        assert_eq!(parse_capacity("24G"), Ok(24 * GIB));
        assert_eq!(parse_capacity("0.5T"), Ok(512 * GIB));
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_capacity("80GiB"), Ok(80 * GIB));
        assert_eq!(parse_capacity("400MiB"), Ok(400 * MIB));
        assert_eq!(parse_capacity("1.5GiB"), Ok(3 * GIB / 2));
        assert_eq!(parse_capacity("1073741824"), Ok(GIB));
        assert!(parse_capacity("80").unwrap_err().to_string().contains("give a unit"));
        for bad in
            ["", "80", "GiB", "80GiBs", "80 G B", "-1GiB", "1KiB", "1e9GiB", "1.2.3MiB", "NaN"]
        {
            assert!(parse_capacity(bad).is_err(), "{bad} was taken");
        }
    }
}
