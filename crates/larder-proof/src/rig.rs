//! The rig: one GPU with the proof's kernels on it.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;
use larder::{Buffer, CudaDevice, CudaOptions};
use larder_core::Allocator;
use larder_core::device::Device;
use larder_core::types::{Addr, StreamId};

/// The kernels, compiled ahead.
pub(crate) const KERNELS: &str = include_str!("../kernels/kernels.ptx");

const THREADS: u32 = 256;
/// More blocks than this do not make a kernel faster, and small blocks need few.
const BLOCKS_MAX: u64 = 2048;
/// More blocks than this for one span do not make a kernel over many spans faster.
const COLUMNS_MAX: u32 = 256;

/// Puts words before a reason.
pub(crate) trait Explain<T> {
    /// The value, or a sentence that says what could not be done.
    fn or_say(self, what: &str) -> Result<T, String>;
}

impl<T, E: Display> Explain<T> for Result<T, E> {
    fn or_say(self, what: &str) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

/// A GPU, its kernels, and the number of words found wrong.
pub(crate) struct Rig {
    pub(crate) device: Arc<CudaDevice>,
    /// `cudarc`'s way into the device's primary context, with which the rig launches and checks.
    context: Arc<CudaContext>,
    fill: CudaFunction,
    verify: CudaFunction,
    delay: CudaFunction,
    spin: CudaFunction,
    increment: CudaFunction,
    expect: CudaFunction,
    fill_many: CudaFunction,
    verify_many: CudaFunction,
    /// Where kernels count the words that are wrong.
    wrong: u64,
    seed_next: AtomicU32,
    /// The streams that were made and not ended.
    streams: Mutex<Vec<StreamId>>,
}

impl Rig {
    /// The first GPU.
    pub(crate) fn new() -> Result<Rig, String> {
        Rig::with(CudaOptions::default())
    }

    pub(crate) fn with(options: CudaOptions) -> Result<Rig, String> {
        let device = CudaDevice::new(0, options).or_say("GPU 0")?;
        let context = CudaContext::new(0).or_say("the context")?;
        let module = context.load_module(Ptx::from_src(KERNELS)).or_say("the kernels")?;
        let kernel = |name: &str| module.load_function(name).or_say(name);
        context.bind_to_thread().or_say("the context")?;
        // SAFETY: 8 bytes are asked for, and given back when the rig goes.
        let wrong = unsafe { result::malloc_sync(8) }.or_say("memory to count in")?;
        // SAFETY: these are the 8 bytes.
        unsafe { result::memset_d8_sync(wrong, 0, 8) }.or_say("setting the count to zero")?;
        Ok(Rig {
            fill: kernel("fill")?,
            verify: kernel("verify")?,
            delay: kernel("delay")?,
            spin: kernel("spin")?,
            increment: kernel("increment")?,
            expect: kernel("expect")?,
            fill_many: kernel("fill_many")?,
            verify_many: kernel("verify_many")?,
            device: Arc::new(device),
            context,
            wrong,
            seed_next: AtomicU32::new(1),
            streams: Mutex::default(),
        })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(crate) fn stream(&self) -> Result<Arc<CudaStream>, String> {
        let stream = self.context().new_stream().or_say("a stream")?;
        let (id, context) = (id_of(&stream), self.context().cu_ctx() as u64);
        // SAFETY: the stream is one of that context, and alive while it is kept.
        unsafe { self.device.admit_kept(id, context, Arc::clone(&stream) as _) }
            .or_say("a stream")?;
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Ok(stream)
    }

    pub(crate) fn streams(&self, count: usize) -> Result<Vec<Arc<CudaStream>>, String> {
        (0..count).map(|_| self.stream()).collect()
    }

    /// Ends a stream: the allocator forgets it, and it is destroyed with the last who has it.
    pub(crate) fn end_stream(
        &self,
        allocator: &Allocator,
        stream: Arc<CudaStream>,
    ) -> Result<(), String> {
        allocator.forget_stream(id_of(&stream)).or_say("forgetting a stream")?;
        self.device.dismiss(id_of(&stream));
        drop(stream);
        Ok(())
    }

    /// All streams go with the last who has them: the allocators that knew them are gone.
    pub(crate) fn dismiss_streams(&self) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in streams.drain(..) {
            self.device.dismiss(stream);
        }
    }

    /// An allocator over this GPU; the settings may name a policy.
    pub(crate) fn allocator(&self, settings: &str) -> Result<Allocator, String> {
        let settings = larder::setup::settings::parse(settings).or_say(settings)?;
        let device = Arc::clone(&self.device);
        Ok(Allocator::new(device, settings.config, settings.policy))
    }

    /// A pattern that no other block has.
    pub(crate) fn seed(&self) -> u32 {
        self.seed_next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9)
    }

