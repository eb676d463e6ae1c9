//! Tables in documents that a command writes anew.

use std::fs;
use std::path::Path;

/// A document, and the lines between which the table is.
pub(crate) struct Page {
    pub(crate) path: &'static str,
    pub(crate) begin: &'static str,
    pub(crate) end: &'static str,
}

impl Page {
    /// Puts a table in the place of the one that is there.
    pub(crate) fn write(&self, root: &Path, table: &str) -> Result<(), String> {
        let Self { path, begin, end } = self;
        let file = root.join(path);
        let said = |error| format!("{}: {error}", file.display());
        let old = fs::read_to_string(&file).map_err(said)?;
        let new = self
            .with_table(&old, table)
            .ok_or_else(|| format!("{path} has no lines `{begin}` and `{end}`"))?;
        if new == old { Ok(()) } else { fs::write(&file, new).map_err(said) }
    }

    fn with_table(&self, page: &str, table: &str) -> Option<String> {
        let begin = page.find(self.begin)? + self.begin.len();
        let end = begin + page[begin..].find(self.end)?;
        Some(format!("{}\n\n{table}\n{}", &page[..begin], &page[end..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_replaced_and_the_rest_stays() {
        let page = Page { path: "a.md", begin: "<!-- a -->", end: "<!-- end of a -->" };
        let old = "above\n<!-- a -->\nold\n<!-- end of a -->\nbelow\n";
        let new = page.with_table(old, "| new |\n").unwrap();
        assert_eq!(new, "above\n<!-- a -->\n\n| new |\n\n<!-- end of a -->\nbelow\n");
        assert_eq!(page.with_table(&new, "| new |\n").as_deref(), Some(new.as_str()));
        assert_eq!(page.with_table("no table", "x"), None);
    }
}
