//! The conformance suite on the real GPU.

use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use larder_core::types::{Addr, MIB, StreamId};
use larder_cuda::HostDevice;
use larder_cuda::host::PinBy;
use larder_testkit::conformance::{self, Drive};

use crate::rig::{Explain, Gate, Rig, id_of};

/// Real work for the checks.
struct CudaDrive {
    streams: [Arc<CudaStream>; 2],
    gates: RefCell<[Gate; 2]>,
    scratch: u64,
}

impl CudaDrive {
    fn new(rig: &Rig) -> Result<CudaDrive, String> {
        let gates = [Gate::new(rig)?, Gate::new(rig)?];
        // SAFETY: 4 bytes are asked for, and given back when the drive goes.
        let scratch = unsafe { result::malloc_sync(4) }.or_say("scratch memory")?;
        let streams = [rig.stream()?, rig.stream()?];
        Ok(CudaDrive { streams, gates: RefCell::new(gates), scratch })
    }

    fn place(&self, stream: StreamId) -> usize {
        let place = self.streams.iter().position(|known| id_of(known) == stream);
        place.expect("one of the two streams")
    }

    fn stream(&self, stream: StreamId) -> &CudaStream {
        &self.streams[self.place(stream)]
    }

    fn bind(&self) {
        self.streams[0].context().bind_to_thread().expect("the context");
    }

    /// The graph of a capture is not wanted.
    fn end(&self, stream: StreamId) -> Result<(), String> {
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive, and the pointer is to a handle of the right type.
        let ended =
            unsafe { sys::cuStreamEndCapture(self.stream(stream).cu_stream(), &raw mut graph) };
        if !graph.is_null() {
            // SAFETY: the graph was just given to us.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        ended.result().or_say("ending a capture")
    }
}

impl Drop for CudaDrive {
    fn drop(&mut self) {
        // SAFETY: nobody else knows of the 4 bytes.
        let _ = unsafe { result::free_sync(self.scratch) };
    }
}

impl Drive for CudaDrive {
    fn streams(&self) -> [StreamId; 2] {
        [id_of(&self.streams[0]), id_of(&self.streams[1])]
    }

    fn issue(&self, stream: StreamId) {
        self.bind();
        let stream = self.stream(stream);
        // SAFETY: these are the 4 bytes of scratch memory.
        unsafe { result::memset_d8_async(self.scratch, 0, 4, stream.cu_stream()) }.expect("work");
    }

    fn hold(&self, stream: StreamId) {
        let place = self.place(stream);
        self.gates.borrow_mut()[place].hold(&self.streams[place]).expect("a held stream");
    }

    fn finish(&self, stream: StreamId) {
        let place = self.place(stream);
        self.gates.borrow()[place].open();
        self.streams[place].synchronize().expect("a stream that finishes");
    }

    fn begin_capture(&self, stream: StreamId) {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.stream(stream).begin_capture(mode).expect("a capture");
    }

    fn end_capture(&self, stream: StreamId) {
        self.end(stream).expect("a capture that went well");
    }

    fn abandon_capture(&self, stream: StreamId) {
        // It was broken, and the driver says so.
        let _ = self.end(stream);
    }

    fn follow(&self, stream: StreamId, other: StreamId) {
        self.stream(stream).join(self.stream(other)).expect("one stream behind another");
    }

    fn write(&self, addr: Addr, value: u8) -> bool {
        self.bind();
        // SAFETY: the checks write where they have memory; where the driver sees none it refuses.
        unsafe { result::memset_d8_sync(addr.0, value, 1) }.is_ok()
    }

    fn read(&self, addr: Addr) -> Option<u8> {
        self.bind();
        let mut value = [0];
        // SAFETY: the checks read where they have memory; where the driver sees none it refuses.
        unsafe { result::memcpy_dtoh_sync(&mut value, addr.0) }.ok()?;
        Some(value[0])
    }

    fn slack_bytes(&self) -> u64 {
        // The driver takes and gives back a little for itself, such as page tables.
        16 * MIB
    }
}

pub(crate) fn run(rig: &Rig, _short: bool) -> Result<String, String> {
    let drive = CudaDrive::new(rig)?;
    let count = conformance::check_all(&*rig.device, &drive).map_err(|failures| {
        failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    })?;
    let on_host = check_host(rig, &drive)?;
    drop(drive);
    let held = rig.device.held();
    if held == larder_cuda::Held::default() {
        Ok(format!("{count} checks, and {on_host} of pinned memory of the host"))
    } else {
        Err(format!("the checks left something behind: {held:?}"))
    }
}

/// The same checks of a little of the host's memory: given by the driver, and registered with it.
fn check_host(rig: &Rig, drive: &CudaDrive) -> Result<usize, String> {
    const HOST_BYTES: u64 = 384 * MIB;
    let mut count = 0;
    for (by, threads) in [(PinBy::Best, 0), (PinBy::Register, 3), (PinBy::Driver, 0)] {
        let host = HostDevice::with_memory(vec![Arc::clone(&rig.device)], HOST_BYTES);
        host.set_pinning(by, threads);
        count += conformance::check_all(&host, drive).map_err(|failures| {
            let said: Vec<String> = failures.iter().map(ToString::to_string).collect();
            format!("pinned memory, {by:?}: {}", said.join("; "))
        })?;
        if host.held() != (0, 0) {
            return Err(format!("the checks left pinned memory behind: {:?}", host.held()));
        }
    }
    Ok(count)
}
