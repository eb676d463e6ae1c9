//! Free: what is free, in the order in which it is looked for.

pub(super) mod fit;
pub(super) mod free_index;
pub(super) mod order;
pub(super) mod rows;
pub(super) mod size_stacks;
