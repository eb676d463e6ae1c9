//! Machine: the stack machine that a pickle is a program for.

use std::io::Read;

use super::error::{Failure, PickleErrorKind};
use super::input::Input;
use super::memo::Memo;
use super::objects::{Content, Objects, ShelfError};
use super::value::{ListId, Value, integer_from_bytes};
use super::{Limits, Pickle, Sink, opcode};

/// How often the memory in use is compared with the limit.
const CHECK_EVERY_BYTES: u64 = 64 << 10;

pub(super) struct Machine<R, S> {
    input: Input<R>,
    stack: Vec<Value>,
    /// Heights of the stack at which a mark stands.
    marks: Vec<usize>,
    memo: Memo,
    objects: Objects,
    sink: S,
    limits: Limits,
    /// The offset of the opcode that is being carried out.
    offset_bytes: u64,
}

type Done = Result<(), Failure>;

impl<R: Read, S: Sink> Machine<R, S> {
    pub(super) fn new(reader: R, limits: Limits, sink: S) -> Machine<R, S> {
        Machine {
            input: Input::new(reader, limits.length_bytes, limits.memory_bytes),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            objects: Objects::new(sink.vocabulary()),
            sink,
            limits,
            offset_bytes: 0,
        }
    }

    /// Runs the whole program. No opcode runs another one, so depth costs no host stack.
    pub(super) fn run(mut self) -> Result<Pickle<S>, Failure> {
        let mut check_at_bytes = CHECK_EVERY_BYTES;
        loop {
            self.offset_bytes = self.input.offset();
            if self.offset_bytes >= check_at_bytes {
                self.check_memory()?;
                check_at_bytes = self.offset_bytes + CHECK_EVERY_BYTES;
            }
            let opcode = self.input.byte()?;
            if opcode == opcode::STOP {
                break;
            }
            self.step(opcode)?;
        }
        let root = self.pop()?;
        self.input.finish()?;
        Ok(Pickle { root, objects: self.objects, sink: self.sink })
    }

