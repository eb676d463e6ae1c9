//! The format: a header and cells, all of 64 bytes, little-endian.
//!
//! A cell is its kind, an action, 16 bits for the device or a count, its number modulo 2³², and 56
//! bytes that depend on the kind. The kind is written last, so that a cell is there or it is not;
//! where it is 0 the tape ends. Texts, frames, stacks and notes are written once, before the first
//! event that names them; they are named by numbers from 1 on, and 0 is none.

/// The first bytes of a tape, with the version of the format in the last.
pub(crate) const MAGIC: [u8; 8] = *b"LARDTAP1";
/// The size of the header and of each cell.
pub(crate) const CELL_BYTES: usize = 64;
const BODY: usize = 8;

/// An event: address, size, stream, time, the two numbers of the pool, stack, note.
pub(crate) const EVENT: u8 = 1;
/// A piece of a text: the text's number, its length, and up to 48 bytes of it.
pub(crate) const TEXT: u8 = 2;
/// A frame: its number, the texts of its name and its file, its line.
pub(crate) const FRAME: u8 = 3;
/// A piece of a stack: the stack's number, how many frames it has, and up to 12 of them.
pub(crate) const STACK: u8 = 4;
/// A note: its number, the texts of what was compiled, of the remark and of what the allocator
/// says.
pub(crate) const NOTE: u8 = 5;

/// How many bytes of a text one cell takes.
pub(crate) const TEXT_PIECE: usize = 48;
/// How many frames of a stack one cell takes.
pub(crate) const STACK_PIECE: usize = 12;

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell([u8; CELL_BYTES]);

impl Cell {
    pub(crate) fn new(kind: u8, action: u8, count: u16, number: u32) -> Cell {
        let mut bytes = [0; CELL_BYTES];
        bytes[0] = kind;
        bytes[1] = action;
        bytes[2..4].copy_from_slice(&count.to_le_bytes());
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        Cell(bytes)
    }

    pub(crate) fn from_bytes(bytes: &[u8; CELL_BYTES]) -> Cell {
        Cell(*bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; CELL_BYTES] {
        &self.0
    }

    pub(crate) fn kind(&self) -> u8 {
        self.0[0]
    }

    pub(crate) fn action(&self) -> u8 {
        self.0[1]
    }

    pub(crate) fn count(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }

    pub(crate) fn number(&self) -> u32 {
        u32::from_le_bytes([self.0[4], self.0[5], self.0[6], self.0[7]])
    }

    /// The 64-bit word at this place of the body.
    pub(crate) fn long(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[BODY + 8 * at..][..8]);
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn set_long(&mut self, at: usize, word: u64) {
        self.0[BODY + 8 * at..][..8].copy_from_slice(&word.to_le_bytes());
    }

    /// The 32-bit word at this place of the body.
    pub(crate) fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[BODY + 4 * at..][..4]);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn set_word(&mut self, at: usize, word: u32) {
        self.0[BODY + 4 * at..][..4].copy_from_slice(&word.to_le_bytes());
    }

    /// The bytes of a piece of text.
    pub(crate) fn piece(&self) -> &[u8] {
        &self.0[BODY + 8..]
    }

    pub(crate) fn set_piece(&mut self, piece: &[u8]) {
        self.0[BODY + 8..][..piece.len()].copy_from_slice(piece);
    }
}
