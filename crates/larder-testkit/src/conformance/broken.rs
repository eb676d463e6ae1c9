//! Devices with one flaw each: every flaw must be found, by the check that is about it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use larder_core::device::{
    Device, DeviceError, HANDLE_BYTES, MemoryInfo, ProcessMemory, Properties, SharedPage,
};
use larder_core::types::{
    Addr, CaptureId, DeviceIndex, EventId, NodeId, PageHandle, Span, StreamId,
};

use super::{Drive, Failure, check};
use larder_sim::SimDevice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    SameAddressTwice,
    OddAddress,
    FreeForgets,
    FreeAcceptsAnything,
    OutOfMemoryIsOther,
    OutOfMemoryLeaks,
    TimeRunsBackwards,
    UnreserveAcceptsHalves,
    PageCostsNothing,
    MapAcceptsAnything,
    UnmapAcceptsAnything,
    AccessAcceptsAnything,
    ReleaseAcceptsMapped,
    SecondPlaceIsRefused,
    SecondPlaceCostsMemory,
    SecondPlaceIsACopy,
    SecondPlaceEndsTheFirst,
    UnmapEndsAllPlaces,
    ReleaseForgetsOtherPlaces,
    UnrecordedIsPending,
    EventIsDoneAtOnce,
    SecondRecordIsIgnored,
    WaitDoesNotWait,
    FollowsNothing,
    DestroyAcceptsAnything,
    OneHandleForAll,
    ExportAcceptsAnything,
    ImportIsNewMemory,
    UnexportForgets,
    IsItsOwnPeer,
    CaptureGoesUnnoticed,
    EveryStreamIsCaptured,
    CapturesShareANumber,
    NodesHangInTheAir,
    JoiningGoesUnnoticed,
    OnlyOneEndIsShown,
    CaptureStopsEvents,
    CapturedStreamIsWaitedFor,
    CopiesNothing,
    CopiesOneOnly,
    ClearsNothing,
    CopiesFromNowhere,
}

struct Broken {
    device: SimDevice,
    flaw: Flaw,
    recorded: Mutex<HashSet<EventId>>,
    /// What is mapped where, as the caller believes it.
    mapped: Mutex<HashMap<Span, PageHandle>>,
    /// Pages that lost a place.
    unmapped: Mutex<HashSet<PageHandle>>,
    /// Pages that were put in another's stead, by where that was.
    copies: Mutex<HashMap<Span, PageHandle>>,
}

impl Broken {
    fn new(flaw: Flaw) -> Broken {
        Broken {
            device: SimDevice::default(),
            flaw,
            recorded: Mutex::default(),
            mapped: Mutex::default(),
            unmapped: Mutex::default(),
            copies: Mutex::default(),
        }
    }

    /// Where the page is, as the caller believes it.
    fn places(&self, page: PageHandle) -> Vec<Span> {
        let mapped = self.mapped.lock().unwrap();
        mapped.iter().filter(|&(_, &other)| other == page).map(|(&span, _)| span).collect()
    }

