//! What `larder.h` declares, as far as it is called. Structures that are only read back are rows
//! of words.

use std::ffi::{c_char, c_void};

use larder_c::sizes;

pub type Status = i32;
pub const OK: Status = 0;
pub const INTERNAL: Status = 9;

pub type Handle = *mut c_void;
pub type Release = extern "C" fn(Handle);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pool {
    pub a: u64,
    pub b: u64,
}

#[repr(C)]
pub struct Settings {
    pub sizes: [u64; 3],
    pub threshold: f64,
    pub divisions: [u64; 16],
    pub switches: [bool; 4],
    pub fraction: f64,
}

#[repr(C)]
pub struct Source {
    pub alloc: Option<extern "C" fn(Handle, usize, i32, Handle) -> Handle>,
    pub free: Option<extern "C" fn(Handle, Handle, usize, i32, Handle)>,
    pub release: Option<Release>,
    pub data: Handle,
    pub properties: u32,
    pub registrar: *const c_char,
    pub decline: Option<extern "C" fn(Handle, usize, i32, Handle) -> bool>,
    pub init: Option<extern "C" fn(Handle, i32) -> bool>,
    pub reset: Option<extern "C" fn(Handle, i32) -> bool>,
    pub set_memory_fraction: Option<extern "C" fn(Handle, f64, i32) -> bool>,
    pub base_allocation:
        Option<extern "C" fn(Handle, Handle, usize, *mut Handle, *mut usize) -> bool>,
    pub record_stream: Option<extern "C" fn(Handle, Handle, usize, Handle) -> bool>,
    pub begin_pool: Option<extern "C" fn(Handle, i32, Pool) -> bool>,
    pub end_pool: Option<extern "C" fn(Handle, i32, Pool) -> bool>,
    pub release_pool: Option<extern "C" fn(Handle, i32, Pool) -> bool>,
}

// What is declared here and what is there grow together.
const _: () = {
    assert!(size_of::<Settings>() == sizes::SETTINGS_BYTES);
    assert!(size_of::<Source>() == sizes::SOURCE_BYTES);
    assert!(size_of::<Filter>() == sizes::FILTER_BYTES);
    assert!(size_of::<Contexts>() == sizes::CONTEXTS_BYTES);
    assert!(size_of::<History>() == sizes::HISTORY_OPTIONS_BYTES);
    assert!(size_of::<[i64; 123]>() == sizes::STATS_BYTES);
    assert!(size_of::<[u64; 16]>() >= sizes::OUT_OF_MEMORY_BYTES);
};

#[repr(C)]
pub struct Filter {
    pub kind: u32,
    pub stream: Handle,
    pub takes: Option<extern "C" fn(Handle, Handle) -> bool>,
    pub release: Option<Release>,
    pub data: Handle,
}

#[repr(C)]
pub struct Contexts {
    pub gather: Option<extern "C" fn(Handle) -> Handle>,
    pub retain: Option<extern "C" fn(Handle, Handle)>,
    pub release: Option<extern "C" fn(Handle, Handle)>,
    pub data: Handle,
}

#[repr(C)]
pub struct History {
    pub max_entries: usize,
    pub level: u32,
    pub clear: bool,
    pub skip: u32,
    pub contexts: *const Contexts,
    pub clock: Option<extern "C" fn(Handle) -> u64>,
    pub clock_data: Handle,
}

