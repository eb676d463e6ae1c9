//! Tables: for the page in Markdown, for the screen in columns.

use super::contestant::{Contestant, GAINS};

/// A figure for each contestant; none where it failed each time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) name: String,
    pub(super) values: Vec<Option<f64>>,
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

    /// The contestants side by side, and how many times a peer's figure is ours.
    pub(super) fn of_figures(heading: &str, all: &[Contestant], rows: &[Figures]) -> Self {
        let place = |title: &str| all.iter().position(|one| one.title == title);
        let gains = GAINS.iter().filter_map(|(peer, ours)| Some((place(peer)?, place(ours)?)));
        let gains: Vec<(usize, usize)> = gains.collect();
        let mut table = Self::new(&[heading]);
        table.headings.extend(all.iter().map(|one| one.title.to_owned()));
        table.headings.extend(gains.iter().map(|&(peer, ours)| {
            format!("{} / {}", all[peer].title.trim_start_matches("PyTorch "), all[ours].title)
        }));
        for Figures { name, values } in rows {
            let figures = values.iter().map(|one| one.map_or("no figure".to_owned(), digits));
            let ratios = gains.iter().map(|&(peer, ours)| {
                let ratio = values[peer].zip(values[ours]).map(|(peer, ours)| peer / ours);
                ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
            });
            table.push(std::iter::once(name.clone()).chain(figures).chain(ratios).collect());
        }
        table
    }

    pub(super) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|---|{}\n", "---:|".repeat(self.headings.len().saturating_sub(1)));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.headings) + &rule + &rows
    }

    pub(super) fn plain(&self) -> String {
        let lines = || std::iter::once(&self.headings).chain(&self.rows);
        let width = |at: usize| {
            lines()
                .filter_map(|row| row.get(at))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let mut text = String::new();
        for row in lines() {
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let padded =
                    if at == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
                text.push_str(&padded);
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_beside_what_ours_gain() {
        let all = ["PyTorch 2.11", "larder", "tight"].map(Contestant::named);
        let row = |name: &str, values| Figures { name: name.to_owned(), values };
        let rows = [
            row("hot block", vec![Some(300.0), Some(60.0), Some(66.0)]),
            row("other", vec![None, Some(1.0), None]),
        ];
        let table = Table::of_figures("workload", &all, &rows);
        assert_eq!(
            table.markdown(),
            "| workload | PyTorch 2.11 | larder | tight | 2.11 / larder | tight / larder |\n\
             |---|---:|---:|---:|---:|---:|\n\
             | hot block | 300 | 60.0 | 66.0 | 5.00 | 1.10 |\n\
             | other | no figure | 1.0 | no figure | - | - |\n"
        );
        let plain = table.plain();
        let lengths: Vec<usize> = plain.lines().map(str::len).collect();
        assert!(
            lengths.len() == 3 && lengths.iter().all(|&length| length == lengths[0]),
            "{plain}"
        );
    }
}
