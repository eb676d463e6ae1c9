//! Tables of figures, for the screen and for a file.

use std::path::PathBuf;
use std::{env, fs};

use crate::rig::Explain;

/// Where results go: the folder that the variable OUT names, or `proof-results`.
pub(crate) fn out_folder() -> PathBuf {
    env::var_os("OUT").map_or_else(|| PathBuf::from("proof-results"), PathBuf::from)
}

/// A table with a name.
pub(crate) struct Figures {
    name: &'static str,
    rows: Vec<Vec<String>>,
}

impl Figures {
    pub(crate) fn new(name: &'static str, heads: &[&str]) -> Figures {
        Figures { name, rows: vec![heads.iter().map(|&head| head.to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    /// The table in Markdown.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows[0].len();
        let width = |at: usize| self.rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
            text += &format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
            if number == 0 {
                let rules = widths.iter().map(|&width| "-".repeat(width));
                text += &format!("| {} |\n", rules.collect::<Vec<_>>().join(" | "));
            }
        }
        text
    }

    /// Prints the table and writes it to its file.
    pub(crate) fn write(&self) -> Result<(), String> {
        let text = self.text();
        eprint!("{text}");
        let folder = out_folder();
        fs::create_dir_all(&folder).or_say("the folder of results")?;
        fs::write(folder.join(format!("{}.md", self.name)), text).or_say("a table of figures")
    }
}
