//! The files of the repository, as the rules see them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

/// A file and its text.
#[derive(Debug)]
pub(super) struct File {
    /// Relative to the repository, with `/` between the parts.
    pub(super) path: String,
    /// Nothing for data and for what is not UTF-8: such files have a path, and no rules of text.
    pub(super) text: Option<String>,
}

impl File {
    fn new(path: &str, bytes: Vec<u8>) -> Self {
        let text =
            if is_data(path) || bytes.contains(&0) { None } else { String::from_utf8(bytes).ok() };
        Self { path: path.to_owned(), text }
    }

    /// What follows the last dot of the name, or nothing.
    pub(super) fn extension(&self) -> &str {
        self.name().rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// The path's last part.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or("")
    }
}

/// Inputs that are fed to the program byte for byte, and whose bytes are nobody's prose.
fn is_data(path: &str) -> bool {
    path.starts_with("fuzz/seeds/") || path.ends_with(".pickle")
}

/// Every file that is tracked, or would be after `git add`.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
}

impl Tree {
    /// Reads the repository at `root`.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let paths = match tracked(root) {
            Some(paths) => paths,
            None => walked(root)?,
        };
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let place = root.join(&path);
            // A file can be tracked and yet deleted in the working tree, and links have no text.
            if fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_file()) {
                files.push(File::new(&path, fs::read(&place)?));
            }
        }
        Ok(Self { files })
    }

    /// A tree in memory, for the tests of the rules.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File::new(path, text.as_bytes().to_vec());
        Self { files: files.iter().map(file).collect() }
    }

    /// The files that have a text, each with it.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// The Rust files, each with its text.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&File, &str)> {
        self.texts().filter(|(file, _)| file.extension() == "rs")
    }

    /// The text of one file.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.texts().find(|(file, _)| file.path == path).map(|(_, text)| text)
    }

    /// Whether a file or a folder of this path exists. The empty path is the repository itself.
    pub(super) fn has(&self, path: &str) -> bool {
        path.is_empty()
            || self.files.iter().any(|file| {
                file.path
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    }
}

/// What git lists, or nothing where there is no git or no repository (a source archive).
fn tracked(root: &Path) -> Option<BTreeSet<String>> {
    // CI often checks out as one user and builds as another, which git refuses without the setting.
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let list = String::from_utf8(output.stdout).ok()?;
    let paths: BTreeSet<String> =
        list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (!paths.is_empty()).then_some(paths)
}

/// Every file below `root` that the repository's `.gitignore` does not exclude.
fn walked(root: &Path) -> io::Result<BTreeSet<String>> {
    let ignored = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    let mut paths = BTreeSet::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let separator = if folder.is_empty() { "" } else { "/" };
            let path = format!("{folder}{separator}{name}");
            if name == ".git" || is_ignored(&ignored, &path, &name) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                paths.insert(path);
            }
        }
    }
    Ok(paths)
}

/// The three forms of pattern that our `.gitignore` uses: `/path`, `name` and `*.extension`.
fn is_ignored(ignored: &str, path: &str, name: &str) -> bool {
    ignored.lines().map(|line| line.trim().trim_end_matches('/')).any(|pattern| {
        if let Some(rooted) = pattern.strip_prefix('/') {
            rooted == path
        } else if let Some(ending) = pattern.strip_prefix('*') {
            !ending.is_empty() && name.ends_with(ending)
        } else {
            !pattern.is_empty() && pattern == name
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_text_have_none() {
        assert_eq!(File::new("a.bin", vec![0xff, 0xfe]).text, None);
        assert_eq!(File::new("a.bin", vec![b'a', 0]).text, None);
        assert_eq!(File::new("a.pickle", b"plain".to_vec()).text, None);
        assert_eq!(File::new("fuzz/seeds/script/a.ops", b"plain".to_vec()).text, None);
        assert_eq!(File::new("a.txt", b"plain".to_vec()).text.as_deref(), Some("plain"));
    }

    #[test]
    fn names_and_extensions() {
        let tree = Tree::of(&[("a/b.tar.gz", ""), ("LICENSE", "")]);
        assert_eq!((tree.files[0].name(), tree.files[0].extension()), ("b.tar.gz", "gz"));
        assert_eq!((tree.files[1].name(), tree.files[1].extension()), ("LICENSE", ""));
    }

    #[test]
    fn folders_exist_where_they_hold_a_file() {
        let tree = Tree::of(&[("docs/guide/start.md", "")]);
        assert!(tree.has("docs") && tree.has("docs/guide") && tree.has("docs/guide/start.md"));
        assert!(!tree.has("doc") && !tree.has("docs/guide/start"));
    }

    #[test]
    fn patterns_of_the_ignore_file() {
        let ignored = "/target\n__pycache__/\n*.pyc\n\n";
        assert!(is_ignored(ignored, "target", "target"));
        assert!(!is_ignored(ignored, "crates/target", "target"));
        assert!(is_ignored(ignored, "python/__pycache__", "__pycache__"));
        assert!(is_ignored(ignored, "python/a.pyc", "a.pyc"));
        assert!(!is_ignored(ignored, "python/a.py", "a.py"));
    }

    #[test]
    fn a_walk_finds_what_git_lists() {
        let root = crate::repository_root();
        let walked = walked(&root).unwrap();
        assert!(walked.contains("xtask/src/tidy/tree.rs"));
        assert!(!walked.iter().any(|path| path.starts_with("target/")));
    }
}
