//! Writer: plain data as a pickle of protocol 4.
//!
//! It writes no more kinds of opcode than the readers of memory snapshots understand: PyTorch's web
//! page has one of its own, which knows about thirty of them.

use std::collections::HashMap;
use std::io::{self, Write};

use super::opcode;

/// Containers get their items in portions of this many, so that no reader has to hold more of them
/// on its stack.
const PORTION: u64 = 1000;
/// The longest text that is written with a length of one byte.
const SHORT_TEXT_MAX: usize = u8::MAX as usize;

/// Writes one pickle.
pub struct Writer<W> {
    out: W,
    texts: HashMap<Box<str>, u32>,
    next_memo: u32,
}

/// How many items a list or pairs a dictionary that is being written has so far.
#[derive(Debug, Default)]
pub struct Open(u64);

impl<W: Write> Writer<W> {
    /// A pickle with nothing in it yet.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        out.write_all(&[opcode::PROTO, 4])?;
        Ok(Writer { out, texts: HashMap::new(), next_memo: 0 })
    }

    /// Ends the pickle, which must hold exactly one object by now.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[opcode::STOP])?;
        Ok(self.out)
    }

    /// `None`.
    pub fn none(&mut self) -> io::Result<()> {
        self.out.write_all(&[opcode::NONE])
    }

    /// `True` or `False`.
    pub fn boolean(&mut self, is: bool) -> io::Result<()> {
        self.out.write_all(&[if is { opcode::NEWTRUE } else { opcode::NEWFALSE }])
    }

    /// An `int`.
    pub fn integer(&mut self, number: i64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            return self.out.write_all(&[opcode::BININT1, byte]);
        }
        if let Ok(short) = u16::try_from(number) {
            let [low, high] = short.to_le_bytes();
            return self.out.write_all(&[opcode::BININT2, low, high]);
        }
        if let Ok(word) = i32::try_from(number) {
            self.out.write_all(&[opcode::BININT])?;
            return self.out.write_all(&word.to_le_bytes());
        }
        let bytes = number.to_le_bytes();
        // Bytes at the top that only repeat the sign are left out.
        let fill = if number < 0 { 0xff } else { 0 };
        let mut len = bytes.len();
        while len > 1 && bytes[len - 1] == fill && (bytes[len - 2] ^ fill) & 0x80 == 0 {
            len -= 1;
        }
        self.out.write_all(&[opcode::LONG1, len as u8])?;
        self.out.write_all(&bytes[..len])
    }

    /// A `float`.
    pub fn float(&mut self, number: f64) -> io::Result<()> {
        self.out.write_all(&[opcode::BINFLOAT])?;
        self.out.write_all(&number.to_be_bytes())
    }

    /// A `str`. One that was written before is named and not repeated.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&memo) = self.texts.get(text) {
            return self.recall(memo);
        }
        if text.len() <= SHORT_TEXT_MAX {
            self.out.write_all(&[opcode::SHORT_BINUNICODE, text.len() as u8])?;
        } else {
            let len = u32::try_from(text.len()).map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidInput, "a text of more than 4 GiB")
            })?;
            self.out.write_all(&[opcode::BINUNICODE])?;
            self.out.write_all(&len.to_le_bytes())?;
        }
        self.out.write_all(text.as_bytes())?;
        let memo = self.memoize()?;
        self.texts.insert(text.into(), memo);
        Ok(())
    }

    /// A `tuple` of two integers.
    pub fn pair(&mut self, first: i64, second: i64) -> io::Result<()> {
        self.integer(first)?;
        self.integer(second)?;
        self.out.write_all(&[opcode::TUPLE2])
    }

    /// Remembers the object that was written last, and says by which number.
    pub fn memoize(&mut self) -> io::Result<u32> {
        self.out.write_all(&[opcode::MEMOIZE])?;
        self.next_memo += 1;
        Ok(self.next_memo - 1)
    }

    /// The very object that was remembered by this number.
    pub fn recall(&mut self, memo: u32) -> io::Result<()> {
        if let Ok(memo) = u8::try_from(memo) {
            return self.out.write_all(&[opcode::BINGET, memo]);
        }
        self.out.write_all(&[opcode::LONG_BINGET])?;
        self.out.write_all(&memo.to_le_bytes())
    }

    /// A `list` begins.
    pub fn begin_list(&mut self) -> io::Result<Open> {
        self.out.write_all(&[opcode::EMPTY_LIST])?;
        Ok(Open::default())
    }

    /// A `dict` begins.
    pub fn begin_dict(&mut self) -> io::Result<Open> {
        self.out.write_all(&[opcode::EMPTY_DICT])?;
        Ok(Open::default())
    }

    /// The next item of a list comes now.
    pub fn item(&mut self, list: &mut Open) -> io::Result<()> {
        self.portion(list, opcode::APPENDS)
    }

    /// The next pair of a dictionary comes now: this key, and its value after it.
    pub fn key(&mut self, dict: &mut Open, key: &str) -> io::Result<()> {
        self.portion(dict, opcode::SETITEMS)?;
        self.text(key)
    }

    fn portion(&mut self, open: &mut Open, end: u8) -> io::Result<()> {
        if open.0.is_multiple_of(PORTION) {
            if open.0 > 0 {
                self.out.write_all(&[end])?;
            }
            self.out.write_all(&[opcode::MARK])?;
        }
        open.0 += 1;
        Ok(())
    }

    /// A list ends.
    pub fn end_list(&mut self, list: &Open) -> io::Result<()> {
        if list.0 > 0 { self.out.write_all(&[opcode::APPENDS]) } else { Ok(()) }
    }

    /// A dictionary ends.
    pub fn end_dict(&mut self, dict: &Open) -> io::Result<()> {
        if dict.0 > 0 { self.out.write_all(&[opcode::SETITEMS]) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KeepAll, Limits, Value, read};
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let integers = [0, 255, 256, 65535, 65536, -1, i64::from(i32::MIN), 1 << 31, 1 << 40];
        let integers =
            integers.into_iter().chain([i64::MAX, i64::MIN, -(1 << 47), 0x0080_0000_0000]);
        let integers: Vec<i64> = integers.collect();
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut list = writer.begin_list().unwrap();
        for &integer in &integers {
            writer.item(&mut list).unwrap();
            writer.integer(integer).unwrap();
        }
        writer.item(&mut list).unwrap();
        writer.float(-0.5).unwrap();
        let long = "x".repeat(300);
        for text in [&long, "again", "again"] {
            writer.item(&mut list).unwrap();
            writer.text(text).unwrap();
        }
        writer.end_list(&list).unwrap();
        let bytes = writer.finish().unwrap();
        let pickle = read(&bytes[..], Limits::default(), KeepAll).unwrap();
        let Value::List(root) = pickle.root else { panic!("a list was written") };
        let items = pickle.objects.list(root).items().unwrap();
        let expected: Vec<Value> = integers.into_iter().map(Value::Int).collect();
        assert_eq!(items[..expected.len()], expected);
        assert_eq!(items[expected.len()], Value::Float(-0.5));
        let texts: Vec<&str> = items[expected.len() + 1..]
            .iter()
            .map(|item| match *item {
                Value::Text(text) => pickle.objects.text(text),
                _ => panic!("a text was written"),
            })
            .collect();
        assert_eq!(texts, [long.as_str(), "again", "again"]);
    }

    #[test]
    fn long_containers_come_in_portions() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut dict = writer.begin_dict().unwrap();
        for number in 0..2500 {
            writer.key(&mut dict, &number.to_string()).unwrap();
            writer.pair(number, -number).unwrap();
        }
        writer.end_dict(&dict).unwrap();
        let bytes = writer.finish().unwrap();
        let pickle = read(&bytes[..], Limits::default(), KeepAll).unwrap();
        let Value::Dict(root) = pickle.root else { panic!("a dictionary was written") };
        assert_eq!(pickle.objects.dict(root).items().unwrap().len(), 2500);
    }
}