    /// Fills memory with a pattern, in the order of the stream.
    pub(crate) fn fill(
        &self,
        stream: &CudaStream,
        addr: Addr,
        size_bytes: u64,
        seed: u32,
    ) -> Result<(), String> {
        let words = size_bytes / 4;
        if words == 0 {
            return Ok(());
        }
        let mut launch = stream.launch_builder(&self.fill);
        launch.arg(&addr.0).arg(&words).arg(&seed);
        // SAFETY: the caller has that many bytes there.
        unsafe { launch.launch(grid(words)) }.map(drop).or_say("launching fill")
    }

    /// Compares memory with a pattern, in the order of the stream.
    pub(crate) fn verify(
        &self,
        stream: &CudaStream,
        addr: Addr,
        size_bytes: u64,
        seed: u32,
    ) -> Result<(), String> {
        let words = size_bytes / 4;
        if words == 0 {
            return Ok(());
        }
        let mut launch = stream.launch_builder(&self.verify);
        launch.arg(&addr.0).arg(&words).arg(&seed).arg(&self.wrong);
        // SAFETY: the caller has that many bytes there, and the rig has the count.
        unsafe { launch.launch(grid(words)) }.map(drop).or_say("launching verify")
    }

    /// As [`Rig::fill`], for many blocks with one launch.
    pub(crate) fn fill_many(&self, stream: &CudaStream, spans: &Spans) -> Result<(), String> {
        let mut launch = stream.launch_builder(&self.fill_many);
        launch.arg(spans);
        // SAFETY: the caller has those bytes.
        unsafe { launch.launch(spans.grid()) }.map(drop).or_say("launching fill_many")
    }

    /// As [`Rig::verify`], for many blocks with one launch.
    pub(crate) fn verify_many(&self, stream: &CudaStream, spans: &Spans) -> Result<(), String> {
        let mut launch = stream.launch_builder(&self.verify_many);
        launch.arg(spans).arg(&self.wrong);
        // SAFETY: the caller has those bytes, and the rig has the count.
        unsafe { launch.launch(spans.grid()) }.map(drop).or_say("launching verify_many")
    }

    /// As [`Rig::fill`], for a buffer of any stream.
    pub(crate) fn fill_buffer(
        &self,
        stream: &CudaStream,
        buffer: &mut Buffer<u32>,
        seed: u32,
    ) -> Result<(), String> {
        let words = buffer.len() as u64;
        let buffer = buffer.write_on(stream);
        let mut launch = stream.launch_builder(&self.fill);
        launch.arg(&buffer).arg(&words).arg(&seed);
        // SAFETY: the buffer has that many words.
        unsafe { launch.launch(grid(words)) }.map(drop).or_say("launching fill")
    }

    /// As [`Rig::verify`], for a buffer of any stream.
    pub(crate) fn verify_buffer(
        &self,
        stream: &CudaStream,
        buffer: &Buffer<u32>,
        seed: u32,
    ) -> Result<(), String> {
        let words = buffer.len() as u64;
        let buffer = buffer.read_on(stream);
        let mut launch = stream.launch_builder(&self.verify);
        launch.arg(&buffer).arg(&words).arg(&seed).arg(&self.wrong);
        // SAFETY: the buffer has that many words, and the rig has the count.
        unsafe { launch.launch(grid(words)) }.map(drop).or_say("launching verify")
    }

    /// Keeps the stream busy for about that long.
    pub(crate) fn delay(&self, stream: &CudaStream, duration_ns: u64) -> Result<(), String> {
        let mut launch = stream.launch_builder(&self.delay);
        launch.arg(&duration_ns);
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel touches no memory.
        unsafe { launch.launch(one) }.map(drop).or_say("launching delay")
    }

    /// Sets memory to zero, in the order of the stream.
    pub(crate) fn zero(
        &self,
        stream: &CudaStream,
        addr: Addr,
        size_bytes: u64,
    ) -> Result<(), String> {
        self.context().bind_to_thread().or_say("the context")?;
        // SAFETY: the caller has that many bytes there.
        unsafe { result::memset_d8_async(addr.0, 0, size_bytes as usize, stream.cu_stream()) }
            .or_say("setting memory to zero")
    }

    /// Adds one to every word.
    pub(crate) fn increment(
        &self,
        stream: &CudaStream,
        addr: Addr,
        size_bytes: u64,
    ) -> Result<(), String> {
        let words = size_bytes / 4;
        let mut launch = stream.launch_builder(&self.increment);
        launch.arg(&addr.0).arg(&words);
        // SAFETY: the caller has that many bytes there.
        unsafe { launch.launch(grid(words)) }.map(drop).or_say("launching increment")
    }

    /// Compares every word with one value.
    pub(crate) fn expect(
        &self,
        stream: &CudaStream,
        addr: Addr,
        size_bytes: u64,
        value: u32,
    ) -> Result<(), String> {
        let words = size_bytes / 4;
        let mut launch = stream.launch_builder(&self.expect);
        launch.arg(&addr.0).arg(&words).arg(&value).arg(&self.wrong);
        // SAFETY: the caller has that many bytes there, and the rig has the count.
        unsafe { launch.launch(grid(words)) }.map(drop).or_say("launching expect")
    }

