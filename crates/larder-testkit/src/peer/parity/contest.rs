//! One script on both allocators: equal, set aside, or different.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use larder_core::Policy;

use super::outcome::{Outcome, Parting};
use crate::peer::{Programs, ended, said};

/// How often the peer gets another chance to do what we did, in another order of its hash tables.
const SHUFFLES: u32 = 40;
/// After so many chances it gets no more if it has already parted from itself in everything in
/// which it parts from us.
const SHUFFLES_MIN: u32 = 6;

/// One script under one setting on one device.
pub(super) struct Case<'a> {
    /// What it is called in reports.
    pub(super) name: String,
    /// The script that the peer runs.
    pub(super) script: &'a Path,
    /// The recording that ours replays instead of the script, and the addresses in it.
    pub(super) recording: Option<(&'a Path, &'a Path)>,
    pub(super) conf: &'static str,
    pub(super) memory_bytes: u64,
    /// The options by which both remember it; none where the history is off.
    pub(super) remembering: Option<&'a str>,
}

/// What came of a case.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Equal,
    /// The peer gave up, or lost memory. Up to there the two are equal, and ours goes on.
    PeerGaveUp,
    /// The peer does not agree with itself. Where it does, the two are equal.
    PeerUnsteady,
    /// What differs, with all that is needed to see it again.
    Different(String),
}

/// How a run of the peer ended.
enum Ending {
    Done(Outcome),
    /// It gave up: at which operation, counted from 1, if it says so, and what it said.
    GaveUp {
        at: Option<usize>,
        said: String,
    },
}

/// Who is compared with whom.
pub(super) struct Sides<'a> {
    pub(super) programs: &'a Programs,
    /// The policy that decides as the judge's PyTorch does.
    pub(super) peer: Policy,
    /// The policy under which ours runs.
    pub(super) ours: Policy,
    /// The library that puts ours behind the peer's own interface, if ours is to run there.
    pub(super) backend: Option<&'a Path>,
}

impl Sides<'_> {
    /// Whether the two are meant to differ: differences are counted then, and nothing is shown of
    /// them.
    pub(super) fn is_counted(&self) -> bool {
        self.ours != self.peer
    }
}

/// Where one worker runs its cases.
pub(super) struct Ring<'a> {
    pub(super) sides: &'a Sides<'a>,
    /// A folder of its own for what the runs write.
    pub(super) scratch: PathBuf,
    /// Where scripts are kept that show a difference.
    pub(super) differences: PathBuf,
}

