//! The simulated cards of the process, as the environment describes them.

use std::cell::Cell;
use std::collections::HashMap;
use std::env;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use larder_core::device::Device;
use larder_core::types::{CaptureId, EventId, StreamId};
use larder_sim::{SimDevice, SimOptions};

use crate::arena;
use crate::border::{Answer, Status};
use crate::card::Card;

/// What a call costs the thread that makes it, beside what it costs the device: a kernel's launch
/// with all that PyTorch does for it. A crude number, by which the host runs ahead of the card.
pub(crate) const LAUNCH_NS: u64 = 7_000;

/// A simulated card, and what the simulated device does not keep.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) index: usize,
    pub(crate) device: SimDevice,
    state: Mutex<Beside>,
}

/// What is remembered beside the device.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// On which stream each event was recorded last, and in which capture if it was in one.
    pub(crate) recorded: HashMap<EventId, (StreamId, Option<CaptureId>)>,
    /// When each event was recorded, by the device's clock.
    pub(crate) recorded_ns: HashMap<EventId, u64>,
    /// How many nodes each running capture has, and how long its work would last.
    pub(crate) captured: HashMap<CaptureId, Captured>,
    /// The sizes of plain allocations and of mapped pages, by the host's address.
    pub(crate) sizes: HashMap<u64, u64>,
}

/// The work of a capture.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Captured {
    pub(crate) nodes: u64,
    pub(crate) duration_ns: u64,
}

impl Gpu {
    pub(crate) fn beside(&self) -> MutexGuard<'_, Beside> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A kernel or a copy is put on the stream.
    pub(crate) fn launch(&self, stream: StreamId, duration_ns: u64) -> Answer {
        self.device.advance(LAUNCH_NS);
        if let Some(id) = self.device.capture_of(stream)? {
            let mut beside = self.beside();
            let captured = beside.captured.entry(id).or_default();
            captured.nodes += 1;
            captured.duration_ns += duration_ns;
        }
        self.device.run(stream, duration_ns);
        Ok(())
    }
}

/// All cards of the process.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) card: Card,
    pub(crate) gpus: Vec<Gpu>,
}

/// The cards. They are made at the first call, and a description that cannot be read is an error
/// of every call: a run on another card than the one asked for would prove nothing.
pub(crate) fn fleet() -> Answer<&'static Fleet> {
    static FLEET: OnceLock<Result<Fleet, String>> = OnceLock::new();
    let made = FLEET.get_or_init(|| {
        let made = make();
        if let Err(sentence) = &made {
            eprintln!("the dry run cannot make its card: {sentence}");
        }
        made
    });
    made.as_ref().map_err(|_| Status::UNKNOWN)
}

fn make() -> Result<Fleet, String> {
    arena::reserve()?;
    let card = Card::of_environment()?;
    let text = env::var("LARDER_DRY_CARDS").unwrap_or_else(|_| "1".to_owned());
    let count: u64 = text.parse().unwrap_or(0);
    if !(1..=arena::CARDS_MAX).contains(&count) {
        let most = arena::CARDS_MAX;
        return Err(format!("LARDER_DRY_CARDS is a number from 1 to {most}, not '{text}'"));
    }
    let gpu = |index: u64| {
        let memory_bytes = card.total_bytes.saturating_sub(card.context_bytes);
        let options = SimOptions::default()
            .index(index as u32)
            .memory_bytes(memory_bytes)
            .timed(true)
            .like_a_driver(true);
        Gpu { index: index as usize, device: SimDevice::new(options), state: Mutex::default() }
    };
    let gpus = (0..count).map(gpu).collect();
    Ok(Fleet { card, gpus })
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The card that this thread is at.
pub(crate) fn gpu() -> Answer<&'static Gpu> {
    gpu_of(CURRENT.get() as i32)
}

/// The card of a number.
pub(crate) fn gpu_of(index: i32) -> Answer<&'static Gpu> {
    fleet()?.gpus.get(index as usize).ok_or(Status::INVALID_DEVICE)
}

pub(crate) fn current() -> i32 {
    CURRENT.get() as i32
}

/// This thread is at another card from now on.
pub(crate) fn set_current(index: i32) -> Answer {
    let gpu = gpu_of(index)?;
    CURRENT.set(gpu.index);
    Ok(())
}
