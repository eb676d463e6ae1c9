//! Tables: columns as wide as their widest cell, numbers to the right. Where a terminal is narrower
//! than that, columns that can be spared are left out, headings take more lines, and words are
//! broken.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many columns the terminal has that tables are shown in; 0 where there is none.
static TERMINAL: AtomicUsize = AtomicUsize::new(0);
/// The first column has no less, where columns can be spared for it.
const FIRST_MIN: usize = 24;

/// Says how many columns the terminal has, from now on and for all tables.
pub fn fit_terminal(columns: usize) {
    TERMINAL.store(columns, Ordering::Relaxed);
}

/// A table with a line of headings. The first column holds words, the others numbers.
pub struct Table {
    lines: Vec<Vec<String>>,
    /// The columns that are left out first where there is too little room, by their headings.
    spared: Vec<&'static str>,
}

impl Table {
    /// A table with these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        Table { lines: vec![headings.map(str::to_owned).to_vec()], spared: Vec::new() }
    }

    /// The same table, of which these columns are left out, in this order, where it is too wide.
    #[must_use]
    pub fn sparing<const N: usize>(self, headings: [&'static str; N]) -> Table {
        Table { spared: headings.to_vec(), ..self }
    }

    /// Adds a line.
    pub fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.lines.push(Vec::from(cells));
    }

    /// The table as it is in so many columns.
    fn within(&self, columns: usize) -> String {
        if width(&widths(&self.lines), WIDE) <= columns {
            return laid_out(&self.lines, WIDE);
        }
        let mut lines = self.lines.clone();
        let mut spared = self.spared.iter();
        loop {
            let rest = width(&widths(&headed(&lines, usize::MAX))[1..], NARROW) + NARROW;
            let first = columns.saturating_sub(rest);
            let next = if first < FIRST_MIN { spared.next() } else { None };
            let Some(heading) = next else {
                return laid_out(&headed(&lines, first.max(8)), NARROW);
            };
            if let Some(at) = lines[0].iter().position(|cell| cell == heading) {
                for line in &mut lines {
                    line.remove(at);
                }
            }
        }
    }
}

/// How far columns are apart, and how far where there is little room.
const WIDE: usize = 3;
const NARROW: usize = 2;

/// The width of all columns together.
fn width(widths: &[usize], gap: usize) -> usize {
    widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1)
}

fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        let parts = cells.flat_map(|cell| cell.split('\n'));
        parts.map(|part| part.chars().count()).max().unwrap_or(0)
    };
    (0..columns).map(wide).collect()
}

/// The lines with headings of one word a line, and a first column of no more than so many letters.
fn headed(lines: &[Vec<String>], first: usize) -> Vec<Vec<String>> {
    let mut headed = lines.to_vec();
    for cell in headed[0].iter_mut().skip(1) {
        *cell = cell.replace(' ', "\n");
    }
    for line in &mut headed {
        line[0] = broken(&line[0], first);
    }
    headed
}

/// A text in lines of no more than so many letters, broken behind spaces, commas, colons and
/// strokes where there are any.
fn broken(text: &str, most: usize) -> String {
    let mut lines: Vec<String> = vec![String::new()];
    for part in text.split_inclusive([' ', ',', ':', '_']) {
        for letter_or_part in pieces(part, most) {
            let line = lines.last_mut().expect("there is always one");
            let length = line.chars().count();
            let added = letter_or_part.trim_end().chars().count();
            if length > 0 && length + added > most {
                lines.push(letter_or_part);
            } else {
                line.push_str(&letter_or_part);
            }
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// A word in pieces that fit.
fn pieces(word: &str, most: usize) -> Vec<String> {
    if word.chars().count() <= most {
        return vec![word.to_owned()];
    }
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(most.max(1)).map(|chunk| chunk.iter().collect()).collect()
}

fn laid_out(lines: &[Vec<String>], gap: usize) -> String {
    let widths = widths(lines);
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let parts: Vec<Vec<&str>> = line.iter().map(|cell| cell.split('\n').collect()).collect();
        let height = parts.iter().map(Vec::len).max().unwrap_or(1);
        for row in 0..height {
            let mut shown = String::new();
            for (column, (cell, width)) in parts.iter().zip(&widths).enumerate() {
                // Headings stand on the line; of other cells the first part stands beside the rest.
                let above = if number == 0 { height - cell.len() } else { 0 };
                let part = row.checked_sub(above).and_then(|at| cell.get(at)).unwrap_or(&"");
                shown.push_str(&if column == 0 {
                    format!("{part:<width$}")
                } else {
                    format!("{:gap$}{part:>width$}", "")
                });
            }
            text.push_str(&format!("{}\n", shown.trim_end()));
        }
        if number == 0 {
            text.push_str(&format!("{}\n", "-".repeat(self::width(&widths, gap))));
        }
    }
    text
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TERMINAL.load(Ordering::Relaxed) {
            0 => f.write_str(&laid_out(&self.lines, WIDE)),
            columns => f.write_str(&self.within(columns)),
        }
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

    #[test]
    fn a_table_that_is_too_wide_says_less() {
        let headings = ["settings", "peak reserved", "driver time"];
        let mut table = Table::new(headings).sparing(["driver time"]);
        table.push(["expandable_segments:True", "12.19 GiB", "33.5 ms"].map(str::to_owned));
        table.push(["(default)", "14.76 GiB", "13.2 ms"].map(str::to_owned));
        assert_eq!(table.within(80), table.to_string(), "there is room");
        for columns in [24, 30, 36, 40, 47, 54] {
            let text = table.within(columns);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest.is_some_and(|widest| widest <= columns), "{columns}:\n{text}");
            assert!(text.contains("12.19 GiB"), "{text}");
        }
        assert!(table.within(47).contains("33.5 ms") && !table.within(38).contains("33.5 ms"));
        let joined: String = table.within(30).split_whitespace().collect();
        assert!(joined.contains("expandable_") && joined.contains("True"), "{joined}");
    }
}