    fn check_memory(&self) -> Done {
        let machine_bytes = self.stack.capacity() * size_of::<Value>() + self.marks.capacity() * 8;
        let memory_bytes = machine_bytes as u64
            + self.memo.memory_bytes()
            + self.objects.memory_bytes()
            + self.sink.memory_bytes();
        let limit_bytes = self.limits.memory_bytes;
        if memory_bytes > limit_bytes {
            return Err(self.error(PickleErrorKind::MemoryLimit { limit_bytes }));
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, opcode: u8) -> Done {
        use opcode::{
            ADDITEMS, APPEND, APPENDS, BINBYTES, BINBYTES8, BINFLOAT, BINGET, BININT, BININT1,
            BININT2, BINPUT, BINSTRING, BINUNICODE, BINUNICODE8, BYTEARRAY8, DICT, DUP, EMPTY_DICT,
            EMPTY_LIST, EMPTY_SET, EMPTY_TUPLE, FLOAT, FRAME, FROZENSET, GET, INT, LIST, LONG,
            LONG_BINGET, LONG_BINPUT, LONG1, LONG4, MARK, MEMOIZE, NEWFALSE, NEWTRUE, NONE, POP,
            POP_MARK, PROTO, PUT, SETITEM, SETITEMS, SHORT_BINBYTES, SHORT_BINSTRING,
            SHORT_BINUNICODE, STRING, TUPLE, TUPLE1, TUPLE2, TUPLE3, UNICODE,
        };
        match opcode {
            MARK => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            BININT1 => {
                let number = self.input.byte()?;
                self.stack.push(Value::Int(i64::from(number)));
                Ok(())
            }
            GET | BINGET | LONG_BINGET => self.recall(opcode),
            PUT | BINPUT | LONG_BINPUT | MEMOIZE => self.memoise(opcode),
            NONE | NEWTRUE | NEWFALSE | INT | BININT | BININT2 | LONG | LONG1 | LONG4 | FLOAT
            | BINFLOAT => {
                let value = self.number(opcode)?;
                self.stack.push(value);
                Ok(())
            }
            STRING | BINSTRING | SHORT_BINSTRING | UNICODE | BINUNICODE | SHORT_BINUNICODE
            | BINUNICODE8 => self.text(opcode),
            BINBYTES | SHORT_BINBYTES | BINBYTES8 | BYTEARRAY8 => self.bytes(opcode),
            EMPTY_DICT | EMPTY_LIST | EMPTY_SET | EMPTY_TUPLE => self.empty(opcode),
            SETITEM | SETITEMS => self.set_items(opcode),
            APPEND | APPENDS | ADDITEMS => self.append(opcode),
            TUPLE | TUPLE1 | TUPLE2 | TUPLE3 => self.tuple(opcode),
            DICT | LIST | FROZENSET => self.make_from_mark(opcode),
            POP | POP_MARK | DUP => self.rearrange(opcode),
            PROTO => match self.input.byte()? {
                0..=5 => Ok(()),
                protocol => Err(self.error(PickleErrorKind::Protocol(protocol))),
            },
            // Frames only help a reader to buffer; ours buffers anyway.
            FRAME => self.input.array::<8>().map(|_| ()),
            _ => Err(self.refusal(opcode)),
        }
    }

    #[cold]
    fn refusal(&self, opcode: u8) -> Failure {
        self.error(if let Some(name) = opcode::name_if_it_runs_code(opcode) {
            PickleErrorKind::RunsCode(name)
        } else if let Some(name) = opcode::name_if_out_of_band(opcode) {
            PickleErrorKind::Unsupported(name)
        } else {
            PickleErrorKind::UnknownOpcode(opcode)
        })
    }

    #[cold]
    fn error(&self, kind: PickleErrorKind) -> Failure {
        Failure::new(self.offset_bytes, kind)
    }

    #[cold]
    fn malformed(&self, what: &'static str) -> Failure {
        self.error(PickleErrorKind::Malformed(what))
    }

    #[cold]
    fn shelf_error(&self, error: ShelfError) -> Failure {
        self.malformed(match error {
            ShelfError::Replaced => "a record is changed after it was complete",
            ShelfError::Full => "it holds more objects than can be numbered",
        })
    }

    /// How many values stand above the last mark.
    fn height(&self) -> usize {
        self.stack.len() - self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value, Failure> {
        if self.height() == 0 {
            return Err(self.malformed("the stack is empty"));
        }
        self.stack.pop().ok_or_else(|| self.malformed("the stack is empty"))
    }

    fn top(&self) -> Result<Value, Failure> {
        if self.height() == 0 {
            return Err(self.malformed("the stack is empty"));
        }
        self.stack.last().copied().ok_or_else(|| self.malformed("the stack is empty"))
    }

    fn pop_mark(&mut self) -> Result<usize, Failure> {
        self.marks.pop().ok_or_else(|| self.malformed("there is no mark on the stack"))
    }

    #[inline]
    fn recall(&mut self, opcode: u8) -> Done {
        let number = match opcode {
            opcode::BINGET => u32::from(self.input.byte()?),
            opcode::LONG_BINGET => u32::from_le_bytes(self.input.array()?),
            _ => self.memo_number_line()?,
        };
        match self.memo.get(number) {
            Some(value) => self.stack.push(value),
            None => return Err(self.malformed("it refers to an object that it never gave")),
        }
        Ok(())
    }

    #[inline]
    fn memoise(&mut self, opcode: u8) -> Done {
        let value = self.top()?;
        let number = match opcode {
            opcode::MEMOIZE => {
                self.memo.push(value);
                return Ok(());
            }
            opcode::BINPUT => u32::from(self.input.byte()?),
            opcode::LONG_BINPUT => u32::from_le_bytes(self.input.array()?),
            _ => self.memo_number_line()?,
        };
        self.memo.put(number, value);
        Ok(())
    }

    fn memo_number_line(&mut self) -> Result<u32, Failure> {
        let number = parse_line(self.input.line()?);
        number.ok_or_else(|| self.malformed("the number of an object is not a number"))
    }

    fn number(&mut self, opcode: u8) -> Result<Value, Failure> {
        Ok(match opcode {
            opcode::BININT => Value::Int(i64::from(i32::from_le_bytes(self.input.array()?))),
            opcode::BININT2 => Value::Int(i64::from(u16::from_le_bytes(self.input.array()?))),
            opcode::LONG1 => {
                let count = self.input.byte()?;
                integer_from_bytes(self.input.bytes(u64::from(count))?)
            }
            opcode::LONG4 => {
                let count = i32::from_le_bytes(self.input.array()?);
                let count = u64::try_from(count)
                    .map_err(|_| self.malformed("an integer has a negative length"))?;
                integer_from_bytes(self.input.bytes(count)?)
            }
            opcode::BINFLOAT => Value::Float(f64::from_be_bytes(self.input.array()?)),
            opcode::NEWTRUE => Value::Bool(true),
            opcode::NEWFALSE => Value::Bool(false),
            opcode::NONE => Value::None,
            _ => return self.number_line(opcode),
        })
    }

    fn number_line(&mut self, opcode: u8) -> Result<Value, Failure> {
        let line = self.input.line()?;
        let value = match (opcode, line) {
            (opcode::INT, b"00") => Some(Value::Bool(false)),
            (opcode::INT, b"01") => Some(Value::Bool(true)),
            (opcode::FLOAT, _) => parse_line(line).map(Value::Float),
            _ => {
                let digits = line.strip_suffix(b"L").unwrap_or(line);
                let integer = parse_line(digits).map(Value::Int);
                integer.or_else(|| parse_line(digits).map(Value::Float))
            }
        };
        value.ok_or_else(|| self.malformed("a number cannot be read"))
    }

    /// The length that stands before a text or bytes object.
    fn length(&mut self, opcode: u8) -> Result<u64, Failure> {
        Ok(match opcode {
            opcode::SHORT_BINUNICODE | opcode::SHORT_BINBYTES | opcode::SHORT_BINSTRING => {
                u64::from(self.input.byte()?)
            }
            opcode::BINUNICODE | opcode::BINBYTES | opcode::BINSTRING => {
                u64::from(u32::from_le_bytes(self.input.array()?))
            }
            _ => u64::from_le_bytes(self.input.array()?),
        })
    }

    fn text(&mut self, opcode: u8) -> Done {
        let text = match opcode {
            opcode::STRING | opcode::UNICODE => {
                let line = self.input.line()?;
                let text = if opcode == opcode::STRING { unquoted(line) } else { Some(line) };
                match text.filter(|text| !text.contains(&b'\\')) {
                    Some(text) => self.objects.intern_text(text),
                    None => {
                        return Err(self.malformed(
                            "a text of protocol 0 has no quotes or has escapes in it; \
                             write the file with protocol 2 or later",
                        ));
                    }
                }
            }
            _ => {
                let length = self.length(opcode)?;
                self.objects.intern_text(self.input.bytes(length)?)
            }
        };
        let id = text.map_err(|error| self.shelf_error(error))?;
        self.stack.push(Value::Text(id));
        Ok(())
    }

    fn bytes(&mut self, opcode: u8) -> Done {
        let length = self.length(opcode)?;
        let bytes = self.objects.intern_bytes(self.input.bytes(length)?);
        let id = bytes.map_err(|error| self.shelf_error(error))?;
        self.stack.push(Value::Bytes(id));
        Ok(())
    }

    fn empty(&mut self, opcode: u8) -> Done {
        let value = match opcode {
            opcode::EMPTY_DICT => self.objects.add_dict().map(Value::Dict),
            opcode::EMPTY_LIST => self.objects.add_list().map(Value::List),
            opcode::EMPTY_SET => self.objects.add_list().map(Value::Set),
            _ => self.objects.add_tuple(&[]).map(Value::Tuple),
        };
        let value = value.map_err(|error| self.shelf_error(error))?;
        self.stack.push(value);
        Ok(())
    }

    /// Takes the position of the items that an opcode adds to the container below them: those
    /// above the mark, or with no mark the last `count`.
    fn items_start(&mut self, count: Option<usize>) -> Result<usize, Failure> {
        let start = match count {
            None => self.pop_mark()?,
            Some(count) if self.height() > count => self.stack.len() - count,
            Some(_) => return Err(self.malformed("the stack is empty")),
        };
        // The container itself must not lie below an older mark.
        if start <= self.marks.last().copied().unwrap_or(0) {
            return Err(self.malformed("items are added to nothing"));
        }
        Ok(start)
    }

    fn set_items(&mut self, opcode: u8) -> Done {
        let start = self.items_start((opcode == opcode::SETITEM).then_some(2))?;
        let Value::Dict(id) = self.stack[start - 1] else {
            return Err(self.malformed("a key is set in something that is not a dict"));
        };
        let pairs = &self.stack[start..];
        if !pairs.len().is_multiple_of(2) {
            return Err(self.malformed("a key has no value"));
        }
        if self.objects.dict(id) == Content::Items(&[])
            && let Some(token) = self.sink.dict_filled(&mut self.objects, pairs)
        {
            self.objects.replace_dict(id, token);
        } else {
            let extended = self.objects.extend_dict(id, pairs);
            extended.map_err(|error| self.shelf_error(error))?;
        }
        self.stack.truncate(start);
        Ok(())
    }

    fn append(&mut self, opcode: u8) -> Done {
        let start = self.items_start((opcode == opcode::APPEND).then_some(1))?;
        let ((opcode::ADDITEMS, Value::Set(id))
        | (opcode::APPEND | opcode::APPENDS, Value::List(id))) = (opcode, self.stack[start - 1])
        else {
            return Err(self.malformed("an item is added to something that is not a list"));
        };
        let extended = self.objects.extend_list(id, &self.stack[start..]);
        extended.map_err(|error| self.shelf_error(error))?;
        self.stack.truncate(start);
        Ok(())
    }

    fn tuple(&mut self, opcode: u8) -> Done {
        let count = match opcode {
            opcode::TUPLE1 => 1,
            opcode::TUPLE2 => 2,
            opcode::TUPLE3 => 3,
            _ => {
                let start = self.pop_mark()?;
                self.stack.len() - start
            }
        };
        if self.height() < count {
            return Err(self.malformed("the stack is empty"));
        }
        let start = self.stack.len() - count;
        let tuple = self.objects.add_tuple(&self.stack[start..]);
        let id = tuple.map_err(|error| self.shelf_error(error))?;
        self.stack.truncate(start);
        self.stack.push(Value::Tuple(id));
        Ok(())
    }

    /// Makes a new container of all items above the mark.
    fn make_from_mark(&mut self, opcode: u8) -> Done {
        let start = self.pop_mark()?;
        let made = if opcode == opcode::DICT {
            if !(self.stack.len() - start).is_multiple_of(2) {
                return Err(self.malformed("a key has no value"));
            }
            let dict = self.objects.add_dict();
            dict.and_then(|id| {
                let pairs = &self.stack[start..];
                match self.sink.dict_filled(&mut self.objects, pairs) {
                    Some(token) => self.objects.replace_dict(id, token),
                    None => self.objects.extend_dict(id, pairs)?,
                }
                Ok(Value::Dict(id))
            })
        } else {
            let list = self.objects.add_list();
            let kind: fn(ListId) -> Value =
                if opcode == opcode::LIST { Value::List } else { Value::Set };
            list.and_then(|id| {
                self.objects.extend_list(id, &self.stack[start..])?;
                Ok(kind(id))
            })
        };
        let value = made.map_err(|error| self.shelf_error(error))?;
        self.stack.truncate(start);
        self.stack.push(value);
        Ok(())
    }

    fn rearrange(&mut self, opcode: u8) -> Done {
        match opcode {
            opcode::POP_MARK => {
                let start = self.pop_mark()?;
                self.stack.truncate(start);
            }
            // Python's picklers use POP to take back a mark, too.
            opcode::POP if self.height() == 0 => {
                self.pop_mark()?;
            }
            opcode::POP => {
                self.pop()?;
            }
            _ => {
                let value = self.top()?;
                self.stack.push(value);
            }
        }
        Ok(())
    }
}

fn parse_line<T: std::str::FromStr>(line: &[u8]) -> Option<T> {
    std::str::from_utf8(line).ok()?.trim_end_matches('\r').parse().ok()
}

/// The text between two equal quotes.
fn unquoted(line: &[u8]) -> Option<&[u8]> {
    match line {
        [b'\'', text @ .., b'\''] | [b'"', text @ .., b'"'] => Some(text),
        _ => None,
    }
}
