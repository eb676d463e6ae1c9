//! Pools: where blocks are looked for. Each pool has a lane for each stream; private pools are set
//! apart for a capture or by a program.

pub mod lane_state;
pub(super) mod name_table;
pub(super) mod pool;
pub(crate) mod private;
pub(super) mod routing;
pub(crate) mod symmetric;
