//! The program `larder`, as a library.
#![forbid(unsafe_code)]
