//! Op scripts: what a program asks of an allocator, one operation a line.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{BufRead, Read};
use std::str::SplitWhitespace;

use larder_core::nearest::nearest;
use larder_core::types::{GIB, KIB, MIB};

pub use crate::op::{Op, Route};

/// Why a script cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScriptError {
    /// The line at fault, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub text: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for ScriptError {}

/// No operation needs a line as long as this, not even a comment.
const LINE_BYTES_MAX: u64 = 4096;

/// A word as a message quotes it: cut short if it is long.
fn quote(word: &str) -> String {
    match word.char_indices().nth(40) {
        None => format!("'{word}'"),
        Some((at, _)) => format!("'{}…'", &word[..at]),
    }
}

/// A script while it is being read: it knows which IDs the lines so far have named.
#[derive(Debug, Default)]
pub struct Script {
    line: usize,
    ids: HashMap<u64, Life>,
    /// For each checkpoint, its line and the IDs that were live there.
    checkpoints: HashMap<u32, (usize, HashSet<u64>)>,
}

/// What became of an ID, with the line on which it did.
#[derive(Clone, Copy, Debug)]
enum Life {
    Allocated { line: usize },
    Freed { allocated_line: usize, line: usize },
}

impl Script {
    /// A script of which nothing has been read.
    pub fn new() -> Script {
        Script::default()
    }

    /// The operations of a whole script.
    pub fn parse(text: &str) -> Result<Vec<Op>, ScriptError> {
        let mut script = Script::new();
        text.lines().filter_map(|line| script.read_line(line).transpose()).collect()
    }

    /// The operations of a whole script, read line by line, so that its text need not be in memory.
    pub fn read(mut reader: impl BufRead) -> Result<Vec<Op>, ScriptError> {
        let mut script = Script::new();
        let mut ops = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            match Read::take(&mut reader, LINE_BYTES_MAX).read_line(&mut line) {
                Ok(0) => return Ok(ops),
                Ok(read) if read as u64 == LINE_BYTES_MAX && !line.ends_with('\n') => {
                    let text = format!("the line is longer than {LINE_BYTES_MAX} bytes.");
                    return Err(ScriptError { line: script.line + 1, text });
                }
                Ok(_) => ops.extend(script.read_line(&line)?),
                Err(error) => {
                    let text = format!("the line cannot be read: {error}.");
                    return Err(ScriptError { line: script.line + 1, text });
                }
            }
        }
    }

    /// The line on which the operation of this number stands, counted from 0, in a script that can
    /// be read.
    pub fn line_of(reader: impl BufRead, index: usize) -> Option<usize> {
        let mut script = Script::new();
        let mut left = index;
        for line in reader.lines() {
            if script.read_line(&line.ok()?).ok()?.is_some() {
                if left == 0 {
                    return Some(script.line);
                }
                left -= 1;
            }
        }
        None
    }

    /// The operation on the next line; none if it is empty or a comment.
    pub fn read_line(&mut self, line: &str) -> Result<Option<Op>, ScriptError> {
        self.line += 1;
        // Some editors put a mark at the beginning of a text.
        let line = line.trim_start_matches('\u{feff}').trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let op = read_op(line).and_then(|op| self.check_id(op).map(|()| op));
        op.map(Some).map_err(|text| ScriptError { line: self.line, text })
    }

    /// Follows the life of the ID that the operation names, if it names one.
    fn check_id(&mut self, op: Op) -> Result<(), String> {
        let (id, is_free) = match op {
            Op::Alloc { id, .. } => {
                return match self.ids.insert(id, Life::Allocated { line: self.line }) {
                    None => Ok(()),
                    Some(Life::Allocated { line } | Life::Freed { allocated_line: line, .. }) => {
                        Err(format!("ID {id} is not fresh: line {line} names it already."))
                    }
                };
            }
            Op::Free { id } => (id, true),
            Op::Record { id, .. } => (id, false),
            Op::Checkpoint { checkpoint, .. } => return self.check_checkpoint(checkpoint),
            Op::Restore { checkpoint } => return self.check_restore(checkpoint),
            _ => return Ok(()),
        };
        match self.ids.get_mut(&id) {
            None => Err(format!("ID {id} is not allocated on any line before this one.")),
            Some(Life::Freed { line, .. }) => {
                Err(format!("ID {id} is freed already, on line {line}."))
            }
            Some(life) => {
                if let (true, &mut Life::Allocated { line }) = (is_free, &mut *life) {
                    *life = Life::Freed { allocated_line: line, line: self.line };
                }
                Ok(())
            }
        }
    }
}

