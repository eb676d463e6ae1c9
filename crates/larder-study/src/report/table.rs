//! Tables: columns as wide as their widest cell, numbers to the right.

use std::fmt;

/// A table with a line of headings. The first column holds words, the others numbers.
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        Table { lines: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a line.
    pub fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.lines.push(Vec::from(cells));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.lines.iter().filter_map(|line| line.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for (number, line) in self.lines.iter().enumerate() {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let cell = if column == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("   {cell:>width$}")
                };
                text.push_str(&cell);
            }
            writeln!(f, "{}", text.trim_end())?;
            if number == 0 {
                writeln!(f, "{}", "-".repeat(widths.iter().sum::<usize>() + 3 * (columns - 1)))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["what", "now", "peak"]);
        table.push(["active bytes".to_owned(), "1".to_owned(), "12.00 MiB".to_owned()]);
        let expected = "what           now        peak\n\
                        ------------------------------\n\
                        active bytes     1   12.00 MiB\n";
        assert_eq!(table.to_string(), expected);
    }
}
