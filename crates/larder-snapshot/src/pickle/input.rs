//! Input: the bytes of a pickle, through a buffer of our own that knows its offset.

use std::io::{ErrorKind, Read};

use super::error::{Failure, PickleErrorKind};

const BUFFER_BYTES: usize = 256 << 10;

/// A reader with a buffer. Lengths found in the file are never trusted: memory grows only with
/// bytes that have arrived.
pub(super) struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    position: usize,
    filled: usize,
    /// The offset in the file of the first byte of the buffer.
    buffer_offset: u64,
    /// Holds one text that does not lie in the buffer in one piece.
    scratch: Vec<u8>,
    length_limit_bytes: u64,
    memory_limit_bytes: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(reader: R, length_limit_bytes: u64, memory_limit_bytes: u64) -> Input<R> {
        Input {
            reader,
            buffer: vec![0; BUFFER_BYTES],
            position: 0,
            filled: 0,
            buffer_offset: 0,
            scratch: Vec::new(),
            length_limit_bytes,
            memory_limit_bytes,
        }
    }

    /// The offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.buffer_offset + self.position as u64
    }

    fn error(&self, kind: PickleErrorKind) -> Failure {
        Failure::new(self.offset(), kind)
    }

    /// Reads the next piece into the buffer, which must be used up. False at the end of the data.
    fn refill(&mut self) -> Result<bool, Failure> {
        debug_assert_eq!(self.position, self.filled);
        self.buffer_offset += self.filled as u64;
        self.position = 0;
        self.filled = 0;
        if self.buffer_offset > self.length_limit_bytes {
            let limit_bytes = self.length_limit_bytes;
            return Err(self.error(PickleErrorKind::LengthLimit { limit_bytes }));
        }
        loop {
            match self.reader.read(&mut self.buffer) {
                Ok(count) => {
                    self.filled = count;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(self.error(PickleErrorKind::Truncated));
                }
                Err(error) => return Err(self.error(PickleErrorKind::Read(error))),
            }
        }
    }

    /// Asks the reader once more if nothing is left over, so that a reader which checks its data
    /// at the end, as gzip does, gets to do so.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        if self.position == self.filled {
            self.refill()?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Failure> {
        if self.position < self.filled {
            let byte = self.buffer[self.position];
            self.position += 1;
            return Ok(byte);
        }
        self.byte_after_refill()
    }

    #[cold]
    fn byte_after_refill(&mut self) -> Result<u8, Failure> {
        if !self.refill()? {
            return Err(self.error(PickleErrorKind::Truncated));
        }
        self.position = 1;
        Ok(self.buffer[0])
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let ready = &self.buffer[self.position..self.filled];
        if let Some(array) = ready.first_chunk::<N>() {
            self.position += N;
            return Ok(*array);
        }
        self.array_bytewise()
    }

    #[cold]
    fn array_bytewise<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let mut array = [0; N];
        for byte in &mut array {
            *byte = self.byte()?;
        }
        Ok(array)
    }

    /// The next `count` bytes.
    #[inline]
    pub(super) fn bytes(&mut self, count: u64) -> Result<&[u8], Failure> {
        if count <= (self.filled - self.position) as u64 {
            let start = self.position;
            self.position += count as usize;
            return Ok(&self.buffer[start..self.position]);
        }
        self.bytes_in_pieces(count)
    }

    fn bytes_in_pieces(&mut self, count: u64) -> Result<&[u8], Failure> {
        // One very long text must not keep its memory for the rest of the reading.
        self.scratch = Vec::new();
        let mut left = count;
        while left > 0 {
            if self.position == self.filled && !self.refill()? {
                return Err(self.error(PickleErrorKind::Truncated));
            }
            let piece = left.min((self.filled - self.position) as u64) as usize;
            self.keep(piece)?;
            left -= piece as u64;
        }
        Ok(&self.scratch)
    }

    /// The bytes up to the next line feed, without it.
    pub(super) fn line(&mut self) -> Result<&[u8], Failure> {
        self.scratch.clear();
        loop {
            if self.position == self.filled && !self.refill()? {
                return Err(self.error(PickleErrorKind::Truncated));
            }
            let ready = &self.buffer[self.position..self.filled];
            if let Some(length) = ready.iter().position(|&byte| byte == b'\n') {
                self.keep(length)?;
                self.position += 1;
                return Ok(&self.scratch);
            }
            self.keep(ready.len())?;
        }
    }

    /// Moves `count` bytes, which the buffer must hold, to the scratch space.
    fn keep(&mut self, count: usize) -> Result<(), Failure> {
        // The text is copied once more when it is interned.
        if (self.scratch.len() + count) as u64 * 2 > self.memory_limit_bytes {
            let limit_bytes = self.memory_limit_bytes;
            return Err(self.error(PickleErrorKind::MemoryLimit { limit_bytes }));
        }
        let piece = &self.buffer[self.position..self.position + count];
        self.scratch.extend_from_slice(piece);
        self.position += count;
        Ok(())
    }
}