impl Script {
    /// Remembers which IDs are live at a checkpoint.
    fn check_checkpoint(&mut self, checkpoint: u32) -> Result<(), String> {
        if let Some((line, _)) = self.checkpoints.get(&checkpoint) {
            return Err(format!("checkpoint {checkpoint} is not fresh: line {line} names it."));
        }
        let live = self.ids.iter().filter(|(_, life)| matches!(life, Life::Allocated { .. }));
        let live = live.map(|(&id, _)| id).collect();
        self.checkpoints.insert(checkpoint, (self.line, live));
        Ok(())
    }

    /// What was live at the checkpoint may be live again. Which IDs those are depends on the pools
    /// that they went to, which shows only when the script runs.
    fn check_restore(&mut self, checkpoint: u32) -> Result<(), String> {
        let Some((_, live)) = self.checkpoints.get(&checkpoint) else {
            return Err(format!("checkpoint {checkpoint} is made on no line before this one."));
        };
        for id in live {
            if let Some(life) = self.ids.get_mut(id)
                && let Life::Freed { allocated_line, .. } = *life
            {
                *life = Life::Allocated { line: allocated_line };
            }
        }
        Ok(())
    }
}

fn read_op(line: &str) -> Result<Op, String> {
    let mut all = line.split_whitespace();
    let name = all.next().unwrap_or_default();
    let mut words = Words { name, rest: all };
    let op = match name {
        "alloc" => Op::Alloc {
            id: words.number("ID", u64::MAX)?,
            size_bytes: words.size("BYTES")?,
            stream: words.small_number("STREAM")?,
        },
        "free" => Op::Free { id: words.number("ID", u64::MAX)? },
        "record" => {
            Op::Record { id: words.number("ID", u64::MAX)?, stream: words.small_number("STREAM")? }
        }
        "sync" => Op::Sync { stream: words.small_number("STREAM")? },
        "empty" => Op::Empty,
        "pool-new" => Op::PoolNew { pool: words.small_number("POOL")? },
        "pool-begin" => Op::PoolBegin { pool: words.small_number("POOL")?, route: words.route()? },
        "pool-end" => Op::PoolEnd { pool: words.small_number("POOL")? },
        "pool-release" => Op::PoolRelease { pool: words.small_number("POOL")? },
        "pool-empty" => Op::PoolEmpty { pool: words.small_number("POOL")? },
        "pool-use-on-oom" => {
            Op::PoolUseOnOom { pool: words.small_number("POOL")?, on: words.on_or_off()? }
        }
        "pool-no-split" => Op::PoolNoSplit { pool: words.small_number("POOL")? },
        "fraction" => Op::Fraction { fraction: words.fraction()? },
        "capture-begin" => Op::CaptureBegin { stream: words.small_number("STREAM")? },
        "capture-end" => Op::CaptureEnd { stream: words.small_number("STREAM")? },
        "launch" => Op::Launch { stream: words.small_number("STREAM")? },
        "wait" => {
            let (stream, other) = (words.small_number("STREAM")?, words.small_number("OTHER")?);
            Op::Wait { stream, other }
        }
        "checkpoint" => {
            let checkpoint = words.small_number("CHECKPOINT")?;
            Op::Checkpoint { checkpoint, pool: words.small_number("POOL")? }
        }
        "restore" => Op::Restore { checkpoint: words.small_number("CHECKPOINT")? },
        "reset-peak" => Op::ResetPeak,
        "reset-accumulated" => Op::ResetAccumulated,
        _ => return Err(unknown(name)),
    };
    match words.rest.next() {
        None => Ok(op),
        Some(word) if word.starts_with('#') => {
            Err("a comment has a line of its own: put it above this one.".to_owned())
        }
        Some(word) => Err(format!("{} is one word too many for '{name}'.", quote(word))),
    }
}