    /// Waits for the GPU and says how many words were wrong so far.
    pub(crate) fn wrong_words(&self) -> Result<u64, String> {
        self.context().synchronize().or_say("waiting for the GPU")?;
        let mut count = [0_u64];
        // SAFETY: these are the 8 bytes.
        unsafe { result::memcpy_dtoh_sync(&mut count, self.wrong) }.or_say("reading the count")?;
        Ok(count[0])
    }

    /// Fails unless all words so far were right.
    pub(crate) fn expect_none_wrong(&self, what: &str) -> Result<(), String> {
        match self.wrong_words()? {
            0 => Ok(()),
            wrong => Err(format!("{what}: {wrong} words are not what was written")),
        }
    }

    /// Free bytes, with nothing running.
    pub(crate) fn free_bytes(&self) -> Result<u64, String> {
        self.context().synchronize().or_say("waiting for the GPU")?;
        self.device.memory_info().map(|info| info.free_bytes).or_say("free memory")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A rig that goes after a failure may find a GPU that answers nothing any more.
        let _ = self.context().bind_to_thread();
        // SAFETY: nobody else knows of the 8 bytes.
        let _ = unsafe { result::free_sync(self.wrong) };
    }
}

fn grid(words: u64) -> LaunchConfig {
    let blocks = words.div_ceil(u64::from(THREADS)).min(BLOCKS_MAX);
    LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// So many blocks are filled or compared by one launch.
pub(crate) const SPANS: usize = 64;

/// A block with its pattern, as the kernels know it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Span {
    addr: u64,
    words: u32,
    seed: u32,
}

/// Blocks that are filled or compared together; those that are not there have no words.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Spans([Span; SPANS]);

// SAFETY: it has the layout of the kernels' own struct, and no pointer that the host would follow.
unsafe impl DeviceRepr for Spans {}

impl Spans {
    pub(crate) fn new(blocks: impl Iterator<Item = (Addr, u64, u32)>) -> Spans {
        let mut spans = Spans([Span::default(); SPANS]);
        for (span, (addr, size_bytes, seed)) in spans.0.iter_mut().zip(blocks) {
            *span = Span { addr: addr.0, words: (size_bytes / 4) as u32, seed };
        }
        spans
    }

    /// A row of blocks of threads for each span.
    fn grid(&self) -> LaunchConfig {
        let longest = self.0.iter().map(|span| span.words).max().unwrap_or(0);
        let rows = self.0.iter().take_while(|span| span.words > 0).count() as u32;
        let columns = longest.div_ceil(THREADS).clamp(1, COLUMNS_MAX);
        LaunchConfig {
            grid_dim: (columns, rows.max(1), 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        }
    }
}

/// The allocator's name of a stream.
pub(crate) fn id_of(stream: &CudaStream) -> StreamId {
    StreamId(stream.cu_stream() as u64)
}

/// A word of host memory that the GPU can see, by which a stream is held and let go.
pub(crate) struct Gate {
    word: *mut u32,
    value: u32,
    spin: CudaFunction,
}

impl Gate {
    pub(crate) fn new(rig: &Rig) -> Result<Gate, String> {
        rig.context().bind_to_thread().or_say("the context")?;
        // SAFETY: 4 bytes are asked for, and given back when the gate goes.
        let word = unsafe { result::malloc_host(4, 0) }.or_say("pinned memory")?.cast::<u32>();
        // SAFETY: these are the 4 bytes, aligned as all pinned memory is.
        unsafe { word.write_volatile(0) };
        Ok(Gate { word, value: 0, spin: rig.spin.clone() })
    }

    /// Work on the stream from here on waits until `open`.
    pub(crate) fn hold(&mut self, stream: &CudaStream) -> Result<(), String> {
        self.value += 1;
        let addr = self.word as u64;
        let mut launch = stream.launch_builder(&self.spin);
        launch.arg(&addr).arg(&self.value);
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the word lives as long as the gate, and pinned memory has one address for both
        // sides.
        unsafe { launch.launch(one) }.map(drop).or_say("launching spin")
    }

    /// Lets go what was held.
    pub(crate) fn open(&self) {
        // SAFETY: the word is ours; the GPU only reads it.
        unsafe { self.word.write_volatile(self.value) };
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
        // SAFETY: what waited for the word has been let go; the call waits for work that uses it.
        let _ = unsafe { result::free_host(self.word.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::KERNELS;

    #[test]
    fn the_kernels_are_those_of_the_source() {
        let source = include_bytes!("../kernels/kernels.cu");
        let fingerprint = source.iter().fold(0xcbf2_9ce4_8422_2325_u64, |value, &byte| {
            (value ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mark = format!("// made from kernels.cu {fingerprint:016x}\n");
        assert!(KERNELS.starts_with(&mark), "run `cargo xtask gpu --kernels`");
    }
}
