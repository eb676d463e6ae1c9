//! Files: what a file holds, told by its first bytes and its name.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use larder_core::types::{GIB, MIB};
use larder_sim::script::{Op, Script};
use larder_snapshot::Epoch;
pub use larder_snapshot::Snapshot;
use larder_snapshot::pickle::Limits;
use larder_snapshot::whole::WriteError;
use larder_tape::Tape;

use crate::watch::{Extent, Watch, Watched};
pub use larder_snapshot::whole::STANDARD;

/// What a file holds.
pub enum Contents {
    /// Operations.
    Script(Vec<Op>),
    /// A memory snapshot: a pickle, JSON, or a tape.
    Snapshot(Box<Snapshot>),
}

/// Why a file cannot be taken; one sentence.
#[derive(Debug)]
pub struct LoadError(pub(crate) String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

impl From<WriteError> for LoadError {
    fn from(error: WriteError) -> LoadError {
        LoadError(error.to_string())
    }
}

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Script,
    Pickle,
    Json,
    Tape,
}

impl Contents {
    /// Reads a file; `-` is standard input.
    pub fn load(path: &Path, watch: &dyn Watch) -> Result<Contents, LoadError> {
        let said = |what: &dyn fmt::Display| LoadError(format!("{}: {what}", path.display()));
        if path == Path::new(STANDARD) {
            return read(BufReader::new(io::stdin().lock()), "", None, watch)
                .map_err(|sentence| LoadError(format!("standard input: {sentence}")));
        }
        let file = File::open(path).map_err(|error| said(&error))?;
        let facts = file.metadata().map_err(|error| said(&error))?;
        if facts.is_dir() {
            return Err(said(&"this is a folder, not a script or a snapshot"));
        }
        // Read through one handle from the beginning to the end: a pipe cannot be opened twice.
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let size_bytes = facts.is_file().then_some(facts.len());
        read(BufReader::new(file), &name, size_bytes, watch).map_err(|sentence| said(&sentence))
    }
}

/// Reads a file of whatever kind.
fn read(
    mut reader: impl BufRead,
    name: &str,
    size_bytes: Option<u64>,
    watch: &dyn Watch,
) -> Result<Contents, String> {
    let head = reader.fill_buf().map_err(|error| error.to_string())?;
    let is_packed = head.starts_with(&[0x1f, 0x8b]);
    // The reader of pickles unpacks by itself.
    let inner = name.strip_suffix(".gz").unwrap_or(name);
    if is_packed && [".json", ".tape", ".ops"].iter().any(|ending| inner.ends_with(ending)) {
        let mut unpacked = BufReader::new(MultiGzDecoder::new(reader));
        let head = unpacked.fill_buf().map_err(|error| error.to_string())?;
        return take(kind_of(head, inner)?, unpacked, None, watch);
    }
    let kind = kind_of(head, name)?;
    take(kind, reader, size_bytes, watch).map_err(|sentence| {
        // The reader of pickles counts what it has unpacked.
        let is_counted = is_packed && kind == Kind::Pickle && sentence.contains("byte ");
        if is_counted { format!("{sentence}; bytes are counted after unpacking") } else { sentence }
    })
}

/// Reads all of a file of this kind.
fn take(
    kind: Kind,
    reader: impl BufRead,
    size_bytes: Option<u64>,
    watch: &dyn Watch,
) -> Result<Contents, String> {
    let snapshot = match kind {
        Kind::Script => {
            let ops = Script::read(reader).map_err(|error| error.to_string())?;
            return Ok(Contents::Script(ops));
        }
        Kind::Tape => {
            let tape = Tape::read(reader).map_err(|error| error.to_string())?;
            Snapshot::of_tape(&tape, Epoch::default())
        }
        Kind::Json => Snapshot::read_json(reader).map_err(|error| error.to_string())?,
        Kind::Pickle => {
            let extent = Extent::Bytes(size_bytes.unwrap_or(0));
            let mut reading = Watched::begin(watch, "reading", extent);
            Snapshot::read(reader, limits_for(size_bytes), |read| reading.reach(read))
                .map_err(|error| error.to_string())?
        }
    };
    Ok(Contents::Snapshot(Box::new(snapshot)))
}

