//! A run as one page: what a program did with its memory, with everything in one file, so that a
//! browser shows it with no network.
//!
//! [`Subject::of`] replays a file and gathers what there is to say; [`save`] writes one of them, or
//! two side by side. The page itself is TypeScript under `page/`, built into `page/dist/page.html`,
//! which is part of this crate; what it is given is a JSON text of facts, and tables of numbers
//! that it unpacks when it needs them ([`packed`](self)).
#![forbid(unsafe_code)]

mod arenas;
mod bands;
mod facts;
mod packed;
mod page;
mod ranks;
mod subject;

pub use page::{save, write};
pub use ranks::save_ranks;
pub use subject::{Question, Subject};
