//! Waiting: uses by other streams, frees that they hold up, and what a capture changes about both.

pub(super) mod capture;
pub(super) mod held_frees;
pub(super) mod pending;
