//! The functions that the caller gives to the library, and what they leave behind to be counted.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;

use super::header::{Contexts, Handle, OK, Pool, Source, larder_free};

thread_local! {
    /// The larder of this run, for the hooks.
    pub static LARDER: Cell<Handle> = const { Cell::new(ptr::null_mut()) };
    /// Addresses that were handed out and not freed, as far as the caller knows.
    pub static LIVE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// References to contexts that the library has.
    pub static CONTEXTS: Cell<i64> = const { Cell::new(0) };
    /// Hooks that the library has.
    pub static HOOKS: Cell<i64> = const { Cell::new(0) };
    /// What the source says next.
    pub static SOURCE: Cell<u64> = const { Cell::new(0) };
    pub static TIME: Cell<u64> = const { Cell::new(0) };
}

pub fn add(counter: &'static std::thread::LocalKey<Cell<i64>>, change: i64) {
    counter.set(counter.get() + change);
}

pub extern "C" fn released(_: Handle) {
    add(&HOOKS, -1);
}

pub extern "C" fn missed(data: Handle, _: i32) -> bool {
    let Some(addr) = LIVE.with_borrow_mut(|live| if data.is_null() { live.pop() } else { None })
    else {
        return !data.is_null();
    };
    // SAFETY: the larder is open, and a callback may call it.
    unsafe { larder_free(LARDER.get(), ptr::without_provenance_mut(addr)) == OK }
}

pub extern "C" fn told(_: Handle, report: *const c_void) {
    assert!(!report.is_null());
}

/// A source that gives what it should, or nothing, or an address that is wrong.
pub extern "C" fn quarried(_: Handle, size: usize, _: i32, _: Handle) -> Handle {
    let calls = SOURCE.get();
    SOURCE.set(calls + 1);
    let addr = match calls % 8 {
        3 => 0,
        5 => (1 << 46) + 1,
        6 => 1 << 46,
        _ => (1 << 46) + calls * (1 << 34) + (size as u64).next_multiple_of(512),
    };
    ptr::without_provenance_mut(addr as usize)
}

pub extern "C" fn returned(_: Handle, ptr: Handle, _: usize, _: i32, _: Handle) {
    assert!(!ptr.is_null());
}

/// A hook of a source that mostly agrees.
fn agrees() -> bool {
    let calls = SOURCE.get();
    SOURCE.set(calls + 1);
    calls % 4 != 2
}

pub extern "C" fn declined(_: Handle, _: usize, _: i32, _: Handle) -> bool {
    agrees()
}

pub extern "C" fn told_device(_: Handle, _: i32) -> bool {
    agrees()
}

pub extern "C" fn told_fraction(_: Handle, fraction: f64, _: i32) -> bool {
    (0.0..=1.0).contains(&fraction) && agrees()
}

/// A segment is a part of what was allocated for it, or of nothing at all.
pub extern "C" fn based(
    _: Handle,
    segment: Handle,
    size: usize,
    base: *mut Handle,
    base_size: *mut usize,
) -> bool {
    if !SOURCE.get().is_multiple_of(3) {
        // SAFETY: the library lends both for the length of the call.
        unsafe {
            *base = segment;
            *base_size = size;
        }
    }
    agrees()
}

pub extern "C" fn told_use(_: Handle, ptr: Handle, _: usize, _: Handle) -> bool {
    !ptr.is_null() && agrees()
}

pub extern "C" fn told_pool(_: Handle, _: i32, _: Pool) -> bool {
    agrees()
}

/// A source, with the functions and properties that two bytes say.
pub fn source(kind: u8, more: u8) -> Source {
    Source {
        alloc: (kind & 2 == 0).then_some(quarried),
        free: (kind & 4 == 0).then_some(returned),
        release: Some(released),
        data: ptr::null_mut(),
        properties: if more & 128 == 0 { 0 } else { u32::from(more & 3) },
        registrar: if more & 1 == 0 { ptr::null() } else { c"a word".as_ptr() },
        decline: (more & 2 != 0).then_some(declined),
        init: (more & 4 != 0).then_some(told_device),
        reset: (more & 8 != 0).then_some(told_device),
        set_memory_fraction: (more & 16 != 0).then_some(told_fraction),
        base_allocation: (more & 32 != 0).then_some(based),
        record_stream: (more & 64 != 0).then_some(told_use),
        begin_pool: (kind & 8 != 0).then_some(told_pool),
        end_pool: (kind & 16 != 0).then_some(told_pool),
        release_pool: (kind & 32 != 0).then_some(told_pool),
    }
}

pub extern "C" fn takes(data: Handle, stream: Handle) -> bool {
    data.addr() & 1 == stream.addr() & 1
}

pub extern "C" fn gathered(_: Handle) -> Handle {
    let time = TIME.get();
    if time % 5 == 4 {
        return ptr::null_mut();
    }
    add(&CONTEXTS, 1);
    ptr::without_provenance_mut(time as usize % 7 + 1)
}

pub extern "C" fn retained(_: Handle, context: Handle) {
    assert!(!context.is_null());
    add(&CONTEXTS, 1);
}

pub extern "C" fn let_go(_: Handle, context: Handle) {
    assert!(!context.is_null());
    add(&CONTEXTS, -1);
}

pub extern "C" fn now(_: Handle) -> u64 {
    TIME.set(TIME.get() + 1);
    TIME.get()
}

pub static CONTEXT_HOOKS: Contexts = Contexts {
    gather: Some(gathered),
    retain: Some(retained),
    release: Some(let_go),
    data: ptr::null_mut(),
};
pub static HALF_CONTEXT_HOOKS: Contexts =
    Contexts { gather: None, retain: None, release: None, data: ptr::null_mut() };

// SAFETY: they are functions and null pointers, which nobody changes.
unsafe impl Sync for Contexts {}
