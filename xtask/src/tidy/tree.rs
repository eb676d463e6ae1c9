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
        let paths = tracked(root)?;
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

/// What git lists.
fn tracked(root: &Path) -> io::Result<BTreeSet<String>> {
    // CI often checks out as one user and builds as another, which git refuses without the setting.
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    let list = String::from_utf8_lossy(&output.stdout);
    Ok(list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_text_have_none() {
        assert_eq!(File::new("a.bin", vec![0xff, 0xfe]).text, None);
        assert_eq!(File::new("a.bin", vec![b'a', 0]).text, None);
        assert_eq!(File::new("a.pickle", b"plain".to_vec()).text, None);
        assert_eq!(File::new("a.txt", b"plain".to_vec()).text.as_deref(), Some("plain"));
    }
}
