//! A recorded program as tables: its events, its blocks and their stacks, asked by SQL and written
//! as Parquet. docs/commands.md describes the tables.
#![forbid(unsafe_code)]

mod answer;
mod parquet_file;
mod sql;
mod tables;

pub use answer::{Answer, Cell};
pub use parquet_file::{ParquetError, write_parquet};
pub use sql::{Database, QueryError};
pub use tables::{Column, Table, Values, tables};
