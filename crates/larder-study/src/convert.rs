//! Convert: a snapshot or a script as another kind of file.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_sim::script::Op;
use larder_snapshot::{Epoch, Snapshot, whole};
use larder_tape::Recorder;

use crate::file::{Contents, LoadError};
use crate::option_error::OptionError;
use crate::recording::Recording;
use crate::replay::{Replay, Setup};
use crate::workload::Workload;

/// A kind of file that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A snapshot: torch's pickle, JSON, or a trace for Perfetto.
    Snapshot(larder_snapshot::Format),
    /// An op script.
    Ops,
    /// A tape; only of a script, which is run for it.
    Tape,
}

impl Format {
    /// The format that a file's name asks for.
    pub fn of_path(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_string_lossy().into_owned();
        // A tape is mapped into memory while it is written, so that it cannot be packed.
        if name.ends_with(".tape.gz") {
            return None;
        }
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let endings = [(".ops", Format::Ops), (".tape", Format::Tape)];
        let ours = endings.into_iter().find(|(ending, _)| name.ends_with(ending));
        ours.map(|(_, format)| format)
            .or_else(|| larder_snapshot::Format::of_path(path).map(Format::Snapshot))
    }
}

impl FromStr for Format {
    type Err = OptionError;

    fn from_str(name: &str) -> Result<Format, OptionError> {
        match name {
            "ops" => Ok(Format::Ops),
            "tape" => Ok(Format::Tape),
            _ => {
                let format = name.parse().map(Format::Snapshot);
                format.map_err(|_| OptionError::Format(name.to_owned()))
            }
        }
    }
}

/// What a conversion came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Values of a kind that is not kept, which were left out.
    pub unkept_values: u64,
}

/// Writes what `input` held to `out`; `-` is standard output. A script is run for it with the given
/// setup; of a snapshot an op script takes the trace of one device, and everything else takes all
/// of them. The file is there whole or not at all, but for a tape, which grows as the script runs.
pub fn convert(
    input: &Path,
    contents: Contents,
    out: &Path,
    format: Format,
    device: u32,
    setup: &Setup,
) -> Result<Converted, LoadError> {
    let said = |what: &dyn fmt::Display| LoadError(format!("{}: {what}", input.display()));
    let snapshot = match (contents, format) {
        (Contents::Script(ops), Format::Ops) => {
            whole::write(out, |file| write_ops(&ops, file))?;
            return Ok(Converted::default());
        }
        (Contents::Script(ops), Format::Tape) => {
            record(ops, setup, Some(out)).map_err(|sentence| said(&sentence))?;
            return Ok(Converted::default());
        }
        (Contents::Script(ops), _) => {
            record(ops, setup, None).map_err(|sentence| said(&sentence))?
        }
        (Contents::Snapshot(snapshot), _) => *snapshot,
    };
    save(&snapshot, out, format, device).map_err(|problem| match problem {
        Unsaved::Snapshot(sentence) => said(&sentence),
        Unsaved::File(error) => error,
    })?;
    Ok(Converted { unkept_values: snapshot.unkept_values })
}

/// Why a snapshot was not written; one sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unsaved {
    /// It cannot be had in this format.
    Snapshot(String),
    /// The file cannot be written.
    File(LoadError),
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsaved::Snapshot(sentence) => f.write_str(sentence),
            Unsaved::File(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unsaved {}

/// Writes a snapshot to `out`, whole or not at all. An op script takes the trace of one device.
pub fn save(snapshot: &Snapshot, out: &Path, format: Format, device: u32) -> Result<(), Unsaved> {
    let written = match format {
        Format::Snapshot(format) => snapshot.save_as(out, format),
        Format::Ops => {
            let recording = Recording::from_snapshot(snapshot, device)
                .map_err(|error| Unsaved::Snapshot(error.to_string()))?;
            whole::write(out, |file| write_ops(&recording.ops, file))
        }
        Format::Tape => {
            let sentence = "only a script can be recorded on a tape";
            return Err(Unsaved::Snapshot(sentence.to_owned()));
        }
    };
    written.map_err(|error| Unsaved::File(error.into()))
}

/// Runs a script with its history on.
fn record(ops: Vec<Op>, setup: &Setup, tape: Option<&Path>) -> Result<Snapshot, String> {
    let workload = Workload { ops, ..Workload::default() };
    let replay = Replay::new(&workload, setup);
    let Some(path) = tape else {
        let recording = replay.allocator().record_history(HistoryOptions::default());
        recording.map_err(|error| error.to_string())?;
        let allocator = replay.run_on(&workload.ops, &mut ()).map_err(|error| error.to_string())?;
        let taken = allocator.take_snapshot(SnapshotOptions::default());
        return Ok(Snapshot::of_allocators(&[taken], Epoch::default()));
    };
    let mut snapshot = None;
    let written = whole::under_another_name(path, |part| {
        let recorder = Recorder::create(part)?;
        recorder.listen(replay.allocator());
        let ran = replay.run_on(&workload.ops, &mut ());
        // That the allocator goes afterwards, and gives everything back, is no part of the script.
        recorder.end()?;
        let allocator = ran.map_err(|error| io::Error::other(error.to_string()))?;
        let taken = allocator.take_snapshot(SnapshotOptions::default());
        snapshot = Some(Snapshot::of_allocators(&[taken], Epoch::default()));
        Ok(())
    });
    written.map_err(|error| error.to_string())?;
    snapshot.ok_or_else(|| format!("{}: nothing was recorded", path.display()))
}

fn write_ops(ops: &[Op], mut out: &mut dyn Write) -> io::Result<()> {
    ops.iter().try_for_each(|op| writeln!(&mut out, "{op}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_say_the_format() {
        let format = |name: &str| Format::of_path(Path::new(name));
        let pickle = Format::Snapshot(larder_snapshot::Format::Pickle);
        assert_eq!(format("a/x.pickle.gz"), Some(pickle));
        assert_eq!(format("x.ops"), Some(Format::Ops));
        assert_eq!(format("x.tape"), Some(Format::Tape));
        assert_eq!(format("x.tape.gz"), None, "a tape cannot be packed");
        assert_eq!(format("x.txt"), None);
        assert_eq!(format("json"), None);
    }

    #[test]
    fn formats_have_names() {
        let perfetto = Format::Snapshot(larder_snapshot::Format::Perfetto);
        assert_eq!("perfetto".parse(), Ok(perfetto));
        assert!("xml".parse::<Format>().unwrap_err().to_string().contains("'xml'"));
    }
}
