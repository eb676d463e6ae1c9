//! The program `larder`.
fn main() {}