    /// Maps a page that has a place already.
    fn map_again(&self, span: Span, page: PageHandle, places: &[Span]) -> Result<(), DeviceError> {
        match self.flaw {
            Flaw::SecondPlaceIsRefused => Err(DeviceError::NotSupported),
            Flaw::SecondPlaceIsACopy => {
                self.device.map(span, page)?;
                self.device.unmap(span)?;
                let copy = self.device.create_page(span.size_bytes)?;
                self.copies.lock().unwrap().insert(span, copy);
                self.device.map(span, copy)
            }
            Flaw::SecondPlaceEndsTheFirst => {
                self.device.map(span, page)?;
                for &place in places {
                    // Most are gone already.
                    let _ = self.device.unmap(place);
                }
                Ok(())
            }
            Flaw::SecondPlaceCostsMemory => {
                self.device.map(span, page)?;
                self.device.tenant_take(span.size_bytes);
                Ok(())
            }
            _ => self.device.map(span, page),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// Turns an error into a success on a device that lets this kind of misuse pass.
    fn lenient(&self, flaw: Flaw, result: Result<(), DeviceError>) -> Result<(), DeviceError> {
        if self.has(flaw) { Ok(()) } else { result }
    }
}

impl Device for Broken {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        let mut info = self.device.memory_info()?;
        // The memory of copies is not shown, so that only their bytes tell.
        info.free_bytes +=
            self.copies.lock().unwrap().keys().map(|span| span.size_bytes).sum::<u64>();
        if self.has(Flaw::PageCostsNothing) {
            info.free_bytes += self.device.page_count() * self.properties().granularity_bytes;
        }
        Ok(info)
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.device.processes()
    }

    fn alloc(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        let result = self.device.alloc(size_bytes);
        match (self.flaw, result) {
            (Flaw::SameAddressTwice, Ok(_)) => Ok(Addr(1 << 52)),
            (Flaw::OddAddress, Ok(addr)) => Ok(addr.offset(1)),
            (Flaw::OutOfMemoryIsOther, Err(_)) => {
                Err(DeviceError::Other { code: 2, text: String::from("cudaErrorMemoryAllocation") })
            }
            (Flaw::OutOfMemoryLeaks, Err(error)) => {
                self.device.tenant_take(1);
                Err(error)
            }
            (_, result) => result,
        }
    }

    fn free(&self, addr: Addr) -> Result<(), DeviceError> {
        if self.has(Flaw::FreeForgets) {
            return Ok(());
        }
        self.lenient(Flaw::FreeAcceptsAnything, self.device.free(addr))
    }

    fn reserve(&self, size_bytes: u64) -> Result<Addr, DeviceError> {
        self.device.reserve(size_bytes)
    }

    fn unreserve(&self, span: Span) -> Result<(), DeviceError> {
        self.lenient(Flaw::UnreserveAcceptsHalves, self.device.unreserve(span))
    }

    fn create_page(&self, size_bytes: u64) -> Result<PageHandle, DeviceError> {
        self.device.create_page(size_bytes)
    }

    fn release_page(&self, page: PageHandle) -> Result<(), DeviceError> {
        let result = self.device.release_page(page);
        let is_mapped = matches!(&result, Err(DeviceError::Other { text, .. })
            if text.contains("mapped"));
        if is_mapped && self.unmapped.lock().unwrap().contains(&page) {
            return self.lenient(Flaw::ReleaseForgetsOtherPlaces, result);
        }
        if is_mapped { self.lenient(Flaw::ReleaseAcceptsMapped, result) } else { result }
    }

    fn map(&self, span: Span, page: PageHandle) -> Result<(), DeviceError> {
        let places = self.places(page);
        let result = if places.is_empty() {
            self.device.map(span, page)
        } else {
            self.map_again(span, page, &places)
        };
        if result.is_ok() {
            self.mapped.lock().unwrap().insert(span, page);
        }
        self.lenient(Flaw::MapAcceptsAnything, result)
    }

    fn unmap(&self, span: Span) -> Result<(), DeviceError> {
        let result = self.device.unmap(span);
        let page = self.mapped.lock().unwrap().remove(&span);
        if let Some(copy) = self.copies.lock().unwrap().remove(&span) {
            self.device.release_page(copy)?;
        }
        if let Some(page) = page {
            self.unmapped.lock().unwrap().insert(page);
            if self.has(Flaw::UnmapEndsAllPlaces) {
                for place in self.places(page) {
                    // Most are gone already.
                    let _ = self.device.unmap(place);
                }
                // The caller believes in the others until they are used.
                return Ok(());
            }
        }
        self.lenient(Flaw::UnmapAcceptsAnything, result)
    }

    fn set_access(&self, span: Span) -> Result<(), DeviceError> {
        self.lenient(Flaw::AccessAcceptsAnything, self.device.set_access(span))
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let event = self.device.create_event()?;
        if self.has(Flaw::UnrecordedIsPending) {
            self.device.record_event(event, StreamId(9))?;
        }
        Ok(event)
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.lenient(Flaw::DestroyAcceptsAnything, self.device.destroy_event(event))
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let again = !self.recorded.lock().unwrap().insert(event);
        if again && self.has(Flaw::SecondRecordIsIgnored) {
            Ok(())
        } else {
            self.device.record_event(event, stream)
        }
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        let [stream, _] = self.device.streams();
        if self.has(Flaw::CaptureStopsEvents) && self.device.capture_of(stream)?.is_some() {
            return Err(DeviceError::NotSupported);
        }
        let answer = self.device.query_event(event)?;
        Ok(answer || self.has(Flaw::EventIsDoneAtOnce))
    }

    fn follow_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        if self.has(Flaw::FollowsNothing) {
            Ok(())
        } else {
            self.device.follow_event(stream, event)
        }
    }

