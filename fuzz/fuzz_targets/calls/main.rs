//! Any sequence of C calls, decoded from bytes: in any order, with null where a pointer is
//! expected, with numbers that nobody gave out, freed twice, with pools of others. Never a
//! crash, never a mistake of the library's own; at the end everything holds, and all that was
//! lent to it came back.
#![no_main]

mod header;
mod hooks;

use std::ffi::CString;
use std::ptr;

use header::*;
use hooks::*;
use larder_c as _;
use libfuzzer_sys::fuzz_target;

const SETTINGS: [&str; 8] = [
    "",
    "expandable_segments:True",
    "expandable_segments:True,page_size_mb:2",
    "max_split_size_mb:20",
    "release_lock_on_cudamalloc:True,garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4,per_process_memory_fraction:0.5",
    "policy:torch-2.11",
    "graph_capture_record_stream_reuse:True,throw_on_cudamalloc_oom:True",
];

/// A caller in C, whose next arguments come from bytes.
struct Caller<'a> {
    bytes: &'a [u8],
    larder: Handle,
    freed: Vec<usize>,
    opened: Vec<usize>,
    checkpoints: Vec<Handle>,
    shares: Vec<Handle>,
    hooks: usize,
    depth: usize,
}

impl Caller<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A size, mostly one that makes sense.
    fn size(&mut self) -> u64 {
        let byte = self.byte();
        match byte >> 6 {
            0 => u64::from(byte) * 97,
            1 => u64::from(byte & 63) << 15,
            2 => u64::from(byte & 63) << 20,
            _ => self.word(),
        }
    }

    /// Null once in a while, else the larder.
    fn larder(&mut self) -> Handle {
        if self.byte() == 255 { ptr::null_mut() } else { self.larder }
    }

    fn device(&mut self) -> i32 {
        match self.byte() {
            byte @ 0..=250 => i32::from(byte & 1),
            251 => 2,
            252 => -1,
            253 => i32::MAX,
            _ => i32::MIN,
        }
    }

    fn stream(&mut self) -> Handle {
        let byte = self.byte();
        let number = if byte > 250 { self.word() } else { u64::from(byte % 4) };
        ptr::without_provenance_mut(number as usize)
    }

    fn pool(&mut self) -> Pool {
        let byte = self.byte();
        match byte >> 4 {
            15 => Pool { a: self.word(), b: self.word() },
            _ => Pool { a: u64::from(byte & 1), b: u64::from(byte >> 1 & 3) },
        }
    }

    /// An address: live, freed before, of another process, inside of a block, or any.
    fn address(&mut self) -> Handle {
        let (byte, at) = (self.byte(), usize::from(self.byte()));
        let pick = |list: &[usize]| list.get(at % list.len().max(1)).copied();
        let addr = match byte {
            0..=199 => LIVE.with_borrow(|live| pick(live)),
            200..=219 => pick(&self.freed),
            220..=234 => pick(&self.opened),
            235..=244 => LIVE.with_borrow(|live| pick(live)).map(|addr| addr + at),
            _ => None,
        };
        let addr = addr.unwrap_or_else(|| self.word() as usize);
        ptr::without_provenance_mut(addr)
    }

    /// Where a result goes, or null once in a while.
    fn out<T>(&mut self, place: &mut T) -> *mut T {
        if self.byte() == 254 { ptr::null_mut() } else { place }
    }

    fn text(&mut self) -> Option<CString> {
        let length = usize::from(self.byte());
        if length == 255 {
            return None;
        }
        let (text, rest) = self.bytes.split_at(length.min(self.bytes.len()).min(64));
        self.bytes = rest;
        Some(CString::new(text.split(|&byte| byte == 0).next().unwrap_or(&[])).expect("no zero"))
    }

    fn settings_text(&mut self) -> Option<CString> {
        match SETTINGS.get(usize::from(self.byte())) {
            Some(text) => CString::new(*text).ok(),
            None => self.text(),
        }
    }

    fn malloc(&mut self) -> Status {
        let (larder, device, size, stream) =
            (self.larder(), self.device(), self.size() as usize, self.stream());
        let mut out = ptr::null_mut();
        let place = self.out(&mut out);
        // SAFETY: the larder is open or null, and the place is one or null.
        let status = unsafe { larder_malloc(larder, device, size, stream, place) };
        if status == OK && !out.is_null() {
            LIVE.with_borrow_mut(|live| live.push(out.addr()));
        }
        status
    }

    fn free(&mut self) -> Status {
        let (larder, address) = (self.larder(), self.address());
        // SAFETY: any number may be freed.
        let status = unsafe { larder_free(larder, address) };
        if status == OK && !address.is_null() {
            LIVE.with_borrow_mut(|live| live.retain(|&addr| addr != address.addr()));
            self.freed.push(address.addr());
        }
        status
    }

    fn restore(&mut self) -> Status {
        let (larder, device, at) = (self.larder(), self.device(), usize::from(self.byte()));
        let checkpoint = self.checkpoints.get(at).copied().unwrap_or(ptr::null_mut());
        let mut out = ptr::null_mut();
        let place = self.out(&mut out);
        // SAFETY: the checkpoint is one that was given and not freed, or null.
        let status = unsafe { larder_pool_restore(larder, device, checkpoint, place) };
        if status == OK {
            let mut count = 0;
            // SAFETY: what was restored is there until it is freed.
            let [freed, live] = unsafe {
                let freed = larder_restored_freed(out, &raw mut count);
                let freed = list(freed, count);
                [freed, list(larder_restored_live(out, &raw mut count), count)]
            };
            LIVE.with_borrow_mut(|all| {
                all.retain(|addr| !freed.contains(addr));
                all.extend(live);
            });
            // SAFETY: it is freed once.
            unsafe { larder_restored_free(out) };
        }
        status
    }

    fn open_shared(&mut self) -> Status {
        let (larder, device, at) = (self.larder(), self.device(), usize::from(self.byte()));
        let mut out = ptr::null_mut();
        let mut length = 0;
        let status = if let Some(&shared) = self.shares.get(at) {
            let place = self.out(&mut out);
            // SAFETY: what is shared is there until it is freed.
            unsafe {
                let bytes = larder_shared_bytes(shared, &raw mut length);
                larder_shared_offset(shared);
                larder_open_shared(larder, device, bytes, length, place)
            }
        } else {
            let length = usize::from(self.byte()).min(self.bytes.len());
            let bytes = self.bytes;
            let place = self.out(&mut out);
            // SAFETY: so many bytes are there.
            unsafe { larder_open_shared(larder, device, bytes.as_ptr(), length, place) }
        };
        if status == OK {
            self.opened.push(out.addr());
        }
        status
    }

    fn set_settings(&mut self) -> Status {
        let larder = self.larder();
        let mut settings = Settings {
            sizes: [0; 3],
            threshold: 0.0,
            divisions: [0; 16],
            switches: [false; 4],
            fraction: 1.0,
        };
        // SAFETY: the place is one.
        let got = unsafe { larder_get_settings(larder, &raw mut settings) };
        if got != OK {
            return got;
        }
        match self.byte() % 6 {
            0 => settings.sizes[usize::from(self.byte() % 3)] = self.size(),
            1 => settings.threshold = f64::from_bits(self.word()),
            2 => settings.divisions[usize::from(self.byte() % 16)] = self.size(),
            3 => settings.fraction = f64::from(self.byte()) / 128.0,
            4 => settings.fraction = f64::from_bits(self.word()),
            _ => settings.switches[usize::from(self.byte() % 4)] ^= true,
        }
        let shown: *const Settings = self.out(&mut settings);
        // SAFETY: the settings are there, or null.
        unsafe { larder_set_settings(larder, shown) }
    }

    fn record_history(&mut self) -> Status {
        let larder = self.larder();
        let mut options = History {
            max_entries: if self.byte() < 200 { usize::from(self.byte()) } else { usize::MAX },
            level: u32::from(self.byte() % 6),
            clear: self.byte() & 1 == 1,
            skip: self.word() as u32,
            contexts: match self.byte() {
                0..=199 => &raw const CONTEXT_HOOKS,
                200..=230 => &raw const HALF_CONTEXT_HOOKS,
                _ => ptr::null(),
            },
            clock: (self.byte() < 200).then_some(now),
            clock_data: ptr::null_mut(),
        };
        let shown: *const History = self.out(&mut options);
        // SAFETY: the options are there, or null.
        unsafe { larder_record_history(larder, shown) }
    }

    fn snapshot(&mut self) -> Status {
        let (larder, pool, traces) = (self.larder(), self.pool(), self.byte() & 1 == 1);
        let mut out = ptr::null_mut();
        let place = self.out(&mut out);
        // SAFETY: the place is one or null.
        let status = unsafe { larder_take_snapshot(larder, pool, traces, place) };
        if status == OK {
            let (device, mut count) = (self.device(), 0);
            // SAFETY: the snapshot is there until it is freed, which is done once.
            unsafe {
                larder_snapshot_segments(out, &raw mut count);
                larder_snapshot_events(out, device, &raw mut count);
                larder_snapshot_annotations(out, &raw mut count);
                larder_snapshot_free(out);
            }
        }
        status
    }

    /// Registers a hook; too many of them would make every call slow.
    fn hook(&mut self) -> Status {
        let (larder, device, kind) = (self.larder(), self.device(), self.byte());
        if self.hooks >= 6 {
            return OK;
        }
        self.hooks += 1;
        add(&HOOKS, 1);
        let data = ptr::without_provenance_mut(usize::from(kind >> 4));
        let is_there = kind & 8 == 0;
        // SAFETY: the functions are as the header asks.
        unsafe {
            match kind % 3 {
                0 => {
                    larder_on_miss(larder, device, is_there.then_some(missed), Some(released), data)
                }
                1 => larder_on_out_of_memory(
                    larder,
                    device,
                    is_there.then_some(told),
                    Some(released),
                    data,
                ),
                _ => {
                    larder_on_event(larder, device, is_there.then_some(told), Some(released), data)
                }
            }
        }
    }

    fn add_use(&mut self) -> Status {
        let (larder, device, pool) = (self.larder(), self.device(), self.pool());
        let (kind, more) = (self.byte(), self.byte());
        let source = source(kind, more);
        let is_given = kind & 1 == 1;
        add(&HOOKS, i64::from(is_given));
        let shown: *const Source = if is_given { &raw const source } else { ptr::null() };
        // SAFETY: the source is there, or null.
        unsafe { larder_pool_add_use(larder, device, pool, shown) }
    }

    fn begin(&mut self) -> Status {
        let (larder, device, pool, kind) = (self.larder(), self.device(), self.pool(), self.byte());
        let filter = Filter {
            kind: u32::from(kind & 7),
            stream: self.stream(),
            takes: (kind & 8 == 0).then_some(takes),
            release: Some(released),
            data: ptr::without_provenance_mut(usize::from(kind >> 4)),
        };
        let is_given = kind != 255;
        // The release is for functions alone.
        add(&HOOKS, i64::from(is_given && filter.kind == 4));
        let shown: *const Filter = if is_given { &raw const filter } else { ptr::null() };
        // SAFETY: the filter is there, or null.
        unsafe { larder_pool_begin(larder, device, pool, shown) }
    }

    /// What can be asked of a device with a number for an answer.
    fn ask(&mut self) -> Status {
        let (larder, device, kind) = (self.larder(), self.device(), self.byte());
        let (mut number, mut other, mut float, mut is) = (0, 0, 0.0, false);
        let (mut stats, mut report) = ([0; 123], [0; 16]);
        let mut settings = Settings {
            sizes: [0; 3],
            threshold: 0.0,
            divisions: [0; 16],
            switches: [false; 4],
            fraction: 1.0,
        };
        // SAFETY: the places are there, or null.
        unsafe {
            match kind % 12 {
                0 => {
                    larder_memory_info(larder, device, self.out(&mut number), self.out(&mut other))
                }
                1 => larder_largest_free_block(larder, device, self.out(&mut number)),
                2 => larder_memory_fraction(larder, device, self.out(&mut float)),
                3 => larder_get_stats(larder, device, self.out(&mut stats)),
                4 => larder_has_expandable(larder, device, self.out(&mut is)),
                5 => larder_last_out_of_memory(self.out(&mut report)),
                6 => larder_get_settings(larder, self.out(&mut settings)),
                7 => larder_reset_peak_stats(larder, device),
                8 => larder_reset_accumulated_stats(larder, device),
                9 => {
                    assert_eq!(larder_device_count(self.larder), 2);
                    larder_check(larder)
                }
                10 => larder_set_memory_fraction(larder, device, f64::from(kind) / 200.0),
                _ => larder_set_memory_fraction(larder, device, f64::from_bits(self.word())),
            }
        }
    }

    /// What can be asked about an address.
    fn ask_about(&mut self) -> Status {
        let (larder, address, kind) = (self.larder(), self.address(), self.byte());
        let (mut info, mut base, mut size, mut context) =
            ([0; 3], ptr::null_mut(), 0, ptr::null_mut());
        // SAFETY: the places are there, or null.
        unsafe {
            match kind % 5 {
                0 => larder_block_of(larder, address, self.out(&mut info)),
                1 => larder_base_allocation(
                    larder,
                    address,
                    self.out(&mut base),
                    self.out(&mut size),
                ),
                2 => {
                    let status = larder_context_of(larder, address, self.out(&mut context));
                    if status == OK && !context.is_null() {
                        // It is one more reference, which is ours.
                        add(&CONTEXTS, -1);
                    }
                    status
                }
                _ => larder_record_stream(larder, address, self.stream()),
            }
        }
    }

    /// What can be asked about pools, with lists for an answer.
    fn ask_pools(&mut self) -> Status {
        let (larder, device, pool, kind) = (self.larder(), self.device(), self.pool(), self.byte());
        let (mut uses, mut is, mut count) = (0, false, 0);
        let room = usize::from(kind >> 6);
        let (mut pools, mut reserved, mut segments) =
            ([Pool { a: 0, b: 0 }; 4], [[0; 12]; 4], [[0; 3]; 4]);
        let live: Vec<Handle> = LIVE
            .with_borrow(|live| live.iter().map(|&it| ptr::without_provenance_mut(it)).collect());
        // SAFETY: the places are there, or null; the lists are as long as is said.
        unsafe {
            match kind % 6 {
                0 => larder_pool_uses(larder, device, pool, self.out(&mut uses)),
                1 => {
                    let listed = live.len().min(usize::from(self.byte()));
                    let out = self.out(&mut is);
                    larder_pool_has_live(larder, device, pool, live.as_ptr(), listed, out)
                }
                2 => {
                    let (pools, reserved) = (pools.as_mut_ptr(), reserved.as_mut_ptr());
                    let out = self.out(&mut count);
                    larder_pool_reserved(larder, device, pools, reserved, room, out)
                }
                3 => {
                    let out = self.out(&mut count);
                    larder_expandable_segments(larder, device, segments.as_mut_ptr(), room, out)
                }
                4 => larder_pool_set_use_on_oom(larder, device, pool, kind & 64 == 0),
                _ => larder_pool_set_no_split(larder, device, pool),
            }
        }
    }

    fn say(&mut self) -> Status {
        let (larder, device, kind, text) = (self.larder(), self.device(), self.byte(), self.text());
        let text = text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        // SAFETY: the text is there, or null.
        unsafe {
            match kind % 5 {
                0 => larder_set_user_metadata(text),
                1 => {
                    self.depth += 1;
                    larder_push_compile_context(text);
                }
                2 => larder_pop_compile_context(),
                3 => assert!(!larder_user_metadata().is_null()),
                _ => return larder_annotate(larder, device, text, kind & 8 == 0),
            }
        }
        OK
    }

    fn checkpoint(&mut self) -> Status {
        let (larder, device, pool) = (self.larder(), self.device(), self.pool());
        let mut out = ptr::null_mut();
        let place = self.out(&mut out);
        // SAFETY: the place is there, or null.
        let status = unsafe { larder_pool_checkpoint(larder, device, pool, place) };
        if status == OK {
            self.checkpoints.push(out);
        }
        status
    }

    fn share(&mut self) -> Status {
        let (larder, address) = (self.larder(), self.address());
        let mut out = ptr::null_mut();
        let place = self.out(&mut out);
        // SAFETY: the place is there, or null.
        let status = unsafe { larder_share(larder, address, place) };
        if status == OK {
            self.shares.push(out);
        }
        status
    }

    fn call(&mut self) -> Status {
        match self.byte() % 32 {
            0..=6 => self.malloc(),
            7..=11 => self.free(),
            12 => self.restore(),
            13 => self.checkpoint(),
            14 => self.share(),
            15 => self.open_shared(),
            16 => self.set_settings(),
            17 => self.record_history(),
            18 => self.snapshot(),
            19 => self.hook(),
            20 => self.add_use(),
            21 | 22 => self.begin(),
            23 => self.ask(),
            24 => self.ask_about(),
            25 => self.ask_pools(),
            26 => self.say(),
            27 => {
                let (larder, text) = (self.larder(), self.settings_text());
                let text = text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
                // SAFETY: the text is there, or null.
                unsafe {
                    larder_check_own_settings(text, text);
                    larder_configure(larder, text)
                }
            }
            // SAFETY: these take numbers alone.
            28 => unsafe { larder_pool_end(self.larder(), self.device(), self.pool()) },
            // SAFETY: as above.
            29 => unsafe { larder_pool_drop_use(self.larder(), self.device(), self.pool()) },
            // SAFETY: as above.
            30 => unsafe { larder_empty_cache(self.larder(), self.pool()) },
            _ => {
                let (larder, device, kind) = (self.larder(), self.device(), self.byte());
                // SAFETY: as above.
                unsafe {
                    match kind % 4 {
                        0 => larder_stop_history(larder),
                        1 => larder_enable_peer(larder, device, self.device()),
                        2 => {
                            larder_is_recording(larder);
                            OK
                        }
                        _ => {
                            let address = self.address();
                            larder_close_shared(larder, device, address)
                        }
                    }
                }
            }
        }
    }

    /// Gives everything back. The hooks of checkpoints and of shares are ours to free.
    fn end(mut self) {
        // SAFETY: each is given back once, and the larder last.
        unsafe {
            assert_eq!(larder_check(self.larder), OK, "{:?}", last_error());
            for checkpoint in self.checkpoints.drain(..) {
                larder_checkpoint_free(checkpoint);
            }
            for shared in self.shares.drain(..) {
                larder_shared_free(shared);
            }
            let live = LIVE.take();
            for addr in live {
                let status = larder_free(self.larder, ptr::without_provenance_mut(addr));
                assert_eq!(status, OK, "{addr:#x} is live: {:?}", last_error());
            }
            assert_eq!(larder_check(self.larder), OK, "{:?}", last_error());
            larder_close(self.larder);
            larder_close(ptr::null_mut());
            larder_set_user_metadata(ptr::null());
            for _ in 0..self.depth {
                larder_pop_compile_context();
            }
        }
        assert_eq!(CONTEXTS.get(), 0, "every context came back");
        assert_eq!(HOOKS.get(), 0, "every hook was released");
    }
}

