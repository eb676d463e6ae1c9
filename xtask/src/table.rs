//! Tables, as pages and the screen show them.

/// Cells under headings; the first column is text and the others are numbers.
#[derive(Debug)]
pub(crate) struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let headings = headings.iter().map(|&heading| heading.to_owned()).collect();
        Self { headings, rows: Vec::new() }
    }

    pub(crate) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// In Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|---|{}\n", "---:|".repeat(self.headings.len().saturating_sub(1)));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.headings) + &rule + &rows
    }

    /// In columns, for the screen.
    pub(crate) fn plain(&self) -> String {
        let lines = || std::iter::once(&self.headings).chain(&self.rows);
        let length =
            |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
        let mut text = String::new();
        for row in lines() {
            for (at, cell) in row.iter().enumerate() {
                let width = lines().map(|row| length(row, at)).max().unwrap_or(0);
                let padded =
                    if at == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
                text.push_str(&padded);
            }
            text.push('\n');
        }
        text
    }
}