    fn wait_event(&self, event: EventId) -> Result<(), DeviceError> {
        if self.has(Flaw::WaitDoesNotWait) { Ok(()) } else { self.device.wait_event(event) }
    }

    fn wait_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.lenient(Flaw::CapturedStreamIsWaitedFor, self.device.wait_stream(stream))
    }

    fn wait_device(&self) -> Result<(), DeviceError> {
        self.device.wait_device()
    }

    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, DeviceError> {
        let [first, second] = self.device.streams();
        let answer = self.device.capture_of(stream)?;
        Ok(match self.flaw {
            Flaw::CaptureGoesUnnoticed => None,
            Flaw::EveryStreamIsCaptured => self.device.capture_of(first)?.or(answer),
            Flaw::CapturesShareANumber => answer.map(|_| CaptureId(1)),
            Flaw::JoiningGoesUnnoticed if stream == second => {
                answer.filter(|_| self.device.capture_of(first).is_ok_and(|id| id.is_none()))
            }
            _ => answer,
        })
    }

    fn capture_ends(&self, stream: StreamId) -> Result<Vec<NodeId>, DeviceError> {
        let mut ends = self.device.capture_ends(stream)?;
        if self.has(Flaw::OnlyOneEndIsShown) {
            ends.truncate(1);
        }
        Ok(ends)
    }

    fn node_dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DeviceError> {
        let nodes = self.device.node_dependencies(node)?;
        Ok(if self.has(Flaw::NodesHangInTheAir) { Vec::new() } else { nodes })
    }

    fn export_alloc(&self, addr: Addr) -> Result<[u8; HANDLE_BYTES], DeviceError> {
        match (self.flaw, self.device.export_alloc(addr)) {
            (Flaw::OneHandleForAll, Ok(_)) | (Flaw::ExportAcceptsAnything, Err(_)) => {
                Ok([1; HANDLE_BYTES])
            }
            (_, result) => result,
        }
    }

    fn close_alloc(&self, addr: Addr) -> Result<(), DeviceError> {
        self.device.close_alloc(addr)
    }

    fn export_page(&self, page: PageHandle) -> Result<SharedPage, DeviceError> {
        self.device.export_page(page)
    }

    fn unexport_page(&self, shared: SharedPage) -> Result<(), DeviceError> {
        if self.has(Flaw::UnexportForgets) { Ok(()) } else { self.device.unexport_page(shared) }
    }

    fn import_page(
        &self,
        shared: SharedPage,
        pid: u32,
        size_bytes: u64,
    ) -> Result<PageHandle, DeviceError> {
        if self.has(Flaw::ImportIsNewMemory) {
            return self.device.create_page(size_bytes);
        }
        self.device.import_page(shared, pid, size_bytes)
    }

    fn open_to_peer(&self, peer: DeviceIndex) -> Result<(), DeviceError> {
        self.lenient(Flaw::IsItsOwnPeer, self.device.open_to_peer(peer))
    }

    fn copy_out(&self, copies: &mut [(Span, &mut [u8])]) -> Result<(), DeviceError> {
        if self.has(Flaw::CopiesOneOnly) {
            return self.device.copy_out(&mut copies[..1]);
        }
        self.lenient(Flaw::CopiesFromNowhere, self.device.copy_out(copies))
    }

    fn copy_in(&self, copies: &[(&[u8], Span)]) -> Result<(), DeviceError> {
        if self.has(Flaw::CopiesNothing) { Ok(()) } else { self.device.copy_in(copies) }
    }

    fn clear(&self, spans: &[Span]) -> Result<(), DeviceError> {
        if self.has(Flaw::ClearsNothing) { Ok(()) } else { self.device.clear(spans) }
    }

    fn now_ns(&self) -> u64 {
        let now_ns = self.device.now_ns();
        if self.has(Flaw::TimeRunsBackwards) { u64::MAX - now_ns } else { now_ns }
    }
}