impl Ring<'_> {
    pub(super) fn judge(&self, case: &Case<'_>) -> Result<Verdict, String> {
        match self.peer(case, 0)? {
            Ending::Done(peer) => self.compare(case, &peer),
            Ending::GaveUp { at, .. } => self.survive(case, at),
        }
    }

    fn compare(&self, case: &Case<'_>, peer: &Outcome) -> Result<Verdict, String> {
        let ours = match self.ours(case)? {
            Ok(ours) => ours,
            Err(sentence) => return self.difference(case, &sentence).map(Verdict::Different),
        };
        let parting = Outcome::parting(peer, &ours);
        if parting.is_none() {
            return Ok(Verdict::Equal);
        }
        let Some(own) = self.own_partings(case, peer, &ours, &parting)? else {
            return Ok(Verdict::Equal);
        };
        let rest = parting.beyond(&own);
        if rest.is_none() {
            return Ok(Verdict::PeerUnsteady);
        }
        // From where the peer has lost memory on, nothing that it does is a measure.
        match self.audited_peer(case)? {
            Ending::GaveUp { at: at @ Some(_), .. } => self.survive(case, at),
            _ => self.difference(case, &rest.first()).map(Verdict::Different),
        }
    }

    /// Where the peer parts from its own first run; none if one of its runs is equal to ours.
    fn own_partings(
        &self,
        case: &Case<'_>,
        first: &Outcome,
        ours: &Outcome,
        parting: &Parting,
    ) -> Result<Option<Vec<Parting>>, String> {
        let mut own = Vec::new();
        for shuffle in 1..=SHUFFLES {
            let Ending::Done(again) = self.peer(case, shuffle)? else { continue };
            if again == *ours {
                return Ok(None);
            }
            own.push(Outcome::parting(first, &again));
            // Which of its own orders the peer would need is of no interest once it is seen to have
            // several.
            let enough = shuffle >= SHUFFLES_MIN || parting.is_history_alone();
            if enough && parting.beyond(&own).is_none() {
                break;
            }
        }
        Ok(Some(own))
    }

    /// Where the peer gives up, ours must not, unless it refuses the same operation; and up to
    /// there the two must be equal.
    fn survive(&self, case: &Case<'_>, at: Option<usize>) -> Result<Verdict, String> {
        if let Err(sentence) = self.ours(case)?
            && (at.is_none() || operation_in(&sentence) != at)
            && !is_gone_checkpoint(&sentence)
        {
            return self.difference(case, &sentence).map(Verdict::Different);
        }
        // Before the first operation there is nothing to compare.
        let (Some(at @ 2..), None) = (at, case.recording) else { return Ok(Verdict::PeerGaveUp) };
        let script = self.scratch.join("survived.ops");
        let lines = operations(case.script)?;
        write_lines(&script, &lines[..(at - 1).min(lines.len())])?;
        let name = format!("{}, before the peer gave up", case.name);
        let before = Case { name, script: &script, ..*case };
        match self.peer(&before, 0)? {
            Ending::Done(peer) => Ok(match self.compare(&before, &peer)? {
                different @ Verdict::Different(_) => different,
                _ => Verdict::PeerGaveUp,
            }),
            // An order of its hash tables in which it gives up still sooner.
            Ending::GaveUp { .. } => Ok(Verdict::PeerGaveUp),
        }
    }

    fn peer(&self, case: &Case<'_>, shuffle: u32) -> Result<Ending, String> {
        self.behind_interface(case, "peer", &["--shuffle", &shuffle.to_string()])
    }

    /// The peer once more; it gives up where its segments are no longer all that it holds.
    fn audited_peer(&self, case: &Case<'_>) -> Result<Ending, String> {
        self.behind_interface(case, "peer", &["--audit"])
    }

    /// Runs a case through the peer's interface, behind which is the peer, or ours out of a
    /// library.
    fn behind_interface(
        &self,
        case: &Case<'_>,
        who: &str,
        options: &[&str],
    ) -> Result<Ending, String> {
        let mut command = Command::new(&self.sides.programs.judge);
        command
            .arg("replay")
            .arg(case.script)
            .args(options)
            .env("PYTORCH_CUDA_ALLOC_CONF", case.conf)
            .env("LARDER_SIM_MEMORY", case.memory_bytes.to_string())
            .env_remove("LARDER_SIM_ADDRESSES");
        if let Some((_, addresses)) = case.recording {
            command.env("LARDER_SIM_ADDRESSES", addresses);
        }
        let output = self.run(&mut command, case, who)?;
        match output.status.code() {
            Some(0) => self.read(&output.stdout, who).map(Ending::Done),
            // An allocator that ends the process has given up too.
            Some(3) | None => {
                let said = said(&output);
                let at = operation_in(&said);
                Ok(Ending::GaveUp { at, said: format!("{}: {said}", output.status) })
            }
            Some(_) => Err(format!("the judge cannot run {}: {}", case.name, said(&output))),
        }
    }

    /// What ours makes of a case; the inner error is a sentence of its own that it failed with.
    fn ours(&self, case: &Case<'_>) -> Result<Result<Outcome, String>, String> {
        const WHO: &str = "ours";
        if let Some(library) = self.sides.backend {
            let library = library.to_string_lossy();
            let ending = self.behind_interface(case, WHO, &["--backend", &library])?;
            return Ok(match ending {
                Ending::Done(outcome) => Ok(outcome),
                Ending::GaveUp { said, .. } => Err(format!("ours gives up: {said}")),
            });
        }
        let mut command = Command::new(&self.sides.programs.larder);
        command.arg("replay").arg(case.recording.map_or(case.script, |(recording, _)| recording));
        command.args(["--policy", self.sides.ours.name, "--json", "--conf", case.conf]);
        command.args(["--memory", &format!("{}B", case.memory_bytes)]);
        let output = self.run(&mut command, case, WHO)?;
        if !output.status.success() {
            return Ok(Err(format!("ours ends with {}: {}", output.status, said(&output))));
        }
        self.read(&output.stdout, WHO).map(Ok)
    }

    /// Runs either side, with the options that make it write where everything lies, and its
    /// history if that is asked for.
    fn run(&self, command: &mut Command, case: &Case<'_>, who: &str) -> Result<Output, String> {
        let history = self.written(who, "history");
        // An old one must not be taken for it.
        let _ = fs::remove_file(&history);
        command.arg("--placements").arg(self.written(who, "placements"));
        if let Some(remembering) = case.remembering {
            command.arg("--history").arg(&history).args(remembering.split(' '));
        }
        ended(command)
    }

    /// A file that one side writes.
    fn written(&self, who: &str, what: &str) -> PathBuf {
        self.scratch.join(format!("{who}.{what}"))
    }

    fn read(&self, printed: &[u8], who: &str) -> Result<Outcome, String> {
        let printed = String::from_utf8_lossy(printed);
        let placements = read_text(&self.written(who, "placements"))?;
        // Where no history was asked for there is none, on either side.
        let history = fs::read_to_string(self.written(who, "history")).unwrap_or_default();
        let outcome = Outcome::read(&printed, &placements, &history)
            .ok_or_else(|| format!("this is no result: {printed}"))?;
        Ok(if self.sides.is_counted() { outcome.in_common() } else { outcome })
    }

    /// Reports a difference, with the shortest beginning of the script that shows one.
    fn difference(&self, case: &Case<'_>, found: &str) -> Result<String, String> {
        let Case { name, conf, memory_bytes, .. } = case;
        let remembering = case.remembering.map(|options| format!(", history {options}"));
        let remembering = remembering.unwrap_or_default();
        let heading = format!("{name}, conf \"{conf}\", memory {memory_bytes}{remembering}:");
        if self.sides.is_counted() || case.recording.is_some() {
            return Ok(format!("{heading} {found}"));
        }
        let lines = operations(case.script)?;
        let (length, found) = self.shortest(case, &lines, found)?;
        let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let kept = self.differences.join(format!("{}-{memory_bytes}.ops", words.join("-")));
        write_lines(&kept, &lines[..length])?;
        let last = lines[..length].last().map_or("", String::as_str);
        Ok(format!(
            "{heading} {found}\n    after {length} of {} operations, the last of them `{last}`: {}",
            lines.len(),
            kept.display()
        ))
    }

    /// The length of the shortest beginning that shows a difference, and which. Sums do not become
    /// equal again once they have parted, so the place can be found by halving.
    fn shortest(
        &self,
        case: &Case<'_>,
        lines: &[String],
        found: &str,
    ) -> Result<(usize, String), String> {
        let script = self.scratch.join("beginning.ops");
        let (mut equal, mut length, mut found) = (0, lines.len(), found.to_owned());
        while equal + 1 < length {
            let middle = usize::midpoint(equal, length);
            write_lines(&script, &lines[..middle])?;
            let beginning = Case { name: String::new(), script: &script, ..*case };
            let ending = self.peer(&beginning, 0)?;
            let ours = self.ours(&beginning)?;
            let parting = match (&ending, &ours) {
                (_, Err(sentence)) => Some(sentence.clone()),
                (Ending::Done(peer), Ok(ours)) => {
                    let parting = Outcome::parting(peer, ours);
                    (!parting.is_none()).then(|| parting.first())
                }
                (Ending::GaveUp { .. }, Ok(_)) => None,
            };
            match parting {
                Some(sentence) => (length, found) = (middle, sentence),
                None => equal = middle,
            }
        }
        Ok((length, found))
    }
}

/// The number of the operation that a complaint is about. The peer counts operations, ours says the
/// line; in a script without comments these are the same.
fn operation_in(complaint: &str) -> Option<usize> {
    let found = complaint.split_once("operation ").or_else(|| complaint.split_once("line "));
    found?.1.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// Whether ours refuses to put back a layout whose segment is gone. A script has no such thing as
/// long as the peer goes on; behind the operation at which it gave up one can come of it.
fn is_gone_checkpoint(sentence: &str) -> bool {
    sentence.contains(": restore ") && sentence.ends_with("is not as the checkpoint has it")
}

fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The operations of a script. Comments are left out, as the judge counts without them.
fn operations(script: &Path) -> Result<Vec<String>, String> {
    let text = read_text(script)?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn write_lines(path: &Path, lines: &[String]) -> Result<(), String> {
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_name_the_operation_that_they_refuse() {
        assert_eq!(operation_in("judge: operation 12: could not find"), Some(12));
        assert_eq!(operation_in("larder: a.ops: line 7: restore 1: pool (0, 1) cannot"), Some(7));
        assert_eq!(operation_in("terminate called"), None);
    }
}
