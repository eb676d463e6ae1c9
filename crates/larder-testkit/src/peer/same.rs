//! Same: another build of `larder` beside this one. A change that is not meant to change what the
//! allocator does is held against the build before it: every recorded program is replayed by both,
//! under every policy and several settings, and what comes of it must be equal, to the byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use larder_core::Policy;

use crate::peer::{beside, crew, ended};

/// What is compared.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The build of larder.
    #[arg(long, value_name = "PATH", default_value_os_t = beside("larder"))]
    larder: PathBuf,
    /// The build before the change.
    #[arg(long, value_name = "PATH")]
    with: PathBuf,
    /// Where the replays write.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir().join("larder-same"))]
    scratch: PathBuf,
    /// Recordings and scripts.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// What a recording is replayed with: as it was recorded; over and over, so that a program that
/// repeats itself is seen to; with other sizes; remembered; with settings that lead off the usual
/// way; on a device that is too small.
const WAYS: [&[&str]; 8] = [
    &[],
    &["--passes", "3"],
    &["--jitter", "2", "--passes", "2"],
    &["--level", "all"],
    &["--addresses", "lowest", "--conf", "expandable_segments:True"],
    &["--conf", "expandable_segments:False,roundup_power2_divisions:4"],
    &["--conf", "garbage_collection_threshold:0.6,max_split_size_mb:64", "--memory", "8GiB"],
    &["--conf", "", "--memory", "1500MiB", "--passes", "2"],
];

/// One replay that both builds make.
struct Case<'a> {
    file: &'a Path,
    policy: &'static str,
    way: &'static [&'static str],
}

impl Case<'_> {
    fn name(&self) -> String {
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        format!("{file} --policy {} {}", self.policy, self.way.join(" "))
    }

    /// What a build makes of it, as named parts: what it prints, each placement, and the history
    /// where it is kept.
    fn replay(&self, larder: &Path, scratch: &Path) -> Result<Vec<(&'static str, String)>, String> {
        let mut command = Command::new(larder);
        command.arg("replay").arg(self.file).args(["--json", "--policy", self.policy]);
        command.args(self.way);
        let files: &[&str] = if self.way.contains(&"--level") {
            &["placements", "history"]
        } else {
            &["placements"]
        };
        for file in files {
            let _ = fs::remove_file(scratch.join(file));
            command.arg(format!("--{file}")).arg(scratch.join(file));
        }
        let output = ended(&mut command)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut parts =
            vec![("statistics", text(&output.stdout)), ("messages", text(&output.stderr))];
        // A replay that ends early writes no files, and both builds must then say the same.
        let read = |file: &&'static str| (*file, fs::read(scratch.join(file)).unwrap_or_default());
        parts.extend(files.iter().map(read).map(|(file, bytes)| (file, text(&bytes))));
        Ok(parts)
    }
}

/// Replays all files with both builds. A difference is a failure.
pub(crate) fn run(options: &Options) -> Result<String, String> {
    let Options { larder, with, scratch, files } = options;
    if !with.is_file() {
        return Err(format!("{} is no build of larder", with.display()));
    }
    let policies = Policy::all();
    let cases: Vec<Case<'_>> = files
        .iter()
        .flat_map(|file| policies.iter().map(move |policy| (file, policy.name)))
        .flat_map(|(file, policy)| WAYS.map(|way| Case { file, policy, way }))
        .collect();
    let differences = Mutex::new(Vec::new());
    crew::each(&cases, scratch, |case, scratch| {
        let [before, after] = [with, larder].map(|larder| case.replay(larder, scratch));
        if let Some(said) = difference(&before?, &after?) {
            let mut differences = differences.lock().unwrap_or_else(PoisonError::into_inner);
            differences.push(format!("{}: {said}", case.name()));
        }
        Ok(())
    })?;
    let differences = differences.into_inner().unwrap_or_else(PoisonError::into_inner);
    for difference in &differences {
        println!("{difference}");
    }
    let sums = format!("{} replays compared, {} differences", cases.len(), differences.len());
    match differences.len() {
        0 => Ok(sums + "\n"),
        count => {
            println!("{sums}");
            Err(format!("{count} replays are not what {} makes", with.display()))
        }
    }
}

/// The first part in which two replays differ, and the first line or field of it.
fn difference<'a>(before: &'a [(&str, String)], after: &'a [(&str, String)]) -> Option<String> {
    let mut pairs = before.iter().zip(after);
    let ((name, one), (_, other)) = pairs.find(|(one, other)| one.1 != other.1)?;
    let pieces = |text: &'a str| text.split(['\n', ',']).collect::<Vec<&str>>();
    let (one, other) = (pieces(one), pieces(other));
    let at = (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at))?;
    let [one, other] = [one, other].map(|pieces| *pieces.get(at).unwrap_or(&"nothing"));
    Some(format!("{name} differ at piece {}: {one} is {other} now", at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_told_by_part_and_place() {
        let parts = |statistics: &str, placements: &str| {
            vec![("statistics", statistics.to_owned()), ("placements", placements.to_owned())]
        };
        let before = parts("{\"a\":1,\"b\":2}", "1 512\n2 1024\n");
        assert_eq!(difference(&before, &before.clone()), None);
        let after = parts("{\"a\":1,\"b\":2}", "1 512\n2 2048\n");
        let said = "placements differ at piece 2: 2 1024 is 2 2048 now";
        assert_eq!(difference(&before, &after).as_deref(), Some(said));
        let shorter = parts("{\"a\":1,\"b\":2}", "1 512\n2 1024");
        let said = "placements differ at piece 3:  is nothing now";
        assert_eq!(difference(&before, &shorter).as_deref(), Some(said));
    }
}
