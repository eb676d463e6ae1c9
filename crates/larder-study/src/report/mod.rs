//! Reports: what the commands print, for people and for programs.

pub mod answer;
pub mod driver;
pub mod json;
pub mod summary;
pub mod table;
