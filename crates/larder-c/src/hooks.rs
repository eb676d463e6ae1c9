//! Hooks: what callers ask to be called for.

use larder_core::OutOfMemory;

use crate::border::{Foreign, Held, HookData, Problem, Status, Token, guard};
use crate::history::{Event, Words};
use crate::larder::Larder;
use crate::out_of_memory::OutOfMemoryReport;

/// A function that a hook cannot do without.
fn needed<F>(function: Option<F>, name: &'static str) -> Result<F, Problem> {
    function.ok_or_else(|| Problem::Argument(format!("`{name}` must not be NULL")))
}

#[unsafe(no_mangle)]
extern "C" fn larder_on_miss(
    larder: Held<Larder>,
    device: i32,
    callback: Option<extern "C" fn(Foreign, i32) -> bool>,
    release: Option<extern "C" fn(Foreign)>,
    data: Foreign,
) -> Status {
    guard(|| {
        let hook = HookData::new(data, release);
        let callback = needed(callback, "callback")?;
        let allocator = larder.get("larder")?.device(device)?;
        allocator.on_miss(move || callback(hook.data(), device));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_on_current_stream(
    larder: Held<Larder>,
    device: i32,
    current: Option<extern "C" fn(Foreign, i32, *mut Token) -> bool>,
    release: Option<extern "C" fn(Foreign)>,
    data: Foreign,
) -> Status {
    guard(|| {
        let hook = HookData::new(data, release);
        let current = needed(current, "current")?;
        let allocator = larder.get("larder")?.device(device)?;
        allocator.on_current_stream(move || {
            let mut stream = Token::NULL;
            current(hook.data(), device, &raw mut stream).then(|| stream.stream())
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_on_out_of_memory(
    larder: Held<Larder>,
    device: i32,
    observer: Option<extern "C" fn(Foreign, *const OutOfMemoryReport)>,
    release: Option<extern "C" fn(Foreign)>,
    data: Foreign,
) -> Status {
    guard(|| {
        let hook = HookData::new(data, release);
        let observer = needed(observer, "observer")?;
        let allocator = larder.get("larder")?.device(device)?;
        allocator.on_out_of_memory(move |report: &OutOfMemory| {
            let report = OutOfMemoryReport::new(device, report);
            observer(hook.data(), &raw const report);
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_on_reserve(
    larder: Held<Larder>,
    device: i32,
    reserve: Option<extern "C" fn(Foreign, i32, Token, u64) -> u64>,
    release: Option<extern "C" fn(Foreign)>,
    data: Foreign,
) -> Status {
    guard(|| {
        let hook = HookData::new(data, release);
        let reserve = needed(reserve, "reserve")?;
        let allocator = larder.get("larder")?.device(device)?;
        allocator.on_reserve(move |stream, total_bytes| {
            let size_bytes = reserve(hook.data(), device, Token::new(stream.0), total_bytes);
            Some(size_bytes).filter(|&size_bytes| size_bytes > 0)
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_on_event(
    larder: Held<Larder>,
    device: i32,
    tracker: Option<extern "C" fn(Foreign, *const Event)>,
    release: Option<extern "C" fn(Foreign)>,
    data: Foreign,
) -> Status {
    guard(|| {
        let hook = HookData::new(data, release);
        let tracker = needed(tracker, "tracker")?;
        let allocator = larder.get("larder")?.device(device)?;
        allocator.on_event(move |event| {
            // What the thread says is mostly nothing, and then no text is copied.
            let compiling = Words::of(event.compile_context);
            let some = |text| Words::of(Some(text).filter(|text: &&str| !text.is_empty()));
            let (metadata, own) = (some(event.user_metadata), some(event.internal_metadata));
            let event = Event::told(device, event, &compiling, &metadata, &own);
            tracker(hook.data(), &raw const event);
        });
        Ok(())
    })
}
