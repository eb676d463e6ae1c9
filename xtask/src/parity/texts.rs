//! Settings texts, read by PyTorch's own parser and by ours.
//!
//! Random texts, of the kind with which a program starts and of the kind that it sets while it
//! runs, go to both. Both must take or refuse the same ones, and have the same settings after each.

use xshell::{Cmd, cmd};

use crate::command;
use crate::peer::Peer;
use crate::repository::Repository;
use crate::torch::{self, Torch};

/// Differences that are printed of each version; the others are counted.
const SHOWN: usize = 20;

/// A text of a case, with its seed.
type Line<'a> = (&'a str, &'a str);

/// Compares this many texts for each version, of cases from this seed on; fails if any differs.
pub(super) fn run(repo: &Repository, from: u64, count: u64) -> Result<(), String> {
    let ours = repo.example("larder-core", "read_settings")?;
    let write = repo.example("larder-testkit", "write_settings")?;
    let numbers = [from, count].map(|number| number.to_string());
    let written = command::output(cmd!(repo.shell, "{write} {numbers...}"))?;
    let lines = written.split_terminator('\n').filter_map(|line| line.split_once('\t'));
    let lines: Vec<Line<'_>> = lines.collect();
    let mut is_same = true;
    for torch in torch::ALL {
        let theirs = repo.shell.cmd(Peer { repo, torch }.build_settings_judge()?);
        let ours = repo.shell.cmd(&ours).arg(torch.minor);
        is_same &= compare(torch, theirs, ours, &lines)?;
    }
    if is_same { Ok(()) } else { Err("the two sides differ".to_owned()) }
}

/// Compares the two programs of a version, and says what differs.
fn compare(
    torch: Torch,
    theirs: Cmd<'_>,
    ours: Cmd<'_>,
    lines: &[Line<'_>],
) -> Result<bool, String> {
    let (theirs, ours) = (answers(theirs, lines)?, answers(ours, lines)?);
    let (mut differences, mut accepted) = (0, 0);
    for ((seed, text), (theirs, ours)) in lines.iter().zip(theirs.iter().zip(&ours)) {
        accepted += usize::from(theirs != "refused");
        if theirs != ours {
            differences += 1;
            if differences <= SHOWN {
                println!("seed {seed} {text:?}: {}", parting(theirs, ours));
            }
        }
    }
    println!(
        "PyTorch {torch}: {} settings texts compared, {accepted} accepted, {} refused, \
         {differences} differences",
        lines.len(),
        lines.len() - accepted
    );
    Ok(differences == 0)
}

/// What a program answers to each line.
fn answers(program: Cmd<'_>, lines: &[Line<'_>]) -> Result<Vec<String>, String> {
    let input: String = lines.iter().flat_map(|(_, text)| [text, "\n"]).collect();
    // PyTorch warns of what it passes over.
    let program = program.stdin(input).ignore_stderr();
    let printed = program.read().map_err(|error| error.to_string())?;
    let answers: Vec<String> = printed.split('\n').map(str::to_owned).collect();
    if answers.len() == lines.len() {
        return Ok(answers);
    }
    Err(format!("{program} answers {} of {} texts", answers.len(), lines.len()))
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
