//! Settings texts, read by PyTorch's own parser and by ours.
//!
//! Random texts, of the kind with which a program starts and of the kind that it sets while it
//! runs, go to both. Both must take or refuse the same ones, and have the same settings after each.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::command;
use crate::peer::Peer;
use crate::programs::{self, target_folder};
use crate::torch::{self, Torch};

/// Differences that are printed of each version; the others are counted.
const SHOWN: usize = 20;

/// A text of a case.
struct Line<'a> {
    seed: &'a str,
    text: &'a str,
}

/// The two programs of a version.
struct Readers {
    torch: Torch,
    theirs: PathBuf,
    ours: PathBuf,
}

/// What came of a version.
struct Outcome {
    sentence: String,
    differences: Vec<String>,
}

/// Compares this many texts for each version, of cases from this seed on; true if nothing differs.
pub(super) fn run(root: &Path, cargo: &Path, from: u64, count: u64) -> Result<bool, String> {
    let target = target_folder(root);
    programs::build(root, cargo, &target, &["-p", "larder-cudart"])?;
    programs::build(root, cargo, &target, &["-p", "larder-core", "--example", "read_settings"])?;
    programs::build(
        root,
        cargo,
        &target,
        &["-p", "larder-testkit", "--example", "write_settings"],
    )?;
    let release = target.join("release");
    let mut write = Command::new(release.join("examples/write_settings"));
    let written = command::output(write.args([from, count].map(|number| number.to_string())))?;
    let lines = written.split_terminator('\n').filter_map(|line| line.split_once('\t'));
    let lines: Vec<Line<'_>> = lines.map(|(seed, text)| Line { seed, text }).collect();
    let mut is_same = true;
    for torch in torch::ALL {
        let peer = Peer::of(&target, torch);
        peer.build_settings_judge(root, &release.join("liblarder_cudart.a"))?;
        let ours = release.join("examples/read_settings");
        let Outcome { sentence, differences } =
            Readers { torch, theirs: peer.settings_judge(), ours }.compare(&lines)?;
        is_same &= differences.is_empty();
        differences.iter().take(SHOWN).for_each(|difference| println!("{difference}"));
        println!("{sentence}");
    }
    Ok(is_same)
}

impl Readers {
    fn compare(&self, lines: &[Line<'_>]) -> Result<Outcome, String> {
        let (mut differences, mut accepted) = (Vec::new(), 0);
        let theirs = answers(&mut Command::new(&self.theirs), lines)?;
        let ours = answers(Command::new(&self.ours).arg(self.torch.minor), lines)?;
        for (line, (theirs, ours)) in lines.iter().zip(theirs.iter().zip(&ours)) {
            accepted += usize::from(theirs != "refused");
            if theirs != ours {
                differences.push(format!(
                    "seed {} {:?}: {}",
                    line.seed,
                    line.text,
                    parting(theirs, ours)
                ));
            }
        }
        let sentence = format!(
            "PyTorch {}: {} settings texts compared, {accepted} accepted, {} refused, {} \
             differences",
            self.torch,
            lines.len(),
            lines.len() - accepted,
            differences.len()
        );
        Ok(Outcome { sentence, differences })
    }
}

/// What a program answers to each line.
fn answers(command: &mut Command, lines: &[Line<'_>]) -> Result<Vec<String>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // PyTorch warns of what it passes over.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let mut input = String::new();
    for line in lines {
        input += line.text;
        input.push('\n');
    }
    let stdin = child.stdin.take();
    let writer = thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().map_err(|error| format!("{name}: {error}"))?;
    let _ = writer.join();
    let printed = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<String> = printed.split_terminator('\n').map(str::to_owned).collect();
    if answers.len() == lines.len() {
        return Ok(answers);
    }
    Err(format!("{name} answers {} of {} texts", answers.len(), lines.len()))
}

/// Where two answers part.
fn parting(theirs: &str, ours: &str) -> String {
    if theirs == "refused" || ours == "refused" {
        let word = |answer: &str| if answer == "refused" { "refuses" } else { "accepts" };
        return format!("PyTorch {} it, Larder {} it", word(theirs), word(ours));
    }
    let pairs = theirs.split(' ').zip(ours.split(' ')).filter(|(theirs, ours)| theirs != ours);
    let pairs: Vec<String> =
        pairs.map(|(theirs, ours)| format!("PyTorch `{theirs}`, Larder `{ours}`")).collect();
    pairs.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_what_differs() {
        assert_eq!(parting("refused", "accepted a=1"), "PyTorch refuses it, Larder accepts it");
        assert_eq!(parting("accepted a=1 b=2", "accepted a=1 b=3"), "PyTorch `b=2`, Larder `b=3`");
    }
}
