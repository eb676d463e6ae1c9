//! Convert: a snapshot or a script as another kind of file.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::Compression;
use flate2::write::GzEncoder;
use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_sim::script::Op;
use larder_tape::Recorder;

use crate::file::{Contents, LoadError, STANDARD};
use crate::perfetto;
use crate::replay::{Replay, Setup};
use crate::snapshot::{Epoch, Recording, Snapshot};
use crate::workload::Workload;

/// A kind of file that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Torch's pickle.
    Pickle,
    /// JSON, with the keys of torch's dictionary.
    Json,
    /// An op script.
    Ops,
    /// A trace for Perfetto and Chrome.
    Perfetto,
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
        let endings = [
            (".perfetto.json", Format::Perfetto),
            (".trace.json", Format::Perfetto),
            (".json", Format::Json),
            (".pickle", Format::Pickle),
            (".pkl", Format::Pickle),
            (".ops", Format::Ops),
            (".tape", Format::Tape),
        ];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Format, String> {
        match name {
            "pickle" => Ok(Format::Pickle),
            "json" => Ok(Format::Json),
            "ops" => Ok(Format::Ops),
            "perfetto" => Ok(Format::Perfetto),
            "tape" => Ok(Format::Tape),
            _ => Err(format!(
                "there is no format '{name}'; there are pickle, json, ops, perfetto and tape"
            )),
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
/// setup; of a snapshot an op script takes the trace of one device, and everything else takes all of
/// them. The file is there whole or not at all, but for a tape, which grows as the script runs.
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
            write_whole(out, |file| write_ops(&ops, file))?;
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
        Format::Pickle => write_whole(out, |file| snapshot.write_pickle(file)),
        Format::Json => write_whole(out, |file| snapshot.write_json(file)),
        Format::Perfetto => write_whole(out, |file| perfetto::write(snapshot, file)),
        Format::Ops => {
            let recording = Recording::from_snapshot(snapshot, device)
                .map_err(|error| Unsaved::Snapshot(error.to_string()))?;
            write_whole(out, |file| write_ops(&recording.ops, file))
        }
        Format::Tape => {
            let sentence = "only a script can be recorded on a tape";
            return Err(Unsaved::Snapshot(sentence.to_owned()));
        }
    };
    written.map_err(Unsaved::File)
}

/// Runs a script with its history on.
fn record(ops: Vec<Op>, setup: &Setup, tape: Option<&Path>) -> Result<Snapshot, String> {
    let workload = Workload { ops, ..Workload::default() };
    let replay = Replay::new(&workload, setup);
    let Some(path) = tape else {
        let recording = replay.allocator().record_history(HistoryOptions::default());
        recording.map_err(|error| error.to_string())?;
        let allocator = replay.run_on(&workload.ops).map_err(|error| error.to_string())?;
        let taken = allocator.take_snapshot(SnapshotOptions::default());
        return Ok(Snapshot::of_allocators(&[taken], Epoch::default()));
    };
    let mut snapshot = None;
    let written = whole(path, |part| {
        let recorder = Recorder::create(part)?;
        recorder.listen(replay.allocator());
        let ran = replay.run_on(&workload.ops);
        recorder.finish()?;
        let allocator = ran.map_err(|error| io::Error::other(error.to_string()))?;
        let taken = allocator.take_snapshot(SnapshotOptions::default());
        snapshot = Some(Snapshot::of_allocators(&[taken], Epoch::default()));
        Ok(())
    });
    written.map_err(|error| error.0)?;
    snapshot.ok_or_else(|| format!("{}: nothing was recorded", path.display()))
}

fn write_ops(ops: &[Op], mut out: &mut dyn Write) -> io::Result<()> {
    ops.iter().try_for_each(|op| writeln!(&mut out, "{op}"))
}

/// Writes a file that is there whole or not at all; packed if its name says so.
fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), LoadError> {
    if path == Path::new(STANDARD) {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = write(&mut out).and_then(|()| out.flush());
        return match written {
            // A reader that has seen enough, such as `head`, is no failure.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(LoadError(format!("standard output: {error}")))
            }
            _ => Ok(()),
        };
    }
    let is_packed = path.extension().is_some_and(|ending| ending == "gz");
    whole(path, |part| {
        let mut file = BufWriter::new(File::create(part)?);
        if is_packed {
            let mut packer = GzEncoder::new(file, Compression::default());
            write(&mut packer)?;
            file = packer.finish()?;
        } else {
            write(&mut file)?;
        }
        file.flush()
    })
}

/// Has a file written under another name beside it, and gives it its own name once it is whole. A
/// link stays one: what it points to is replaced. What is there and is no file, a pipe or a device,
/// is written to as it is.
fn whole(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), LoadError> {
    let said = |error: io::Error| LoadError(format!("{}: {error}", path.display()));
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|facts| !facts.is_file()) {
        return write(&target).map_err(said);
    }
    let part = (0..u32::MAX).map(|number| {
        let mut part = target.as_os_str().to_owned();
        part.push(format!(".part{number}"));
        PathBuf::from(part)
    });
    // A name that nobody has: what is there already is somebody's.
    let part = part.into_iter().find(|part| !part.exists()).unwrap_or_default();
    let written = write(&part).and_then(|()| fs::rename(&part, &target));
    written.map_err(|error| {
        // What is left of it is of no use.
        let _ = fs::remove_file(&part);
        said(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_say_the_format() {
        let format = |name: &str| Format::of_path(Path::new(name));
        assert_eq!(format("a/x.pickle"), Some(Format::Pickle));
        assert_eq!(format("x.pickle.gz"), Some(Format::Pickle));
        assert_eq!(format("x.json"), Some(Format::Json));
        assert_eq!(format("x.perfetto.json.gz"), Some(Format::Perfetto));
        assert_eq!(format("x.ops"), Some(Format::Ops));
        assert_eq!(format("x.tape"), Some(Format::Tape));
        assert_eq!(format("x.tape.gz"), None, "a tape cannot be packed");
        assert_eq!(format("x.txt"), None);
        assert_eq!(format("json"), None);
    }

    #[test]
    fn formats_have_names() {
        assert_eq!("perfetto".parse(), Ok(Format::Perfetto));
        assert!("xml".parse::<Format>().unwrap_err().contains("'xml'"));
    }
}
