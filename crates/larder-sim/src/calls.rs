//! The calls that a device takes: their kinds, and how many came.

/// One kind of device call, as faults and counters name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// `memory_info`.
    MemoryInfo,
    /// `processes`.
    Processes,
    /// `alloc`.
    Alloc,
    /// `free`.
    Free,
    /// `reserve`.
    Reserve,
    /// `unreserve`.
    Unreserve,
    /// `create_page`.
    Create,
    /// `release_page`.
    Release,
    /// `map`.
    Map,
    /// `unmap`.
    Unmap,
    /// `set_access`.
    Access,
    /// `create_event`.
    CreateEvent,
    /// `destroy_event`.
    DestroyEvent,
    /// `record_event`.
    Record,
    /// `query_event`.
    Query,
    /// `wait_event`.
    WaitEvent,
    /// `follow_event`.
    Follow,
    /// `wait_stream`.
    WaitStream,
    /// `wait_device`.
    WaitDevice,
    /// `capture_of`.
    CaptureOf,
    /// `capture_ends`.
    CaptureEnds,
    /// `node_dependencies`.
    NodeDependencies,
    /// `export_alloc` and `export_page`.
    Share,
    /// `import_alloc` and `import_page`.
    OpenShared,
    /// `close_alloc` and `unexport_page`.
    CloseShared,
    /// `open_to_peer` and `set_peer_access`.
    Peer,
    /// `copy_out`.
    CopyOut,
    /// `copy_in`.
    CopyIn,
    /// `clear`.
    Clear,
    /// `now_ns`. It cannot fail, so faults planned for it never strike.
    Clock,
}

/// How many kinds of call there are.
pub(crate) const KINDS: usize = 30;

impl CallKind {
    /// Every kind, in the order of the `Device` trait.
    pub const ALL: [CallKind; KINDS] = [
        CallKind::MemoryInfo,
        CallKind::Processes,
        CallKind::Alloc,
        CallKind::Free,
        CallKind::Reserve,
        CallKind::Unreserve,
        CallKind::Create,
        CallKind::Release,
        CallKind::Map,
        CallKind::Unmap,
        CallKind::Access,
        CallKind::CreateEvent,
        CallKind::DestroyEvent,
        CallKind::Record,
        CallKind::Query,
        CallKind::WaitEvent,
        CallKind::Follow,
        CallKind::WaitStream,
        CallKind::WaitDevice,
        CallKind::CaptureOf,
        CallKind::CaptureEnds,
        CallKind::NodeDependencies,
        CallKind::Share,
        CallKind::OpenShared,
        CallKind::CloseShared,
        CallKind::Peer,
        CallKind::CopyOut,
        CallKind::CopyIn,
        CallKind::Clear,
        CallKind::Clock,
    ];
}

/// How many calls of each kind a device has taken since it was made.
///
/// A field counts the calls that succeeded, except `alloc`, which counts those that failed too:
/// that is how a replay reports them. [`Calls::total`] counts every call, failed or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// `memory_info`.
    pub memory_info: u64,
    /// `processes`.
    pub processes: u64,
    /// `alloc`, those that failed included.
    pub alloc: u64,
    /// `free`.
    pub free: u64,
    /// `reserve`.
    pub reserve: u64,
    /// `unreserve`.
    pub unreserve: u64,
    /// `create_page`.
    pub create: u64,
    /// `release_page`.
    pub release: u64,
    /// `map`, one for each page.
    pub map: u64,
    /// `unmap`, one for each page.
    pub unmap: u64,
    /// `set_access`.
    pub access: u64,
    /// `create_event`.
    pub create_event: u64,
    /// `destroy_event`.
    pub destroy_event: u64,
    /// `record_event`.
    pub record_event: u64,
    /// `query_event`.
    pub query_event: u64,
    /// `wait_event`.
    pub wait_event: u64,
    /// `follow_event`.
    pub follow_event: u64,
    /// `wait_stream`.
    pub wait_stream: u64,
    /// `wait_device`.
    pub wait_device: u64,
    /// `capture_of`.
    pub capture_of: u64,
    /// `capture_ends`.
    pub capture_ends: u64,
    /// `node_dependencies`.
    pub node_dependencies: u64,
    /// `export_alloc` and `export_page`.
    pub share: u64,
    /// `import_alloc` and `import_page`.
    pub open_shared: u64,
    /// `close_alloc` and `unexport_page`.
    pub close_shared: u64,
    /// `open_to_peer` and `set_peer_access`.
    pub peer: u64,
    /// `copy_out`.
    pub copy_out: u64,
    /// `copy_in`.
    pub copy_in: u64,
    /// `clear`.
    pub clear: u64,
    /// `now_ns`.
    pub clock: u64,
    /// Calls of any kind that failed.
    pub failed: u64,
    total: u64,
}

impl Calls {
    /// Every call that reached the device, failed or not; all but `properties`.
    pub const fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn count(&mut self, kind: CallKind, succeeded: bool) {
        self.total += 1;
        if !succeeded {
            self.failed += 1;
        }
        if succeeded || kind == CallKind::Alloc {
            *self.field(kind) += 1;
        }
    }

    fn field(&mut self, kind: CallKind) -> &mut u64 {
        match kind {
            CallKind::MemoryInfo => &mut self.memory_info,
            CallKind::Processes => &mut self.processes,
            CallKind::Alloc => &mut self.alloc,
            CallKind::Free => &mut self.free,
            CallKind::Reserve => &mut self.reserve,
            CallKind::Unreserve => &mut self.unreserve,
            CallKind::Create => &mut self.create,
            CallKind::Release => &mut self.release,
            CallKind::Map => &mut self.map,
            CallKind::Unmap => &mut self.unmap,
            CallKind::Access => &mut self.access,
            CallKind::CreateEvent => &mut self.create_event,
            CallKind::DestroyEvent => &mut self.destroy_event,
            CallKind::Record => &mut self.record_event,
            CallKind::Query => &mut self.query_event,
            CallKind::WaitEvent => &mut self.wait_event,
            CallKind::Follow => &mut self.follow_event,
            CallKind::WaitStream => &mut self.wait_stream,
            CallKind::WaitDevice => &mut self.wait_device,
            CallKind::CaptureOf => &mut self.capture_of,
            CallKind::CaptureEnds => &mut self.capture_ends,
            CallKind::NodeDependencies => &mut self.node_dependencies,
            CallKind::Share => &mut self.share,
            CallKind::OpenShared => &mut self.open_shared,
            CallKind::CloseShared => &mut self.close_shared,
            CallKind::Peer => &mut self.peer,
            CallKind::CopyOut => &mut self.copy_out,
            CallKind::CopyIn => &mut self.copy_in,
            CallKind::Clear => &mut self.clear,
            CallKind::Clock => &mut self.clock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_alloc_counts_its_failures_and_the_total_counts_them_all() {
        let mut calls = Calls::default();
        for kind in CallKind::ALL {
            calls.count(kind, true);
            calls.count(kind, false);
        }
        assert_eq!((calls.alloc, calls.create, calls.map, calls.clock), (2, 1, 1, 1));
        let kinds = KINDS as u64;
        assert_eq!((calls.total(), calls.failed), (2 * kinds, kinds));
    }
}
