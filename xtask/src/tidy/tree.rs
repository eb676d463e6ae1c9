//! The files of the repository, as the rules see them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::source::Source;

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
        // Inputs that are fed to a program byte for byte are nobody's prose.
        let is_data = path.starts_with("fuzz/seeds/") || path.ends_with(".pickle");
        let is_text = !is_data && !bytes.contains(&0);
        let text = is_text.then(|| String::from_utf8(bytes).ok()).flatten();
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

/// Every file that is tracked, or would be after `git add`.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    /// What is read of the Rust files that are modules of a crate.
    pub(super) sources: Vec<Source>,
}

impl Tree {
    /// Reads the repository at `root`.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for path in tracked(root)? {
            let place = root.join(&path);
            // A file can be tracked and yet deleted in the working tree, and links have no text.
            if fs::symlink_metadata(&place).is_ok_and(|metadata| metadata.is_file()) {
                files.push(File::new(&path, fs::read(&place)?));
            }
        }
        Ok(Self::of(files))
    }

    fn of(files: Vec<File>) -> Self {
        let rust = files.iter().filter(|file| file.extension() == "rs");
        let read = |file: &File| Source::read(&file.path, file.text.as_deref()?);
        let sources = rust.filter_map(read).collect();
        Self { files, sources }
    }

    /// A tree in memory, for the tests of the rules.
    #[cfg(test)]
    pub(super) fn with(files: &[(&str, &str)]) -> Self {
        Self::of(files.iter().map(|(path, text)| File::new(path, text.as_bytes().into())).collect())
    }

    /// The files that have a text, each with it.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files.iter().filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// The text of a file.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.texts().find(|(file, _)| file.path == path).map(|(_, text)| text)
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
