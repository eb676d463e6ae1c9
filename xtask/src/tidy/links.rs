//! Links between the pages of the repository: each leads to a file that exists.

use super::Finding;
use super::tree::Tree;

/// Every relative link of a Markdown page that leads nowhere.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts().filter(|(file, _)| file.extension() == "md") {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, target) in links(text) {
            let exists = resolve(folder, &target).is_some_and(|path| tree.has(&path));
            if !exists {
                let message = format!(
                    "the link to `{target}` leads nowhere: name a file of the repository, \
                     relative to this page"
                );
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

/// The paths that a page links to, without those that lead out into the web or stay on the page.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let begin = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| begin.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(close)) if open == close => fence = None,
            (None, None) => {
                let targets = inline(&without_code(line)).into_iter().chain(definition(begin));
                let paths = targets.filter_map(|target| path_of(&target));
                found.extend(paths.map(|path| (index + 1, path)));
            }
            _ => {}
        }
    }
    found
}

/// The line with its code spans blanked out: what looks like a link in them is an example.
fn without_code(line: &str) -> String {
    if line.matches('`').count() % 2 == 1 {
        return line.to_owned();
    }
    let outside = line.split('`').enumerate();
    outside.map(|(index, part)| if index % 2 == 0 { part } else { " " }).collect()
}

/// The targets of `[text](target)` and `![text](target "title")`.
fn inline(line: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for (at, mark) in line.match_indices("](") {
        let rest = &line[at + mark.len()..];
        let end = rest.find(')').unwrap_or(rest.len());
        targets.push(rest[..end].to_owned());
    }
    targets
}

/// The target of `[name]: target`.
fn definition(line: &str) -> Option<String> {
    let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
    (!name.contains(']') && !name.starts_with('^')).then(|| target.to_owned())
}

/// The path in a link's target: without a title, without the place on the page.
fn path_of(target: &str) -> Option<String> {
    let target = target.trim();
    let target = match target.strip_prefix('<') {
        Some(rest) => rest.split('>').next()?,
        None => target.split_whitespace().next()?,
    };
    let has_scheme = target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    let path = target.split(['#', '?']).next()?;
    (!has_scheme && !path.is_empty()).then(|| path.replace("%20", " "))
}

/// The path from the repository's root; nothing when it leads out of the repository.
fn resolve(folder: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let tree = Tree::of(&[("docs/page.md", text), ("docs/other.md", ""), ("src/a.rs", "")]);
        check(&tree).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn links_to_files_and_folders_pass() {
        assert!(
            lines("[a](other.md) [b](./other.md#part) [c](../src/) ![d](../src/a.rs)\n").is_empty()
        );
        assert!(
            lines("[top](..) [x](<other.md>) [y](other.md \"title\")\n[z]: ../src/a.rs\n")
                .is_empty()
        );
    }

    #[test]
    fn links_that_lead_nowhere_fail() {
        assert_eq!(lines("fine\n[a](missing.md)\n"), [2]);
        assert_eq!(lines("[a](other.md) and [b](src/a.rs)\n"), [1]);
        assert_eq!(lines("[a]: missing.md\n"), [1]);
        assert_eq!(lines("[a](../../outside.md)\n[b](/docs/other.md)\n"), [1, 2]);
    }

    #[test]
    fn the_web_and_the_page_itself_are_not_looked_up() {
        assert!(lines("[a](https://a.io/b) [b](mailto:a@b.io) [c](#part)\n").is_empty());
        assert!(lines("[a]: https://a.io/b\n[^1]: a note\n").is_empty());
    }

    #[test]
    fn examples_are_not_links() {
        assert!(lines("```text\n[a](missing.md)\n```\nsay `[a](missing.md)`\n").is_empty());
        assert_eq!(lines("```text\n```\n[a](missing.md)\n"), [3]);
    }
}
