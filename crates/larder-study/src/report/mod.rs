//! Reports: what the commands print, for people and for programs.

pub mod answer;
pub mod beside;
pub mod driver;
pub mod explained;
pub mod explained_json;
pub mod fitted;
pub mod grown;
pub mod host_memory;
pub mod json;
pub mod live;
pub mod outlook;
pub mod picture;
pub mod quote;
pub mod ranked;
pub mod shown;
pub mod summary;
pub mod table;
pub mod tuned;
pub mod verdict;
pub mod visible;
