//! Packed: columns of numbers as the page reads them.
//!
//! A table is its columns one after the other, each number as base 128 with its lowest part first;
//! what can be negative goes zigzag. The whole is deflated, and stands in the page as base64.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;

/// A table under way.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<u8>);

impl Table {
    /// A column of numbers.
    pub(crate) fn column(&mut self, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.push(number);
        }
    }

    /// A column of numbers of which each is near the one before.
    pub(crate) fn differences(&mut self, numbers: impl Iterator<Item = u64>) {
        let mut before = 0;
        for number in numbers {
            let step = number.wrapping_sub(before) as i64;
            self.push(((step << 1) ^ (step >> 63)) as u64);
            before = number;
        }
    }

    fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// The table as text.
    pub(crate) fn finish(self) -> std::io::Result<String> {
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::new(6));
        deflate.write_all(&self.0)?;
        Ok(STANDARD.encode(deflate.finish()?))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_table_is_read_back() {
        let mut table = Table::default();
        table.column([1, 300, u64::MAX].into_iter());
        table.differences([5, 3, 1 << 40].into_iter());
        let text = table.finish().unwrap();
        let packed = STANDARD.decode(text).unwrap();
        let mut bytes = Vec::new();
        flate2::read::DeflateDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
        assert_eq!(&bytes[..3], [1, 0xac, 2]);
        assert_eq!(bytes[13..15], [10, 3], "5 up, 2 down");
    }
}
