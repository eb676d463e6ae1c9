//! NCCL and NVSHMEM as sources, over small libraries in their place that a C compiler makes.

use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::source::SegmentSource;
use larder_core::types::MIB;
use larder_core::{Addr, Allocator, Config, Error, MemPool, Policy, StreamId};
use larder_cuda::source::LibraryError;
use larder_cuda::source::nccl::{Nccl, NcclMemory, RegisterAs, nccl_source};
use larder_cuda::source::nvshmem::{Nvshmem, NvshmemSource, UniqueId};
use larder_sim::source_check::check_source;
use larder_sim::{SimDevice, SimOptions};

/// Compiles a stand-in. Each test has one of its own, because it counts.
fn stand_in(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in");
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-shared", "-fPIC", "-Wall", "-Werror"]);
    let output = compile.args(flags).arg("-o").arg(&library).arg(folder.join(source)).output();
    let output = output.expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

fn nccl(name: &str, flags: &[&str]) -> Arc<Nccl> {
    // SAFETY: the stand-in has NCCL's interface.
    unsafe { Nccl::open(&[stand_in("nccl.c", name, flags)]) }.unwrap()
}

/// The stand-in's communicator.
#[repr(C)]
#[derive(Default)]
struct Comm {
    registered: i32,
    deregistered: i32,
    windows: i32,
    windows_gone: i32,
    fails: i32,
}

/// A communicator that a test looks at while the source has it.
struct Shared(*mut Comm);

impl Shared {
    fn new() -> Shared {
        Shared(Box::into_raw(Box::default()))
    }

    fn comm(&self) -> *mut c_void {
        self.0.cast()
    }

    fn seen(&self) -> [i32; 4] {
        // SAFETY: it lives as long as this value, and one thread uses it.
        let comm = unsafe { &*self.0 };
        [comm.registered, comm.deregistered, comm.windows, comm.windows_gone]
    }

    fn fail(&self, which: i32) {
        // SAFETY: as above.
        unsafe { (*self.0).fails = which };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is given back once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

fn allocator() -> Arc<Allocator> {
    let device = Arc::new(SimDevice::new(SimOptions::default()));
    Arc::new(Allocator::new(device, Config::default(), Policy::larder()))
}

fn malloc_in(allocator: &Allocator, pool: &MemPool, size_bytes: u64) -> Result<Addr, Error> {
    pool.scope(|| allocator.malloc(size_bytes, StreamId(0))).unwrap()
}

#[test]
fn segments_are_registered_as_they_come_and_no_longer_before_they_go() {
    for (how, plain, window) in
        [(RegisterAs::Plain, 1, 0), (RegisterAs::Window, 0, 1), (RegisterAs::Both, 1, 1)]
    {
        let nccl = nccl(&format!("nccl_{how:?}"), &[]);
        let shared = Shared::new();
        // SAFETY: the communicator outlives the source.
        let source = Arc::new(unsafe { nccl_source(&nccl, shared.comm(), how, None) }.unwrap());
        assert_eq!(source.properties().collective, how != RegisterAs::Plain);
        assert!(source.properties().registrar.unwrap().starts_with("an NCCL communicator"));
        let allocator = allocator();
        let pool =
            MemPool::symmetric(&allocator, source.clone(), SymmetricOptions::default()).unwrap();
        let blocks: Vec<Addr> =
            (0..6).map(|_| malloc_in(&allocator, &pool, 12 * MIB).unwrap()).collect();
        let made = pool.source_counts().unwrap().made as i32;
        assert_eq!((made, shared.seen()), (6, [6 * plain, 0, 6 * window, 0]));
        let first = source.registration_of(Addr(blocks[0].0 + 5000)).unwrap();
        assert_eq!(source.check(first), Ok(()));
        allocator.free(blocks[0]).unwrap();
        assert_eq!(pool.trim(), Ok(1));
        assert_eq!(shared.seen(), [6 * plain, plain, 6 * window, window]);
        // Another segment comes, at the same address: the old registration is refused.
        let again = malloc_in(&allocator, &pool, 12 * MIB).unwrap();
        assert_eq!(again, blocks[0]);
        assert!(source.check(first).unwrap_err().to_string().contains("generation 0"));
        assert_eq!(source.check(source.registration_of(again).unwrap()), Ok(()));
        for &block in blocks[1..].iter().chain([&again]) {
            allocator.free(block).unwrap();
        }
        drop(pool);
        assert_eq!(shared.seen(), [7 * plain, 7 * plain, 7 * window, 7 * window]);
        let counts = source.counts();
        assert_eq!((counts.registered, counts.deregistered), (7, 7));
        assert_eq!(allocator.check(), Ok(()));
    }
}

#[test]
fn a_segment_that_nccl_does_not_register_is_not_handed_out() {
    let nccl = nccl("nccl_refuses", &[]);
    let shared = Shared::new();
    // SAFETY: the communicator outlives the source.
    let source = unsafe { nccl_source(&nccl, shared.comm(), RegisterAs::Both, None) }.unwrap();
    let allocator = allocator();
    let pool = MemPool::with_source(&allocator, Arc::new(source)).unwrap();
    for which in [1, 2] {
        shared.fail(which);
        let refused = malloc_in(&allocator, &pool, MIB).unwrap_err().to_string();
        assert!(
            refused.ends_with("failed to give memory: NCCL: invalid usage (device error 5)"),
            "{refused}"
        );
    }
    let [registered, deregistered, ..] = shared.seen();
    assert_eq!((registered, deregistered), (1, 1), "what had been registered is undone");
    shared.fail(0);
    malloc_in(&allocator, &pool, MIB).unwrap();
    assert_eq!(allocator.check(), Ok(()));
}

#[test]
fn nccls_memory_keeps_every_promise_of_a_source() {
    let nccl = nccl("nccl_promises", &[]);
    let memory: Arc<dyn SegmentSource> = Arc::new(NcclMemory::new(&nccl, None));
    assert_eq!(check_source(&memory).map_err(|failure| failure.to_string()), Ok(8));
    let shared = Shared::new();
    // SAFETY: the communicator outlives the source.
    let source = unsafe { nccl_source(&nccl, shared.comm(), RegisterAs::Plain, None) }.unwrap();
    let source: Arc<dyn SegmentSource> = Arc::new(source);
    assert_eq!(check_source(&source).map_err(|failure| failure.to_string()), Ok(8));
    let [registered, deregistered, ..] = shared.seen();
    assert!(registered > 100 && registered == deregistered);
}

#[test]
fn libraries_that_are_missing_or_too_old_are_told_so() {
    // SAFETY: nothing is found under the name.
    let missing = unsafe { Nccl::open(&["libthere-is-no-such-nccl.so"]) }.err().unwrap();
    assert!(
        missing.to_string().starts_with("NCCL cannot be loaded as libthere-is-no-such-nccl.so")
    );
    let old = nccl("nccl_old", &["-DBEFORE_WINDOWS"]);
    let shared = Shared::new();
    // SAFETY: the communicator outlives the source.
    let refused = unsafe { nccl_source(&old, shared.comm(), RegisterAs::Window, None) }.err();
    let function = "ncclCommWindowRegister";
    assert_eq!(refused, Some(LibraryError::NoFunction { library: "NCCL", function }));
    // SAFETY: it is no NVSHMEM, which shows before anything of it is called.
    let other = unsafe { Nvshmem::open(&[stand_in("nccl.c", "nccl_other", &[])]) }.err().unwrap();
    assert!(other.to_string().contains("nvshmem_malloc"), "{other}");
}

#[test]
fn nvshmem_starts_by_an_id_and_gives_memory_that_is_put_and_got() {
    let library = stand_in("nvshmem.c", "nvshmem", &[]);
    // SAFETY: the stand-in has NVSHMEM's interface.
    let nvshmem = unsafe { Nvshmem::open(&[library]) }.unwrap();
    let early = NvshmemSource::new(&nvshmem, None).err().unwrap();
    assert!(early.to_string().contains("before it was started"));
    let id = UniqueId::of_bytes(nvshmem.unique_id().unwrap().bytes());
    nvshmem.start(&id, 0, 1).unwrap();
    assert_eq!((nvshmem.rank(), nvshmem.ranks(), nvshmem.is_started()), (0, 1, true));
    let source: Arc<dyn SegmentSource> = Arc::new(NvshmemSource::new(&nvshmem, None).unwrap());
    assert_eq!(check_source(&source).map_err(|failure| failure.to_string()), Ok(8));

    let allocator = allocator();
    let pool = MemPool::symmetric(&allocator, source, SymmetricOptions::default()).unwrap();
    let from = malloc_in(&allocator, &pool, 4096).unwrap();
    let to = malloc_in(&allocator, &pool, 4096).unwrap();
    assert_eq!(pool.position_of(to).unwrap().offset_bytes, 4096);
    let word = |addr: Addr| std::ptr::with_exposed_provenance_mut::<u64>(addr.0 as usize);
    // SAFETY: the stand-in's memory is this process's own, and both blocks are live.
    unsafe {
        word(from).write(0x1234_5678);
        nvshmem.put(to, from, 8, 0);
        nvshmem.barrier();
        assert_eq!(word(to).read(), 0x1234_5678);
        word(to).write(7);
        nvshmem.get(from, to, 8, 0);
        assert_eq!(word(from).read(), 7);
    }
    allocator.free(from).unwrap();
    allocator.free(to).unwrap();
    drop(pool);
    // SAFETY: nobody uses its memory any more.
    unsafe { nvshmem.end() };
    assert!(!nvshmem.is_started());
}
