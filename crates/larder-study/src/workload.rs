//! Workloads: the operations of a file, be it an op script or a torch memory snapshot.

use std::path::Path;
use std::str::FromStr;

use larder_core::types::Span;
use larder_core::{Policy, TorchVersion};
use larder_sim::script::Op;

use crate::file::{Contents, LoadError, Snapshot};
use crate::option_error::OptionError;
use crate::recording::{Origin, RecordedMemory, Recording};
use crate::sizes::Sizes;
use crate::watch::Watch;

/// Which addresses the simulated GPU gives to plain allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// Those that the recorded GPU gave, while they last; then the lowest.
    #[default]
    Recorded,
    /// The lowest that are free.
    Lowest,
}

impl FromStr for Addresses {
    type Err = OptionError;

    fn from_str(word: &str) -> Result<Addresses, OptionError> {
        match word {
            "recorded" => Ok(Addresses::Recorded),
            "lowest" => Ok(Addresses::Lowest),
            _ => Err(OptionError::Addresses(word.to_owned())),
        }
    }
}

/// What a file asks of an allocator.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// What each allocation is in the recording, by its ID; a script has none.
    pub origins: Vec<Origin>,
    /// The addresses that the recorded GPU gave to segments; a script has none.
    pub segment_addresses: Vec<Span>,
    /// What there is to say about a recording besides its operations.
    pub recording: Option<RecordingFacts>,
    /// How many streams the recorded program used: their numbers are those below this, and higher
    /// ones are made up. None of a script, where all are the program's own.
    pub own_streams: Option<u32>,
    /// How the sizes were changed since it was read.
    pub sizes: Sizes,
}

/// What a summary says about a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordingFacts {
    /// Blocks that were live before the recording began; they are allocated first.
    pub preexisting_blocks: u64,
    /// Bytes of those blocks.
    pub preexisting_bytes: u64,
    /// Out-of-memory errors that the program saw while it was recorded.
    pub ooms: u64,
    /// Whether the program asked for nothing after the last of them.
    pub ends_at_failure: bool,
    /// Entries of the trace.
    pub entries: u64,
    /// Entries of a kind that is not known; they are not replayed.
    pub unknown_entries: u64,
    /// How often the recorded allocator gave memory back by itself.
    pub own_flushes: u64,
    /// How many of those the program may have asked for all the same.
    pub doubtful_flushes: u64,
    /// How often the recorded allocator gave its cache back and tried again: at least, and at most.
    pub retries: (u64, u64),
    /// How much memory the recorded program had, if the recording tells it.
    pub memory: Option<RecordedMemory>,
    /// The most that it held at once.
    pub held_bytes: u64,
    /// The allocations that are requests which failed: the program never had them.
    pub refused: Vec<u64>,
    /// The settings of the recorded allocator, if the recording has them.
    pub conf: Option<String>,
    /// The PyTorch that made the recording, as far as its keys tell.
    pub torch: Option<TorchVersion>,
    /// The policy of Larder's that made it, if one did.
    pub policy: Option<Policy>,
    /// Whether a request that failed had the recording written, the last that it tells of.
    pub on_failure: bool,
}

impl Workload {
    /// How much memory the recorded program had, if this is a recording that tells it.
    pub fn recorded_memory(&self) -> Option<RecordedMemory> {
        self.recording.as_ref().and_then(|facts| facts.memory)
    }

    /// What the recorded program was allowed of the memory that it had, if the recording tells that
    /// there was a limit.
    pub fn recorded_cap_bytes(&self) -> Option<u64> {
        let memory = self.recorded_memory()?;
        Some(self.sizes.scaled(memory.allowed_bytes()?))
    }

    /// The settings of the recorded allocator, if this is a recording that has some.
    pub fn recorded_conf(&self) -> Option<&str> {
        self.recording.as_ref().and_then(|facts| facts.conf.as_deref())
    }

    /// The PyTorch that made the recording, if this is one and tells.
    pub fn recorded_torch(&self) -> Option<TorchVersion> {
        self.recording.as_ref().and_then(|facts| facts.torch)
    }

    /// What stock PyTorch decides for it: the one that made the recording, where that is known.
    pub fn stock(&self) -> Policy {
        Policy::torch().for_recording(self.recorded_torch())
    }

    /// Changes every size. The segments of the recorded GPU had other sizes, so that their
    /// addresses serve no more.
    pub fn resize(&mut self, sizes: Sizes) {
        if sizes.is_same() {
            return;
        }
        sizes.change(&mut self.ops);
        self.segment_addresses.clear();
        self.sizes = sizes;
    }

    /// Reads a file: a snapshot if it looks like one, else an op script. Of a snapshot the trace of
    /// `device` is taken.
    pub fn load(path: &Path, device: u32, watch: &dyn Watch) -> Result<Workload, LoadError> {
        Workload::load_whole(path, device, watch).map(|(workload, _)| workload)
    }

    /// Loads a workload and the snapshot that it was made from, if it was from one: that has the
    /// stacks.
    pub fn load_whole(
        path: &Path,
        device: u32,
        watch: &dyn Watch,
    ) -> Result<(Workload, Option<Box<Snapshot>>), LoadError> {
        match Contents::load(path, watch)? {
            Contents::Script(ops) => Ok((Workload { ops, ..Workload::default() }, None)),
            Contents::Snapshot(snapshot) => {
                let recording = Recording::from_snapshot(&snapshot, device)
                    .map_err(|error| LoadError(format!("{}: {error}", path.display())))?;
                Ok((recording.into(), Some(snapshot)))
            }
        }
    }
}

impl From<Recording> for Workload {
    fn from(recording: Recording) -> Workload {
        Workload {
            recording: Some(RecordingFacts {
                preexisting_blocks: recording.preexisting_blocks,
                preexisting_bytes: recording.preexisting_bytes,
                ooms: recording.ooms,
                ends_at_failure: recording.ends_at_failure,
                entries: recording.entries,
                unknown_entries: recording.unknown_entries,
                own_flushes: recording.own_flushes,
                doubtful_flushes: recording.doubtful_flushes,
                retries: recording.retries,
                memory: recording.memory,
                held_bytes: recording.held_bytes,
                refused: recording.refused,
                conf: recording.conf,
                torch: recording.torch,
                policy: recording.policy,
                on_failure: recording.on_failure,
            }),
            ops: recording.ops,
            origins: recording.origins,
            own_streams: Some(recording.streams),
            segment_addresses: recording.segment_addresses,
            sizes: Sizes::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::Addr;
    use larder_core::types::MIB;

    use super::*;

    #[test]
    fn other_sizes_leave_no_recorded_address() {
        let ops = vec![Op::Alloc { id: 1, size_bytes: 512, stream: 0 }, Op::Free { id: 1 }];
        let segment_addresses = vec![Span::new(Addr(MIB), MIB)];
        let mut workload = Workload { ops, segment_addresses, ..Workload::default() };
        workload.resize(Sizes::default());
        assert_eq!((workload.segment_addresses.len(), workload.sizes.is_same()), (1, true));
        let sizes = Sizes { scale: 8, jitter: None };
        workload.resize(sizes);
        assert_eq!(workload.ops[0], Op::Alloc { id: 1, size_bytes: 4096, stream: 0 });
        assert_eq!((workload.segment_addresses.len(), workload.sizes), (0, sizes));
    }
}
