//! Tables in documents that a command writes anew, each between two lines that name it.

use crate::file;
use crate::repository::Repository;

/// The page of the benchmarks.
pub(crate) const BENCHMARKS: &str = "docs/benchmarks.md";

/// Puts a text in the place of the one that stands there under a name.
pub(crate) fn write(repo: &Repository, page: &str, name: &str, text: &str) -> Result<(), String> {
    let path = repo.root.join(page);
    let old = file::read(&path)?;
    let new = replaced(&old, name, text).ok_or_else(|| {
        format!("{page} has no lines `<!-- {name} -->` and `<!-- end of {name} -->`")
    })?;
    if new == old { Ok(()) } else { file::write(&path, new) }
}

fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- {name} -->\n"))?;
    let (_, behind) = rest.split_once(&format!("<!-- end of {name} -->\n"))?;
    let text = text.trim_end();
    Some(format!("{before}<!-- {name} -->\n\n{text}\n\n<!-- end of {name} -->\n{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_replaced_and_the_rest_stays() {
        let old = "above\n<!-- a -->\nold\n<!-- end of a -->\nbelow\n";
        let new = replaced(old, "a", "| new |\n").unwrap();
        assert_eq!(new, "above\n<!-- a -->\n\n| new |\n\n<!-- end of a -->\nbelow\n");
        assert_eq!(replaced(&new, "a", "| new |\n").as_deref(), Some(new.as_str()));
        assert_eq!(replaced("no table", "a", "x"), None);
    }
}
