//! History: what is remembered, and what a thread says about its events.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::sync::Arc;

use larder_core::Addr;
use larder_core::allocator::history::{Clock, HistoryOptions};
use larder_core::record::event::{Action, Actions, Event as CoreEvent, Level};
use larder_core::record::history::{Stage, TraceEntry};
use larder_core::record::note;

use crate::border::{
    Foreign, Held, Out, PoolName, Problem, Shown, Status, Text, Token, c_string, guard, guard_or,
};
use crate::context::{self, ContextFunctions};
use crate::larder::Larder;

/// `larder_history_options`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Options {
    pub(crate) max_entries: usize,
    pub(crate) level: u32,
    pub(crate) clear: bool,
    pub(crate) skip: u32,
    pub(crate) contexts: Shown<ContextFunctions>,
    pub(crate) clock: Option<extern "C" fn(Foreign) -> u64>,
    pub(crate) clock_data: Foreign,
}

/// `larder_event`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Event {
    pub(crate) action: u32,
    pub(crate) device: i32,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: Token,
    pub(crate) pool: PoolName,
    pub(crate) time_ns: u64,
    pub(crate) context: Foreign,
    pub(crate) compile_context: *const c_char,
    pub(crate) user_metadata: *const c_char,
    pub(crate) internal_metadata: *const c_char,
}

/// A text for C, if there is one.
pub(crate) struct Words(Option<CString>);

impl Words {
    pub(crate) fn of(text: Option<&str>) -> Words {
        Words(text.map(c_string))
    }

    fn or(&self, otherwise: &'static std::ffi::CStr) -> *const c_char {
        self.0.as_deref().unwrap_or(otherwise).as_ptr()
    }
}

/// What PyTorch says where nothing is compiled.
pub(crate) const NOT_COMPILING: &std::ffi::CStr = c"N/A";

impl Event {
    /// An event as a tracker is told of it, good for as long as the texts are.
    pub(crate) fn told(
        device: i32,
        event: &CoreEvent<'_>,
        compile_context: &Words,
        user_metadata: &Words,
        internal_metadata: &Words,
    ) -> Event {
        Event {
            action: event.action as u32,
            device,
            addr: event.addr,
            size: event.size_bytes,
            stream: Token::new(event.stream.0),
            pool: event.pool.into(),
            time_ns: event.time_ns,
            context: context::pointer_of(event.context),
            compile_context: compile_context.or(NOT_COMPILING),
            user_metadata: user_metadata.or(c""),
            internal_metadata: internal_metadata.or(c""),
        }
    }

    /// An entry of the history, good for as long as the entry and the texts are.
    pub(crate) fn remembered(
        device: i32,
        entry: &TraceEntry,
        compile_context: *const c_char,
        user_metadata: *const c_char,
        internal_metadata: *const c_char,
    ) -> Event {
        Event {
            action: entry.action as u32,
            device,
            addr: entry.addr,
            size: entry.size_bytes,
            stream: Token::new(entry.stream.0),
            pool: entry.pool.into(),
            time_ns: entry.time_ns,
            context: context::pointer_of(entry.context.as_deref()),
            compile_context,
            user_metadata,
            internal_metadata,
        }
    }
}

impl Options {
    fn read(self) -> Result<HistoryOptions, Problem> {
        let level = match self.level {
            0 => Level::Never,
            1 => Level::State,
            2 => Level::Alloc,
            3 => Level::All,
            level => {
                let words = format!("there is no level {level}; there are 0 to 3");
                return Err(Problem::Argument(words));
            }
        };
        let actions = Action::ALL.len();
        if self.skip >> actions != 0 {
            let words = format!("`skip` names an action above {}", actions - 1);
            return Err(Problem::Argument(words));
        }
        let is_skipped = |&action: &Action| self.skip & 1 << action as u32 != 0;
        let skip: Actions = Action::ALL.into_iter().filter(is_skipped).collect();
        let mut options = HistoryOptions::default()
            .level(level)
            .max_entries(self.max_entries)
            .clear(self.clear)
            .skip(skip);
        options.context_hook = self.contexts.read().map(ContextFunctions::hook).transpose()?;
        options.clock = self.clock.map(|clock| -> Clock {
            let data = self.clock_data;
            Arc::new(move || clock(data))
        });
        Ok(options)
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_record_history(larder: Held<Larder>, options: Shown<Options>) -> Status {
    guard(|| {
        let (larder, options) = (larder.get("larder")?, options.needed("options")?);
        let options = options.read()?;
        // They suit all devices or none, so that the first one decides.
        for allocator in larder.allocators() {
            allocator.record_history(options.clone())?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_stop_history(larder: Held<Larder>) -> Status {
    guard(|| {
        larder.get("larder")?.allocators().iter().for_each(larder_core::Allocator::stop_history);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_is_recording(larder: Held<Larder>) -> bool {
    guard_or(false, || {
        let first = larder.read().and_then(|larder| larder.allocators().first());
        first.is_some_and(larder_core::Allocator::is_recording)
    })
}

thread_local! {
    static USER_METADATA: RefCell<CString> = RefCell::default();
}

#[unsafe(no_mangle)]
extern "C" fn larder_set_user_metadata(text: Text) {
    guard_or((), || note::set_user_metadata(&text.lossy()));
}

#[unsafe(no_mangle)]
extern "C" fn larder_user_metadata() -> *const c_char {
    guard_or(c"".as_ptr(), || {
        let text = c_string(note::user_metadata());
        USER_METADATA.with_borrow_mut(|kept| {
            *kept = text;
            kept.as_ptr()
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_push_compile_context(text: Text) {
    guard_or((), || note::push_compile_context(&text.lossy()));
}

#[unsafe(no_mangle)]
extern "C" fn larder_pop_compile_context() {
    guard_or((), note::pop_compile_context);
}

#[unsafe(no_mangle)]
extern "C" fn larder_annotate(
    larder: Held<Larder>,
    device: i32,
    name: Text,
    start: bool,
) -> Status {
    guard(|| {
        let allocator = larder.get("larder")?.device(device)?;
        let name = name.needed("name")?;
        allocator.annotate(name, if start { Stage::Start } else { Stage::End });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_annotate_memory(larder: Held<Larder>, ptr: Token, text: Text) -> Status {
    guard(|| {
        let (larder, text) = (larder.get("larder")?, text.needed("text")?);
        let addr = Addr(ptr.number());
        larder.at(addr, |allocator| allocator.annotate_memory(addr, text))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_context_of(larder: Held<Larder>, ptr: Token, context: Out<Foreign>) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, context.wanted("context")?);
        let addr = Addr(ptr.number());
        let (_, kept) = larder.at(addr, |allocator| {
            allocator.block_at(addr)?;
            Ok(allocator.context_of(addr))
        })?;
        out.put(context::retained(kept.as_deref())?);
        Ok(())
    })
}