/// A copy of a list of the library's.
unsafe fn list(first: *const Handle, count: usize) -> Vec<usize> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the library says that so many are there.
    unsafe { std::slice::from_raw_parts(first, count) }.iter().map(|it| it.addr()).collect()
}

fn last_error() -> String {
    // SAFETY: it is a text that is valid until the next call that fails.
    unsafe { std::ffi::CStr::from_ptr(larder_last_error()) }.to_string_lossy().into_owned()
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else { return };
    let settings = SETTINGS[usize::from(first) % SETTINGS.len()];
    let settings = CString::new(settings).expect("no zero");
    let devices = if first & 128 == 0 { c"sim:64MiB*2" } else { c"sim:8GiB*2" };
    let mut larder = ptr::null_mut();
    // SAFETY: the texts are texts, and the place is there.
    let status = unsafe { larder_open(devices.as_ptr(), settings.as_ptr(), &raw mut larder) };
    assert_eq!(status, OK, "{}", last_error());
    LARDER.set(larder);
    SOURCE.set(0);
    TIME.set(0);
    let mut caller = Caller {
        bytes,
        larder,
        freed: Vec::new(),
        opened: Vec::new(),
        checkpoints: Vec::new(),
        shares: Vec::new(),
        hooks: 0,
        depth: 0,
    };
    while !caller.bytes.is_empty() {
        let status = caller.call();
        assert_ne!(status, INTERNAL, "{}", last_error());
    }
    caller.end();
});
