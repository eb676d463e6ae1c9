//! Numbers, read as the functions of C++ read them that PyTorch hands them to.
//!
//! They take the longest beginning that is a number and leave the rest: `12x` is 12, `1e3` is 1 as
//! a whole number, and `-1` is as far below 2⁶⁴.

/// A whole number as `std::stoull` reads it, in decimal. None is where it throws.
pub(super) fn whole(text: &str) -> Option<u64> {
    let (is_negative, rest) = sign(text);
    let digits = &rest[..digit_count(rest)];
    let number: u64 = digits.parse().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

/// A number as `std::stod` reads it in C's locale: a decimal or hexadecimal one, `inf` or `nan`.
/// None is where it throws, also because the number is too large or too small for a float that has
/// all its bits.
pub(super) fn real(text: &str) -> Option<f64> {
    let (is_negative, rest) = sign(text);
    let lower = rest.to_ascii_lowercase();
    let value = if lower.starts_with("inf") {
        f64::INFINITY
    } else if lower.starts_with("nan") {
        f64::NAN
    } else if let Some((mantissa, power)) = lower.strip_prefix("0x").and_then(hexadecimal) {
        scaled(mantissa, power)?
    } else {
        let decimal = &lower[..decimal_length(&lower)?];
        let value: f64 = decimal.parse().ok()?;
        let mantissa = decimal.split('e').next().unwrap_or_default();
        let is_zero = mantissa.bytes().all(|letter| matches!(letter, b'0' | b'.'));
        let fits = value.is_normal() || is_zero;
        fits.then_some(value)?
    };
    Some(if is_negative { -value } else { value })
}

/// A number as a stream of C++ reads it that must be used up by it: decimal, and nothing else. None
/// is where it fails.
pub(super) fn streamed(text: &str) -> Option<f64> {
    let (is_negative, rest) = sign(text);
    if decimal_length(rest)? < rest.len() {
        return None;
    }
    let value: f64 = rest.parse().ok()?;
    value.is_finite().then_some(if is_negative { -value } else { value })
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn digit_count(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// How long the decimal number is that a text begins with.
fn decimal_length(text: &str) -> Option<usize> {
    let whole = digit_count(text);
    let part = text[whole..].strip_prefix('.').map(digit_count);
    if whole == 0 && part.unwrap_or(0) == 0 {
        return None;
    }
    let mantissa = whole + part.map_or(0, |digits| digits + 1);
    let Some(power) = text[mantissa..].strip_prefix(['e', 'E']) else { return Some(mantissa) };
    let signed = usize::from(power.starts_with(['+', '-']));
    let digits = digit_count(&power[signed..]);
    Some(if digits == 0 { mantissa } else { mantissa + 1 + signed + digits })
}

/// The hexadecimal number that a text, free of its `0x`, begins with, as a whole number and the
/// power of two that it is to be multiplied by. Of bits beyond those of a float, the lowest says
/// whether any is set.
fn hexadecimal(text: &str) -> Option<(u64, i64)> {
    let count = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
    let whole = count(text);
    let part = text[whole..].strip_prefix('.').map_or(0, count);
    if whole + part == 0 {
        return None;
    }
    let digits = text.bytes().filter(|&letter| letter != b'.').take(whole + part);
    // Zeros in front say nothing. What comes behind the 15th digit after them says only whether
    // there is something.
    let (mut mantissa, mut power, mut has_more) = (0_u64, 0_i64, false);
    for digit in digits {
        let value = u64::from((digit as char).to_digit(16).unwrap_or(0));
        if mantissa >> 56 == 0 {
            mantissa = mantissa << 4 | value;
        } else {
            power += 4;
            has_more |= value != 0;
        }
    }
    power -= 4 * part as i64;
    let dot = usize::from(text[whole..].starts_with('.'));
    let rest = &text[whole + dot + part..];
    if let Some(rest) = rest.strip_prefix('p') {
        let (is_negative, rest) = sign(rest);
        let digits = &rest[..digit_count(rest)];
        // No number has as many digits as would be needed to come back from there.
        let given = if digits.is_empty() { 0 } else { digits.parse().unwrap_or(1_i64 << 40) };
        power += if is_negative { -given } else { given };
    }
    Some((mantissa << 1 | u64::from(has_more), power - 1))
}

/// `mantissa` times 2 to `power`; none if it is too large, or so small that bits of it are lost.
fn scaled(mantissa: u64, power: i64) -> Option<f64> {
    if mantissa == 0 {
        return Some(0.0);
    }
    let top = i64::from(mantissa.ilog2()) + power;
    if top > 1023 {
        return None;
    }
    if top < -1022 {
        // With fewer bits than a float has: whole multiples of the smallest one.
        let lost = -1074 - power;
        let is_exact = lost <= 0 || (lost < 64 && i64::from(mantissa.trailing_zeros()) >= lost);
        if !is_exact {
            return None;
        }
        let bits = if lost > 0 { mantissa >> lost } else { mantissa << -lost };
        return Some(f64::from_bits(bits));
    }
    // The conversion rounds to the nearest; the scaling after it, in two steps, to nothing.
    let half = power / 2;
    let value = mantissa as f64 * two_to(half) * two_to(power - half);
    value.is_finite().then_some(value)
}

/// 2 to a power that a normal float has.
fn two_to(power: i64) -> f64 {
    let exponent = u64::try_from(power + 1023).unwrap_or(0).min(2046);
    f64::from_bits(exponent << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_end_where_their_digits_do() {
        for (text, value) in [
            ("0", 0),
            ("007", 7),
            ("+5", 5),
            ("12x", 12),
            ("1e3", 1),
            ("0x10", 0),
            ("4.9", 4),
            ("18446744073709551615", u64::MAX),
            ("-1", u64::MAX),
            ("-18446744073709551615", 1),
            ("-0", 0),
        ] {
            assert_eq!(whole(text), Some(value), "{text}");
        }
        for text in
            ["", "x", "+", "--1", "+-1", ".5", "18446744073709551616", "99999999999999999999"]
        {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    #[test]
    fn real_numbers_end_where_they_cannot_go_on() {
        for (text, value) in [
            ("0.5", 0.5),
            (".5", 0.5),
            ("1.", 1.0),
            ("+1e-1", 0.1),
            ("-0", -0.0),
            ("0.5e", 0.5),
            ("0.5e+", 0.5),
            ("0.5.5", 0.5),
            ("5E-1x", 0.5),
            ("0x1p-1", 0.5),
            ("0x.8", 0.5),
            ("0X8p-4z", 0.5),
            ("0x1.8p", 1.5),
            ("0x", 0.0),
            ("0xg", 0.0),
            ("0x0.00000000000000000000001p92", 1.0),
            ("0x1p-1074", 5e-324),
            ("inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("0e999", 0.0),
        ] {
            assert_eq!(real(text).map(f64::to_bits), Some(value.to_bits()), "{text}");
        }
        assert!(real("nan(1)").is_some_and(f64::is_nan));
        for text in
            ["", ".", "e5", "x", "+-1", "1e999", "1e-999", "1e-310", "0x1p1024", "0x1p-1075"]
        {
            assert_eq!(real(text), None, "{text}");
        }
    }

    #[test]
    fn a_hexadecimal_number_is_rounded_once() {
        assert_eq!(real("0x1.00000000000008p0"), Some(1.0));
        assert_eq!(real("0x1.000000000000080000001p0"), Some(1.0 + f64::EPSILON));
        assert_eq!(real("0x1.fffffffffffff8p1023"), None);
    }

    #[test]
    fn a_stream_must_be_used_up() {
        assert_eq!(streamed("1e-1"), Some(0.1));
        assert_eq!(streamed("+.5"), Some(0.5));
        assert_eq!(streamed("1e-320"), Some(1e-320));
        for text in ["", "0x1", "1e", "1.5.5", "5x", "inf", "1e999"] {
            assert_eq!(streamed(text), None, "{text}");
        }
    }
}