/// Says what there is in the place of an operation that there is not.
fn unknown(name: &str) -> String {
    let meant = nearest(name, &NAMES).map(|meant| format!("did you mean {meant}? "));
    let (name, meant) = (quote(name), meant.unwrap_or_default());
    format!("there is no operation {name}; {meant}the operations are {}.", NAMES.join(", "))
}

/// The operations, as they are written.
const NAMES: [&str; 21] = [
    "alloc",
    "free",
    "record",
    "sync",
    "empty",
    "fraction",
    "reset-peak",
    "reset-accumulated",
    "pool-new",
    "pool-begin",
    "pool-end",
    "pool-release",
    "pool-empty",
    "pool-use-on-oom",
    "pool-no-split",
    "capture-begin",
    "capture-end",
    "launch",
    "wait",
    "checkpoint",
    "restore",
];

/// The units that a size may have. They are exact, because a script is.
const UNITS: [(&str, u64); 4] = [("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("TiB", 1024 * GIB)];

/// The words behind an operation's name.
struct Words<'a> {
    name: &'a str,
    rest: SplitWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.rest.next().ok_or_else(|| format!("'{}' lacks its {what}.", self.name))
    }

    fn number(&mut self, what: &str, max: u64) -> Result<u64, String> {
        let word = self.next(what)?;
        // Digits only: the standard parser would let a plus sign through.
        let is_digits = word.bytes().all(|byte| byte.is_ascii_digit());
        let number = word.parse().ok().filter(|&number| is_digits && number <= max);
        number.ok_or_else(|| {
            format!("{what} must be a whole number up to {max}, not {}.", quote(word))
        })
    }

    /// A number of bytes, or of larger units, as in `5GiB`.
    fn size(&mut self, what: &str) -> Result<u64, String> {
        let word = self.rest.clone().next().unwrap_or_default();
        let cut = |(unit, bytes): (&str, u64)| Some((word.strip_suffix(unit)?, bytes));
        let Some((digits, unit_bytes)) = UNITS.into_iter().find_map(cut) else {
            return self.number(what, u64::MAX).map_err(|error| {
                let end =
                    if word.is_empty() { "" } else { " It may have a unit: KiB, MiB, GiB or TiB." };
                format!("{error}{end}")
            });
        };
        self.rest.next();
        let is_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| is_digits);
        let bytes = number.and_then(|number| number.checked_mul(unit_bytes));
        bytes.ok_or_else(|| {
            format!("{what} must be a whole number of bytes or of a unit, not {}.", quote(word))
        })
    }

    fn small_number(&mut self, what: &str) -> Result<u32, String> {
        self.number(what, u64::from(u32::MAX)).map(|number| number as u32)
    }

    fn route(&mut self) -> Result<Route, String> {
        match self.rest.clone().next() {
            Some("*") => {
                self.rest.next();
                Ok(Route::All)
            }
            Some("capture") => {
                self.rest.next();
                self.small_number("STREAM").map(Route::Capture)
            }
            _ => self.small_number("STREAM").map(Route::Stream),
        }
    }

    fn on_or_off(&mut self) -> Result<bool, String> {
        match self.next("'on' or 'off'")? {
            "on" => Ok(true),
            "off" => Ok(false),
            word => {
                Err(format!("a pool's use on out of memory is 'on' or 'off', not {}.", quote(word)))
            }
        }
    }

    fn fraction(&mut self) -> Result<f64, String> {
        let word = self.next("F")?;
        let fraction = word.parse().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
        fraction.ok_or_else(|| format!("F must be a number from 0 to 1, not {}.", quote(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn error(text: &str) -> String {
        Script::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn operations_are_found_by_their_number() {
        let text = "# a comment\nalloc 1 2 3\n\nfree 1\n";
        assert_eq!(Script::line_of(text.as_bytes(), 0), Some(2));
        assert_eq!(Script::line_of(text.as_bytes(), 1), Some(4));
        assert_eq!(Script::line_of(text.as_bytes(), 2), None);
    }

    #[test]
    fn long_lines_and_long_words_are_cut_short() {
        let long = "x".repeat(3000);
        // The operations are listed behind it.
        assert!(error(&long).len() < 120 + NAMES.join(", ").len(), "{}", error(&long));
        let endless = format!("alloc 1 2 3\n# {}", "x".repeat(10_000));
        let refused = Script::read(endless.as_bytes()).unwrap_err();
        assert_eq!(refused.to_string(), "line 2: the line is longer than 4096 bytes.");
    }

    const EVERY_OPERATION: &str = "\
alloc 1 1048576 0
alloc 18446744073709551615 18446744073709551615 4294967295
record 1 3
sync 3
free 1
empty
pool-new 2
pool-begin 2 7
pool-begin 2 *
pool-begin 2 capture 7
pool-end 2
pool-release 2
pool-empty 2
pool-use-on-oom 2 on
pool-use-on-oom 2 off
pool-no-split 2
fraction 0.25
fraction 1
capture-begin 7
launch 7
wait 8 7
capture-end 7
checkpoint 1 2
restore 1
reset-peak
reset-accumulated
";

    #[test]
    fn every_operation_is_read_and_printed_as_it_was() {
        let ops = Script::parse(EVERY_OPERATION).unwrap();
        let printed: Vec<String> = ops.iter().map(Op::to_string).collect();
        assert_eq!(printed, EVERY_OPERATION.lines().collect::<Vec<_>>());
        assert_eq!(Script::read(EVERY_OPERATION.as_bytes()), Ok(ops));
    }

    #[test]
    fn comments_and_spare_spaces_do_not_matter() {
        let text = "# a comment\n\n  alloc   7 512\t0 \r\n   # another\nfree 7";
        let ops = [Op::Alloc { id: 7, size_bytes: 512, stream: 0 }, Op::Free { id: 7 }];
        assert_eq!(Script::parse(text).unwrap(), ops);
        assert_eq!(Script::read(text.as_bytes()).unwrap(), ops);
        assert_eq!(Script::parse(""), Ok(vec![]));
    }

    #[test]
    fn an_error_names_the_line_and_says_what_is_wrong() {
        let unknown = error("\n# x\nmalloc 1");
        assert!(
            unknown.starts_with("line 3: there is no operation 'malloc'; did you"),
            "{unknown}"
        );
        let near = error("aloc 1 5 0");
        assert!(near.contains("'aloc'; did you mean alloc? the operations are alloc, "), "{near}");
        assert_eq!(error("alloc 1 512"), "line 1: 'alloc' lacks its STREAM.");
        assert_eq!(error("empty now"), "line 1: 'now' is one word too many for 'empty'.");
        assert_eq!(
            error("alloc 1 512 0 # why"),
            "line 1: a comment has a line of its own: put it above this one."
        );
        assert_eq!(
            error("pool-use-on-oom 3 maybe"),
            "line 1: a pool's use on out of memory is 'on' or 'off', not 'maybe'."
        );
        assert_eq!(
            error("pool-use-on-oom 3"),
            "line 1: 'pool-use-on-oom' lacks its 'on' or 'off'."
        );
        assert_eq!(error("pool-begin 3"), "line 1: 'pool-begin' lacks its STREAM.");
    }

    #[test]
    fn sizes_may_have_units() {
        let op = |size_bytes| Ok(vec![Op::Alloc { id: 1, size_bytes, stream: 0 }]);
        assert_eq!(Script::parse("alloc 1 5GiB 0"), op(5 * GIB));
        assert_eq!(Script::parse("alloc 1 512KiB 0"), op(512 * KIB));
        for bad in ["5GB", "1.5GiB", "GiB", "+5MiB", "99999999999TiB"] {
            let text = error(&format!("alloc 1 {bad} 0"));
            assert!(text.contains("BYTES must be a whole number"), "{text}");
        }
        assert!(error("alloc 1 5GB 0").ends_with("It may have a unit: KiB, MiB, GiB or TiB."));
    }

    /// What is listed for people is what is read.
    #[test]
    fn every_operation_is_listed() {
        for name in NAMES {
            let text = read_op(name).err().unwrap_or_default();
            assert!(!text.contains("there is no operation"), "{text}");
        }
    }

    #[test]
    fn numbers_are_whole_and_fit() {
        for word in ["-1", "+1", "1.5", "0x10", "18446744073709551616", "ten", "1_000"] {
            let text = error(&format!("alloc 1 {word} 0"));
            let range = "a whole number up to 18446744073709551615";
            let unit = "It may have a unit: KiB, MiB, GiB or TiB.";
            assert_eq!(text, format!("line 1: BYTES must be {range}, not {}. {unit}", quote(word)));
        }
        assert_eq!(
            error("sync 4294967296"),
            "line 1: STREAM must be a whole number up to 4294967295, not '4294967296'."
        );
        for word in ["-0.1", "1.01", "NaN", "inf", "half"] {
            let text = error(&format!("fraction {word}"));
            assert_eq!(
                text,
                format!("line 1: F must be a number from 0 to 1, not {}.", quote(word))
            );
        }
    }

    #[test]
    fn ids_are_fresh_when_allocated_and_live_when_named() {
        assert_eq!(
            error("alloc 1 512 0\nfree 1\nalloc 1 512 0"),
            "line 3: ID 1 is not fresh: line 1 names it already."
        );
        assert_eq!(error("free 9"), "line 1: ID 9 is not allocated on any line before this one.");
        assert_eq!(error("record 9 1\nalloc 9 1 0").split(':').next(), Some("line 1"));
        let twice = "alloc 1 512 0\nfree 1\nfree 1";
        assert_eq!(error(twice), "line 3: ID 1 is freed already, on line 2.");
    }

    #[test]
    fn a_restore_may_bring_back_what_was_live_at_its_checkpoint() {
        let text = "pool-new 1\nalloc 1 512 0\ncheckpoint 7 1\nalloc 2 512 0\nfree 1\nfree 2\n\
                    restore 7\nfree 1";
        assert_eq!(Script::parse(text).map(|ops| ops.len()), Ok(8));
        assert_eq!(error(&format!("{text}\nfree 2")), "line 9: ID 2 is freed already, on line 6.");
        assert_eq!(error(&format!("{text}\nfree 1")), "line 9: ID 1 is freed already, on line 8.");
        assert_eq!(error("restore 3"), "line 1: checkpoint 3 is made on no line before this one.");
        assert_eq!(
            error("checkpoint 3 1\ncheckpoint 3 2"),
            "line 2: checkpoint 3 is not fresh: line 1 names it."
        );
    }

    #[test]
    fn text_that_is_not_text_is_an_error_of_its_line() {
        let bytes: &[u8] = b"empty\n\xff\n";
        assert_eq!(Script::read(bytes).unwrap_err().line, 2);
    }
    #[test]
    fn no_line_makes_the_reader_panic() {
        let words =
            ["alloc", "free", "pool-begin", "fraction", "*", "-1", "0", "1e999", "\u{e9}", "\0"];
        let mut random = Random::new(5);
        let mut script = Script::new();
        for _ in 0..10_000 {
            let count = random.below(5);
            let line: Vec<&str> = (0..count).map(|_| *random.pick(&words)).collect();
            if let Ok(Some(op)) = script.read_line(&line.join(" ")) {
                assert!(!op.to_string().is_empty());
            }
        }
        assert_eq!(script.read_line("x").unwrap_err().line, 10_001);
    }
}