/// How much memory reading may take. A snapshot needs about its own size, and gzip packs it up to
/// twenty times; what asks for far more than that is no snapshot, however small the file.
fn limits_for(file_bytes: Option<u64>) -> Limits {
    let limits = Limits::default();
    let memory_bytes = file_bytes.map_or(4 * GIB, |bytes| 256 * MIB + 64 * bytes);
    Limits { memory_bytes: memory_bytes.min(limits.memory_bytes), ..limits }
}

/// What a trace for Perfetto has, and no snapshot.
const PERFETTO_KEY: &[u8] = b"\"traceEvents\"";

/// Told by its name where the name says it, or else because nothing else starts so.
fn kind_of(head: &[u8], name: &str) -> Result<Kind, &'static str> {
    let is_named = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if is_named(&[".ops"]) {
        return script(head);
    }
    if head.is_empty() && is_named(&[".tape", ".json", ".pickle", ".pickle.gz", ".pkl"]) {
        return Err("the file is empty");
    }
    if head.starts_with(&larder_tape::MAGIC) {
        return Ok(Kind::Tape);
    }
    if is_named(&[".tape"]) {
        return Err("this is not a tape, or one of another version");
    }
    let text = head.trim_ascii_start();
    if text.starts_with(b"{") && text.windows(PERFETTO_KEY.len()).any(|key| key == PERFETTO_KEY) {
        return Err(
            "this is a trace for Perfetto, which does not tell all that happened; give what \
                    it was made from",
        );
    }
    if is_named(&[".json"]) || matches!(text, [b'{' | b'[', ..]) {
        return Ok(Kind::Json);
    }
    let is_packed_or_pickled = matches!(head, [0x1f, 0x8b, ..] | [b'P', b'K', ..] | [0x80, ..]);
    if is_named(&[".pickle", ".pickle.gz", ".pkl"]) || is_packed_or_pickled {
        // The dictionary or list of an older pickle has other first bytes.
        let is_old = matches!(head, [b'}' | b']' | b'(' | b'I', ..]);
        if !is_packed_or_pickled && !is_old {
            return Err("this is neither a pickle nor gzipped");
        }
        return Ok(Kind::Pickle);
    }
    script(head)
}

/// A script is text; the last letter may be cut off where the head ends.
fn script(head: &[u8]) -> Result<Kind, &'static str> {
    match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_some() => {
            Err("this is no op script, which is text; the name of a snapshot ends in .pickle")
        }
        _ => Ok(Kind::Script),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_first_bytes() {
        assert_eq!(kind_of(b"alloc 1 2 3\n", "x"), Ok(Kind::Script));
        assert_eq!(kind_of(b"{\"segments\":[]}", "x"), Ok(Kind::Json));
        assert_eq!(kind_of(b"\n [", "x"), Ok(Kind::Json));
        assert_eq!(kind_of(b"\x80\x04", "x"), Ok(Kind::Pickle));
        assert_eq!(kind_of(b"\x1f\x8b", "x"), Ok(Kind::Pickle));
        assert_eq!(kind_of(b"LARDTAP1....", "x"), Ok(Kind::Tape));
        assert_eq!(kind_of(b"}", "x.pickle"), Ok(Kind::Pickle));
    }

    #[test]
    fn a_name_that_says_something_else_is_an_error() {
        assert!(kind_of(b"\x80\x04", "x.ops").unwrap_err().contains("no op script"));
        assert_eq!(kind_of(b"# caf\xc3", "x.ops"), Ok(Kind::Script));
        assert!(kind_of(b"alloc", "x.pickle").unwrap_err().contains("neither a pickle"));
        assert!(kind_of(b"alloc", "x.tape").unwrap_err().contains("not a tape"));
    }
}
