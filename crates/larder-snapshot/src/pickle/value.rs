//! Value: one Python object of plain data, sixteen bytes, by number where it has parts.

/// Which text. Equal texts have equal ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub u32);

/// Which bytes object. Equal ones have equal ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BytesId(pub u32);

/// Which tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TupleId(pub u32);

/// Which list or set. An object that the pickle mentions twice has one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListId(pub u32);

/// Which dictionary. An object that the pickle mentions twice has one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DictId(pub u32);

/// A Python object. The parts of texts and containers are in [`Objects`](super::Objects).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An `int` that fits.
    Int(i64),
    /// A `float`, or the nearest one to an `int` that does not fit 64 bits.
    Float(f64),
    /// A `str`.
    Text(TextId),
    /// A `bytes` or `bytearray`.
    Bytes(BytesId),
    /// A `tuple`.
    Tuple(TupleId),
    /// A `list`.
    List(ListId),
    /// A `set` or `frozenset`.
    Set(ListId),
    /// A `dict`.
    Dict(DictId),
}

impl Value {
    /// What Python calls the type, for messages.
    pub fn type_name(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::Bytes(_) => "bytes",
            Value::Tuple(_) => "tuple",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::Dict(_) => "dict",
        }
    }
}

/// The integer behind two's complement bytes, lowest byte first, or the nearest float.
#[inline]
pub(super) fn integer_from_bytes(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|&top| top & 0x80 != 0);
    if bytes.len() <= 8 {
        // The sign fills from the top; what the shift pushes out is nothing.
        let word = bytes.iter().rev().fold(0, |word: u64, &byte| word << 8 | u64::from(byte));
        let missing_bits = 64 - 8 * bytes.len() as u32;
        return Value::Int(
            (word.checked_shl(missing_bits).unwrap_or(0) as i64)
                .checked_shr(missing_bits)
                .unwrap_or(0),
        );
    }
    let fill = if negative { 0xff } else { 0 };
    let significant = bytes.iter().rposition(|&byte| byte != fill).map_or(0, |last| last + 1);
    // The sign bit must stay visible when the fill bytes are dropped.
    let fits = significant < 8 || (significant == 8 && (bytes[7] & 0x80 != 0) == negative);
    if fits {
        let mut word = [fill; 8];
        word[..significant].copy_from_slice(&bytes[..significant]);
        return Value::Int(i64::from_le_bytes(word));
    }
    let magnitude = bytes[..significant]
        .iter()
        .rev()
        .fold(0.0, |sum: f64, &byte| sum * 256.0 + f64::from(byte ^ fill));
    Value::Float(if negative { -magnitude - 1.0 } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_small() {
        assert_eq!(size_of::<Value>(), 16);
    }

    #[test]
    fn integers_of_every_length_keep_their_sign() {
        assert_eq!(integer_from_bytes(&[]), Value::Int(0));
        assert_eq!(integer_from_bytes(&[0xff]), Value::Int(-1));
        assert_eq!(integer_from_bytes(&[0xff, 0]), Value::Int(255));
        assert_eq!(integer_from_bytes(&[0x00, 0x80]), Value::Int(-32768));
        assert_eq!(integer_from_bytes(&i64::MAX.to_le_bytes()), Value::Int(i64::MAX));
        assert_eq!(integer_from_bytes(&i64::MIN.to_le_bytes()), Value::Int(i64::MIN));
        assert_eq!(
            integer_from_bytes(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]),
            Value::Float(9_223_372_036_854_775_808.0)
        );
        assert_eq!(
            integer_from_bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 0xff]),
            Value::Float(-18_446_744_073_709_551_616.0)
        );
        assert_eq!(integer_from_bytes(&[0x7f; 300]), Value::Float(f64::INFINITY));
    }
}
