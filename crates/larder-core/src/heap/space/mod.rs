//! Space: the arena of blocks, the segments they lie in, and the way from an address to its block.

pub(crate) mod block;
pub(super) mod cover;
pub(super) mod fine_starts;
pub(super) mod hints;
pub(crate) mod segment;
