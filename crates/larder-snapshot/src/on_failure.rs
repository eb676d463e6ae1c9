//! On failure: a snapshot that is written by itself when a request cannot be met.

use std::path::PathBuf;

use larder_core::allocator::history::{HistoryOptions, SnapshotOptions};
use larder_core::{Allocator, Error};

use crate::{Epoch, Format, Snapshot};

/// How many entries of the history are kept for it: some 50 MB of the host's memory.
const ENTRIES_MAX: usize = 1 << 20;

/// Remembers what happens in an allocator from now on, and writes it down, with all memory as it
/// stands, whenever a request cannot be met. The error then names the file, and the command that
/// explains it.
///
/// The name of the file says the format, as for [`Snapshot::save`]; without one that is known it is
/// a pickle. `{pid}` in it becomes the number of the process. A later failure replaces an earlier
/// one's file. A file that cannot be written is told of on standard error, and the error names
/// none.
pub fn write_on_failure(allocator: &Allocator, path: &str, epoch: Epoch) -> Result<(), Error> {
    let path = PathBuf::from(path.replace("{pid}", &std::process::id().to_string()));
    // A program that records its own history does so after this, in its own way.
    allocator.record_history(HistoryOptions::default().max_entries(ENTRIES_MAX))?;
    allocator.write_on_out_of_memory(move |allocator, _| {
        let taken = allocator.take_snapshot(SnapshotOptions::default());
        let mut snapshot = Snapshot::of_allocators(&[taken], epoch);
        snapshot.mark_failure();
        let format = Format::of_path(&path).unwrap_or(Format::Pickle);
        match snapshot.save_as(&path, format) {
            Ok(()) => Some(path.display().to_string()),
            Err(error) => {
                eprintln!("larder: the snapshot of a failed request was not written: {error}");
                None
            }
        }
    });
    Ok(())
}
