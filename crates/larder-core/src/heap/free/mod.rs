//! Free: what is free, in the order in which it is looked for.

pub(super) mod free_index;
pub(super) mod order;
pub(super) mod rows;
pub(super) mod shelving;
pub(super) mod size_stacks;
