//! Tables in Markdown, as pages and the screen show them.

/// Cells under headings.
#[derive(Debug)]
pub(crate) struct Table {
    /// The headings, and the line under them.
    head: String,
    rows: String,
}

impl Table {
    /// A table with these headings, between them ` | `. The first columns are texts, as many as
    /// this, and the others are numbers.
    pub(crate) fn new(headings: &str, texts: usize) -> Self {
        let numbers = headings.split(" | ").count().saturating_sub(texts);
        let rule = "---|".repeat(texts) + &"---:|".repeat(numbers);
        Self { head: format!("| {headings} |\n|{rule}\n"), rows: String::new() }
    }

    pub(crate) fn push(&mut self, cells: &[String]) {
        self.rows += &format!("| {} |\n", cells.join(" | "));
    }

    pub(crate) fn markdown(&self) -> String {
        format!("{}{}", self.head, self.rows)
    }
}