#[test]
fn every_flaw_is_found_by_the_check_that_is_about_it() {
    let expected = [
        (Flaw::SameAddressTwice, "allocations are aligned and apart"),
        (Flaw::OddAddress, "allocations are aligned and apart"),
        (Flaw::FreeForgets, "memory comes back"),
        (Flaw::FreeAcceptsAnything, "a wrong free is an error and harms nothing"),
        (Flaw::OutOfMemoryIsOther, "out of memory changes nothing"),
        (Flaw::OutOfMemoryLeaks, "out of memory changes nothing"),
        (Flaw::TimeRunsBackwards, "time does not run backwards"),
        (Flaw::UnreserveAcceptsHalves, "a range is given back whole and once"),
        (Flaw::PageCostsNothing, "pages take memory and give it back"),
        (Flaw::MapAcceptsAnything, "a page goes only where it may"),
        (Flaw::UnmapAcceptsAnything, "a page is unmapped in one piece and once"),
        (Flaw::AccessAcceptsAnything, "access needs mapped pages"),
        (Flaw::ReleaseAcceptsMapped, "what is mapped stays"),
        (Flaw::SecondPlaceIsRefused, "a page may be at many places, which take no memory"),
        (Flaw::SecondPlaceCostsMemory, "a page may be at many places, which take no memory"),
        (Flaw::SecondPlaceEndsTheFirst, "a page may be at many places, which take no memory"),
        (Flaw::SecondPlaceIsACopy, "all places of a page show the same bytes"),
        (Flaw::UnmapEndsAllPlaces, "unmapping one place leaves the others"),
        (Flaw::ReleaseForgetsOtherPlaces, "a page stays while it has a place left"),
        (Flaw::UnrecordedIsPending, "an event recorded nowhere is done"),
        (Flaw::EventIsDoneAtOnce, "an event waits for the work in front of it"),
        (Flaw::SecondRecordIsIgnored, "a new record forgets the old one"),
        (Flaw::WaitDoesNotWait, "an event does not wait for the work behind it"),
        (Flaw::FollowsNothing, "a stream that follows an event begins behind it"),
        (Flaw::DestroyAcceptsAnything, "a destroyed event is an error"),
        (Flaw::OneHandleForAll, "a plain allocation has one handle"),
        (Flaw::ExportAcceptsAnything, "only what is held can be shared"),
        (Flaw::ImportIsNewMemory, "a shared page is the same memory"),
        (Flaw::UnexportForgets, "a page handle that is gone opens nothing"),
        (Flaw::IsItsOwnPeer, "a device is no peer of itself"),
        (
            Flaw::CaptureGoesUnnoticed,
            "a capture is about its stream, from its beginning to its end",
        ),
        (
            Flaw::EveryStreamIsCaptured,
            "a capture is about its stream, from its beginning to its end",
        ),
        (Flaw::CapturesShareANumber, "no two captures have the same number"),
        (Flaw::NodesHangInTheAir, "captured work depends on the work before it"),
        (Flaw::JoiningGoesUnnoticed, "a stream that waits for a captured one joins its capture"),
        (Flaw::OnlyOneEndIsShown, "a stream that waited for another depends on its work"),
        (Flaw::CaptureStopsEvents, "what is not captured goes on"),
        (Flaw::CapturedStreamIsWaitedFor, "a captured stream cannot be waited for"),
        (Flaw::CopiesNothing, "contents are copied to the host and to other memory"),
        (Flaw::CopiesOneOnly, "contents are copied to the host and to other memory"),
        (Flaw::ClearsNothing, "memory is cleared where it is asked for"),
        (Flaw::CopiesFromNowhere, "only what the device can use is copied"),
    ];
    for (flaw, name) in expected {
        let broken = Broken::new(flaw);
        let Failure { check, text } = check(&broken, &broken.device).unwrap_err();
        assert_eq!(check, name, "{flaw:?}: {text}");
    }
}
