//! Tables: for the page in Markdown, for the screen in columns.

use super::contestant::{COUNT, Contestant};

/// What is held against each other.
const GAINS: [(Contestant, Contestant); 4] = [
    (Contestant::PyTorch, Contestant::Torch),
    (Contestant::PyTorch, Contestant::Larder),
    (Contestant::Newest, Contestant::Larder),
    (Contestant::Tight, Contestant::Larder),
];

/// A peer's title without its name.
fn version(title: &str) -> &str {
    title.trim_start_matches("PyTorch ")
}

/// A figure for each contestant; none where it failed each time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) name: String,
    pub(super) values: [Option<f64>; COUNT],
}

impl Figures {
    /// How many times a peer's figure is ours: the larger, the better for us.
    fn gain(&self, (peer, ours): (Contestant, Contestant)) -> String {
        match (self.values[peer as usize], self.values[ours as usize]) {
            (Some(peer), Some(ours)) if ours > 0.0 => format!("{:.2}", peer / ours),
            _ => "-".to_owned(),
        }
    }
}

/// A figure with as many digits as say something.
pub(super) fn digits(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Cells under headings; the first column is text and the others are numbers.
#[derive(Debug)]
pub(super) struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(headings: &[&str]) -> Self {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        Self { headings, rows: Vec::new() }
    }

    /// The contestants side by side, and what ours gain.
    pub(super) fn of_figures(heading: &str, rows: &[Figures]) -> Self {
        let titles = Contestant::ALL.map(Contestant::title);
        let gains =
            GAINS.map(|(peer, ours)| format!("{} / {}", version(peer.title()), ours.title()));
        let mut headings = vec![heading];
        headings.extend(titles);
        headings.extend(gains.iter().map(String::as_str));
        let mut table = Self::new(&headings);
        for row in rows {
            let values =
                row.values.map(|value| value.map_or_else(|| "no figure".to_owned(), digits));
            let mut cells = vec![row.name.clone()];
            cells.extend(values);
            cells.extend(GAINS.map(|pair| row.gain(pair)));
            table.push(cells);
        }
        table
    }

    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = line(&self.headings);
        text.push_str("|---|");
        text.push_str(&"---:|".repeat(self.headings.len().saturating_sub(1)));
        text.push('\n');
        self.rows.iter().for_each(|row| text.push_str(&line(row)));
        text
    }

    pub(super) fn plain(&self) -> String {
        let lines = || std::iter::once(&self.headings).chain(&self.rows);
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|at| {
                lines()
                    .filter_map(|row| row.get(at))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in lines() {
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                text.push_str(&match at {
                    0 => format!("{cell:width$}"),
                    _ => format!("  {cell:>width$}"),
                });
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |name: &str, values| Figures { name: name.to_owned(), values };
        Table::of_figures(
            "workload",
            &[
                row("hot block", [Some(300.0), Some(450.0), Some(150.0), Some(60.0), Some(66.0)]),
                row("other", [None, None, Some(99.94), Some(1.0), None]),
            ],
        )
    }

    #[test]
    fn the_page_gets_markdown() {
        assert_eq!(
            table().markdown(),
            "| workload | PyTorch 2.11 | PyTorch 2.15 | torch-2.11 | larder | tight \
             | 2.11 / torch-2.11 | 2.11 / larder | 2.15 / larder | tight / larder |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n\
             | hot block | 300 | 450 | 150 | 60.0 | 66.0 | 2.00 | 5.00 | 7.50 | 1.10 |\n\
             | other | no figure | no figure | 99.9 | 1.0 | no figure | - | - | - | - |\n"
        );
    }

    #[test]
    fn the_screen_gets_columns() {
        let plain = table().plain();
        let lengths: Vec<usize> = plain.lines().map(str::len).collect();
        assert_eq!(lengths.len(), 3);
        assert!(lengths.iter().all(|&length| length == lengths[0]), "{plain}");
        assert!(plain.contains("hot block           300"), "{plain}");
    }
}
