//! Capacity: how much memory a simulated GPU has, as people write it.

use larder_core::types::{GIB, KIB, MIB};

/// Reads a number of bytes with its unit, such as `80GiB`, that a device can have.
pub fn parse_capacity(text: &str) -> Result<u64, String> {
    let wrong = || format!("a size is a number with a unit, such as 80GiB or 400MiB, not '{text}'");
    let digits = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit_bytes = match unit {
        "TiB" => 1024 * GIB,
        "GiB" => GIB,
        "MiB" => MIB,
        "KiB" => KIB,
        "" | "B" => 1,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = number * unit_bytes as f64;
    if bytes < (2 * MIB) as f64 || bytes > (1_u64 << 50) as f64 {
        let unit = if unit.is_empty() { " bytes; give a unit, such as GiB" } else { "" };
        return Err(format!("a device has from 2MiB to 1024TiB of memory, not {text}{unit}"));
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_capacity("80GiB"), Ok(80 * GIB));
        assert_eq!(parse_capacity("400MiB"), Ok(400 * MIB));
        assert_eq!(parse_capacity("1.5GiB"), Ok(3 * GIB / 2));
        assert_eq!(parse_capacity("1073741824"), Ok(GIB));
        assert!(parse_capacity("80").unwrap_err().contains("give a unit"));
        for bad in ["", "80", "GiB", "80GB", "80 GiB", "-1GiB", "1KiB", "1e9GiB", "1.2.3MiB", "NaN"]
        {
            assert!(parse_capacity(bad).is_err(), "{bad} was taken");
        }
    }
}