// SAFETY: these are the declarations of `larder.h`, in the same order.
unsafe extern "C" {
    pub fn larder_open(devices: *const c_char, settings: *const c_char, out: *mut Handle)
    -> Status;
    pub fn larder_close(larder: Handle);
    pub fn larder_device_count(larder: Handle) -> i32;
    pub fn larder_check(larder: Handle) -> Status;
    pub fn larder_last_error() -> *const c_char;
    pub fn larder_last_out_of_memory(out: *mut [u64; 16]) -> Status;
    pub fn larder_malloc(
        l: Handle,
        device: i32,
        size: usize,
        stream: Handle,
        out: *mut Handle,
    ) -> Status;
    pub fn larder_free(l: Handle, ptr: Handle) -> Status;
    pub fn larder_record_stream(l: Handle, ptr: Handle, stream: Handle) -> Status;
    pub fn larder_block_of(l: Handle, ptr: Handle, out: *mut [u64; 3]) -> Status;
    pub fn larder_base_allocation(
        l: Handle,
        ptr: Handle,
        base: *mut Handle,
        size: *mut usize,
    ) -> Status;
    pub fn larder_empty_cache(l: Handle, pool: Pool) -> Status;
    pub fn larder_memory_info(l: Handle, device: i32, free: *mut u64, total: *mut u64) -> Status;
    pub fn larder_largest_free_block(l: Handle, device: i32, out: *mut u64) -> Status;
    pub fn larder_set_memory_fraction(l: Handle, device: i32, fraction: f64) -> Status;
    pub fn larder_memory_fraction(l: Handle, device: i32, out: *mut f64) -> Status;
    pub fn larder_get_settings(l: Handle, out: *mut Settings) -> Status;
    pub fn larder_set_settings(l: Handle, settings: *const Settings) -> Status;
    pub fn larder_configure(l: Handle, settings: *const c_char) -> Status;
    pub fn larder_check_own_settings(name: *const c_char, settings: *const c_char) -> Status;
    pub fn larder_get_stats(l: Handle, device: i32, out: *mut [i64; 123]) -> Status;
    pub fn larder_reset_peak_stats(l: Handle, device: i32) -> Status;
    pub fn larder_reset_accumulated_stats(l: Handle, device: i32) -> Status;
    pub fn larder_pool_reserved(
        l: Handle,
        device: i32,
        pools: *mut Pool,
        reserved: *mut [i64; 12],
        room: usize,
        count: *mut usize,
    ) -> Status;
    pub fn larder_pool_add_use(l: Handle, device: i32, pool: Pool, source: *const Source)
    -> Status;
    pub fn larder_pool_drop_use(l: Handle, device: i32, pool: Pool) -> Status;
    pub fn larder_pool_uses(l: Handle, device: i32, pool: Pool, out: *mut u32) -> Status;
    pub fn larder_pool_begin(l: Handle, device: i32, pool: Pool, filter: *const Filter) -> Status;
    pub fn larder_pool_end(l: Handle, device: i32, pool: Pool) -> Status;
    pub fn larder_pool_set_use_on_oom(l: Handle, device: i32, pool: Pool, on: bool) -> Status;
    pub fn larder_pool_set_no_split(l: Handle, device: i32, pool: Pool) -> Status;
    pub fn larder_pool_has_live(
        l: Handle,
        device: i32,
        pool: Pool,
        ptrs: *const Handle,
        count: usize,
        out: *mut bool,
    ) -> Status;
    pub fn larder_pool_checkpoint(l: Handle, device: i32, pool: Pool, out: *mut Handle) -> Status;
    pub fn larder_checkpoint_free(checkpoint: Handle);
    pub fn larder_pool_restore(
        l: Handle,
        device: i32,
        checkpoint: Handle,
        out: *mut Handle,
    ) -> Status;
    pub fn larder_restored_freed(restored: Handle, count: *mut usize) -> *const Handle;
    pub fn larder_restored_live(restored: Handle, count: *mut usize) -> *const Handle;
    pub fn larder_restored_free(restored: Handle);
    pub fn larder_share(l: Handle, ptr: Handle, out: *mut Handle) -> Status;
    pub fn larder_shared_bytes(shared: Handle, length: *mut usize) -> *const u8;
    pub fn larder_shared_offset(shared: Handle) -> u64;
    pub fn larder_shared_free(shared: Handle);
    pub fn larder_open_shared(
        l: Handle,
        device: i32,
        bytes: *const u8,
        length: usize,
        out: *mut Handle,
    ) -> Status;
    pub fn larder_close_shared(l: Handle, device: i32, ptr: Handle) -> Status;
    pub fn larder_enable_peer(l: Handle, device: i32, owner: i32) -> Status;
    pub fn larder_expandable_segments(
        l: Handle,
        device: i32,
        segments: *mut [u64; 3],
        room: usize,
        count: *mut usize,
    ) -> Status;
    pub fn larder_has_expandable(l: Handle, device: i32, out: *mut bool) -> Status;
    pub fn larder_on_miss(
        l: Handle,
        device: i32,
        callback: Option<extern "C" fn(Handle, i32) -> bool>,
        release: Option<Release>,
        data: Handle,
    ) -> Status;
    pub fn larder_on_out_of_memory(
        l: Handle,
        device: i32,
        observer: Option<extern "C" fn(Handle, *const c_void)>,
        release: Option<Release>,
        data: Handle,
    ) -> Status;
    pub fn larder_record_history(l: Handle, options: *const History) -> Status;
    pub fn larder_stop_history(l: Handle) -> Status;
    pub fn larder_is_recording(l: Handle) -> bool;
    pub fn larder_set_user_metadata(text: *const c_char);
    pub fn larder_user_metadata() -> *const c_char;
    pub fn larder_push_compile_context(text: *const c_char);
    pub fn larder_pop_compile_context();
    pub fn larder_annotate(l: Handle, device: i32, name: *const c_char, start: bool) -> Status;
    pub fn larder_on_event(
        l: Handle,
        device: i32,
        tracker: Option<extern "C" fn(Handle, *const c_void)>,
        release: Option<Release>,
        data: Handle,
    ) -> Status;
    pub fn larder_context_of(l: Handle, ptr: Handle, context: *mut Handle) -> Status;
    pub fn larder_take_snapshot(l: Handle, pool: Pool, traces: bool, out: *mut Handle) -> Status;
    pub fn larder_snapshot_segments(snapshot: Handle, count: *mut usize) -> *const c_void;
    pub fn larder_snapshot_events(
        snapshot: Handle,
        device: i32,
        count: *mut usize,
    ) -> *const c_void;
    pub fn larder_snapshot_annotations(snapshot: Handle, count: *mut usize) -> *const c_void;
    pub fn larder_snapshot_free(snapshot: Handle);
}
