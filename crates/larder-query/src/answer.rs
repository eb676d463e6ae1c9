//! Answers: what a query came to, row by row.

use serde_json::{Value, json};

/// What stands in one place of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing.
    Empty,
    /// A whole number.
    Whole(i64),
    /// Any other number.
    Real(f64),
    /// A text.
    Text(String),
}

/// What a query came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows, each with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

impl Cell {
    /// As JSON has it.
    pub fn json(&self) -> Value {
        match self {
            Cell::Empty => Value::Null,
            Cell::Whole(number) => json!(number),
            Cell::Real(number) => json!(number),
            Cell::Text(text) => json!(text),
        }
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Empty => Ok(()),
            Cell::Whole(number) => number.fmt(f),
            Cell::Real(number) => number.fmt(f),
            Cell::Text(text) => f.write_str(text),
        }
    }
}

impl Answer {
    /// As JSON: the columns' names, and each row as a list.
    pub fn json(&self) -> Value {
        let row = |row: &Vec<Cell>| row.iter().map(Cell::json).collect::<Value>();
        json!({
            "columns": self.columns,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}
