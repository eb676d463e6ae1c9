//! Files: which recordings are ranks of one program, and which number each of them has.

use std::path::{Path, PathBuf};

use crate::file::LoadError;

/// A recording of one process of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The file.
    pub file: PathBuf,
    /// Its name, without folders.
    pub name: String,
    /// The number in the name, if there is one.
    pub number: Option<u64>,
}

/// What the names of recordings end in.
const ENDINGS: [&str; 6] = [".pickle", ".pkl", ".pickle.gz", ".json", ".json.gz", ".tape"];

/// Whether these are the ranks of a program, and not one recording: several, or a folder.
pub fn is_many(paths: &[PathBuf]) -> bool {
    paths.len() > 1 || paths.iter().any(|path| path.is_dir())
}

/// The ranks in these files and folders, by their numbers and then by their names.
pub fn files(paths: &[PathBuf]) -> Result<Vec<Rank>, LoadError> {
    let mut ranks = Vec::new();
    for path in paths {
        if !path.is_dir() {
            ranks.push(Rank::new(path.clone()));
            continue;
        }
        let said = |what: &dyn std::fmt::Display| LoadError(format!("{}: {what}", path.display()));
        let before = ranks.len();
        for entry in std::fs::read_dir(path).map_err(|error| said(&error))? {
            let file = entry.map_err(|error| said(&error))?.path();
            if is_recording(&file) {
                ranks.push(Rank::new(file));
            }
        }
        if ranks.len() == before {
            let endings = ENDINGS.join(", ");
            return Err(said(&format!("there is no recording in this folder ({endings})")));
        }
    }
    ranks.sort_by(|one, other| {
        (one.number.is_none(), one.number, &one.name).cmp(&(
            other.number.is_none(),
            other.number,
            &other.name,
        ))
    });
    Ok(ranks)
}

fn is_recording(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_trace = [".perfetto.json", ".trace.json"].iter().any(|ending| name.contains(ending));
    file.is_file() && !is_trace && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The number of the rank that a name has: behind the word "rank", or else the first number in it.
pub(super) fn number_in(name: &str) -> Option<u64> {
    let lower = name.to_ascii_lowercase();
    let from = lower.find("rank").map_or(0, |at| at + "rank".len());
    let digits = |text: &str| -> Option<u64> {
        let start = text.find(|letter: char| letter.is_ascii_digit())?;
        let rest = &text[start..];
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    digits(&lower[from..]).or_else(|| digits(&lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_by_their_numbers() {
        assert_eq!(number_in("rank12.pickle"), Some(12));
        assert_eq!(number_in("node3_rank_7.pickle.gz"), Some(7));
        assert_eq!(number_in("0004.json"), Some(4));
        assert_eq!(number_in("mine.pickle"), None);
        let paths = ["a/rank10.pickle", "a/rank9.pickle", "a/other.pickle"].map(PathBuf::from);
        let names: Vec<String> =
            files(&paths).expect("files").into_iter().map(|rank| rank.name).collect();
        assert_eq!(names, ["rank9.pickle", "rank10.pickle", "other.pickle"]);
        assert!(is_many(&paths) && !is_many(&paths[..1]));
    }
}
