//! cuDNN: plans are the vendor's own, made without a card by the way that cuDNN documents for it: a
//! description of the card, as text, in the place of a handle. So the workspace of a convolution is
//! what cuDNN itself wants on such a card. What is run takes its time and writes nothing.
#![allow(non_snake_case, reason = "the names are cuDNN's")]

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::border::{Answer, Out, Status, driver};
use crate::gpu::fleet;
use crate::streams::new_handle;
use crate::{kernels, vendor};

/// What cuDNN returns for what it does not support.
const NOT_SUPPORTED: Status = Status(3000);

// The numbers of cuDNN's header.
const ENGINE: i32 = 2;
const HEURISTICS: i32 = 4;
const PLAN: i32 = 5;
const GRAPH: i32 = 15;
const REDUCTION: i32 = 22;
const CARD: i32 = 38;
const RESULTS: i32 = 202;
const HEURISTICS_CARD: i32 = 204;
const CONFIGURED_ENGINE: i32 = 300;
const CONFIGURED_WORKSPACE: i32 = 303;
const SHARED_BYTES: i32 = 304;
const PLAN_HANDLE: i32 = 400;
const PLAN_WORKSPACE: i32 = 402;
const PLAN_CARD: i32 = 407;
const GRAPH_HANDLE: i32 = 800;
const SIZES: i32 = 902;
const ENGINE_NUMBER: i32 = 1301;
const ENGINE_CARD: i32 = 1307;
const MULTIPLIED: i32 = 1520;
const REDUCED_FROM: i32 = 1610;
const REDUCED_TO: i32 = 1611;
const CARD_TEXT: i32 = 2702;
const QUERIES: i32 = 2800;
const OF_LARGE: i32 = 3;
const OF_DESCRIPTOR: i32 = 15;
const OF_SMALL: i32 = 23;
const OF_TEXT: i32 = 24;

/// Operations of graphs whose kernels cuDNN compiles while the program runs, which it does not do
/// without a driver: products of matrices, and attention whole.
const COMPILED: [i32; 3] = [19, 41, 43];
/// What such plans want of memory. PyTorch makes them for attention.
const COMPILED_WORKSPACE_BYTES: i64 = 256;

type Create = extern "C" fn(i32, *mut u64) -> Status;
type Set = extern "C" fn(u64, i32, i32, i64, *const c_void) -> Status;
type Get = extern "C" fn(u64, i32, i32, i64, *mut i64, *mut c_void) -> Status;
type OfDescriptor = extern "C" fn(u64) -> Status;

/// The vendor's own functions of these names, which come behind ours.
#[derive(Clone, Copy, Debug)]
struct Vendor {
    create: Create,
    set: Set,
    get: Get,
    finalize: OfDescriptor,
    destroy: OfDescriptor,
}

fn own() -> Answer<Vendor> {
    static VENDOR: OnceLock<Option<Vendor>> = OnceLock::new();
    let found = *VENDOR.get_or_init(|| {
        let [create, set, get, finalize, destroy] = [
            c"cudnnBackendCreateDescriptor",
            c"cudnnBackendSetAttribute",
            c"cudnnBackendGetAttribute",
            c"cudnnBackendFinalize",
            c"cudnnBackendDestroyDescriptor",
        ]
        .map(next);
        // SAFETY: these are cuDNN's functions of these names, which have these types by its header.
        unsafe {
            Some(Vendor {
                create: std::mem::transmute::<*mut c_void, Create>(create?),
                set: std::mem::transmute::<*mut c_void, Set>(set?),
                get: std::mem::transmute::<*mut c_void, Get>(get?),
                finalize: std::mem::transmute::<*mut c_void, OfDescriptor>(finalize?),
                destroy: std::mem::transmute::<*mut c_void, OfDescriptor>(destroy?),
            })
        }
    });
    found.ok_or(NOT_SUPPORTED)
}

fn next(name: &CStr) -> Option<*mut c_void> {
    vendor::function(&[c"libcudnn.so.9"], name)
}

/// The description of the card, made once.
fn card() -> Answer<u64> {
    static MADE: OnceLock<Answer<u64>> = OnceLock::new();
    *MADE.get_or_init(|| {
        let text = fleet()?.card.cudnn();
        let (own, mut descriptor) = (own()?, 0);
        done((own.create)(CARD, &raw mut descriptor))?;
        let (start, size): (*const c_void, i64) = (text.as_ptr().cast(), text.len() as i64);
        done((own.set)(descriptor, CARD_TEXT, OF_TEXT, size, start))?;
        done((own.finalize)(descriptor))?;
        Ok(descriptor)
    })
}

fn done(status: Status) -> Answer {
    if status == Status::SUCCESS { Ok(()) } else { Err(status) }
}

// Handles.

static STREAMS: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

fn with_streams<T>(act: impl FnOnce(&mut HashMap<u64, u64>) -> T) -> T {
    act(STREAMS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

fn stream_of(handle: u64) -> u64 {
    with_streams(|streams| streams.get(&handle).copied().unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnCreate(handle: Out<u64>) -> Status {
    driver(|| handle.put(new_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnDestroy(handle: u64) -> Status {
    with_streams(|streams| streams.remove(&handle));
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetStream(handle: u64, stream: u64) -> Status {
    with_streams(|streams| streams.insert(handle, stream));
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetStream(handle: u64, stream: Out<u64>) -> Status {
    driver(|| stream.put(stream_of(handle)))
}

// Plans.

/// What is remembered of each descriptor: its kind, and whether it stands for something that is not
/// cuDNN's own.
#[derive(Clone, Debug, Default)]
struct Descriptor {
    kind: i32,
    /// What a plan wants of memory that is not cuDNN's own; none for what is cuDNN's.
    ours: Option<i64>,
    /// The sizes of a tensor.
    sizes: Vec<u64>,
    /// The tensors of an operation, by what they are to it, and the operations of a graph.
    parts: Vec<(i32, u64)>,
}

static DESCRIPTORS: Mutex<Option<HashMap<u64, Descriptor>>> = Mutex::new(None);

fn with_descriptors<T>(act: impl FnOnce(&mut HashMap<u64, Descriptor>) -> T) -> T {
    act(DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

fn kind_of(descriptor: u64) -> i32 {
    with_descriptors(|known| known.get(&descriptor).map_or(-1, |descriptor| descriptor.kind))
}

fn ours(descriptor: u64) -> Option<i64> {
    with_descriptors(|known| known.get(&descriptor)?.ours)
}

fn make_ours(descriptor: u64, workspace_bytes: i64) {
    with_descriptors(|known| known.entry(descriptor).or_default().ours = Some(workspace_bytes));
}

/// What a plan for a graph with attention wants, if it is such a graph. As read off recordings of
/// an H200: 256 bytes; none where there is one query, as in generation; and where fewer keys than
/// queries have heads, room for the gradients of keys and values of all heads before they are
/// summed, in numbers of two bytes.
fn attention_workspace(graph: u64) -> Option<i64> {
    with_descriptors(|known| {
        let part = |descriptor: &Descriptor, what: i32| {
            let (_, found) = descriptor.parts.iter().find(|&&(part, _)| part == what)?;
            known.get(found)
        };
        let operations = known.get(&graph)?.parts.iter().filter_map(|(_, one)| known.get(one));
        let operations: Vec<&Descriptor> = operations.collect();
        if !operations.iter().any(|one| COMPILED.contains(&one.kind)) {
            return None;
        }
        let mut workspace_bytes = COMPILED_WORKSPACE_BYTES;
        for &one in &operations {
            let tensors = part(one, REDUCED_FROM).zip(part(one, REDUCED_TO));
            let Some((from, to)) = tensors.filter(|_| one.kind == REDUCTION) else { continue };
            if from.sizes.len() == 4 && from.sizes.get(1) != to.sizes.get(1) {
                workspace_bytes += 2 * from.sizes.iter().product::<u64>() as i64;
            }
        }
        let is_single = |one: &&Descriptor| {
            let first = part(one, MULTIPLIED).or_else(|| part(one, QUERIES));
            first.is_some_and(|first| first.sizes.get(2) == Some(&1))
        };
        Some(if operations.iter().any(is_single) { 0 } else { workspace_bytes })
    })
}

/// The descriptors that a caller shows.
fn shown(count: i64, values: *const c_void) -> Vec<u64> {
    let start: *const u64 = values.cast();
    // SAFETY: cuDNN's interface asks of its caller that there are as many descriptors as it says.
    (0..count.max(0) as usize).map(|at| unsafe { start.add(at).read_unaligned() }).collect()
}

#[unsafe(no_mangle)]
extern "C" fn cudnnBackendCreateDescriptor(kind: i32, place: *mut u64) -> Status {
    driver(|| {
        done((own()?.create)(kind, place))?;
        // SAFETY: the vendor's function has just written there and found it right.
        let descriptor = unsafe { place.read() };
        with_descriptors(|known| {
            known.insert(descriptor, Descriptor { kind, ..Descriptor::default() })
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudnnBackendDestroyDescriptor(descriptor: u64) -> Status {
    driver(|| {
        with_descriptors(|known| known.remove(&descriptor));
        done((own()?.destroy)(descriptor))
    })
}

/// Remembers what a descriptor is told, as far as it says what is attention. What is made of ours
/// is ours.
fn remember(descriptor: u64, attribute: i32, kind: i32, count: i64, values: *const c_void) {
    let numbers = match kind {
        OF_DESCRIPTOR => shown(count, values),
        OF_LARGE if attribute == SIZES => shown(count, values),
        _ => return,
    };
    let its_kind = with_descriptors(|known| {
        let own = known.entry(descriptor).or_default();
        if attribute == SIZES {
            own.sizes.clone_from(&numbers);
        } else {
            own.parts.extend(numbers.iter().map(|&number| (attribute, number)));
        }
        own.kind
    });
    let workspace_bytes = match its_kind {
        GRAPH => attention_workspace(descriptor),
        HEURISTICS | PLAN => numbers.iter().find_map(|&number| ours(number)),
        _ => None,
    };
    if let Some(workspace_bytes) = workspace_bytes {
        make_ours(descriptor, workspace_bytes);
    }
}

/// A handle is what there is none of: the card's description takes its place. A graph of kernels
/// that cuDNN would have to compile is ours, and so is what is made of it.
#[unsafe(no_mangle)]
extern "C" fn cudnnBackendSetAttribute(
    descriptor: u64,
    attribute: i32,
    kind: i32,
    count: i64,
    values: *const c_void,
) -> Status {
    if [PLAN_HANDLE, GRAPH_HANDLE].contains(&attribute) {
        return Status::SUCCESS;
    }
    remember(descriptor, attribute, kind, count, values);
    if ours(descriptor).is_some() {
        return Status::SUCCESS;
    }
    driver(|| done((own()?.set)(descriptor, attribute, kind, count, values)))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnBackendFinalize(descriptor: u64) -> Status {
    if ours(descriptor).is_some() {
        return Status::SUCCESS;
    }
    driver(|| {
        let attribute = match kind_of(descriptor) {
            ENGINE => Some(ENGINE_CARD),
            HEURISTICS => Some(HEURISTICS_CARD),
            PLAN => Some(PLAN_CARD),
            _ => None,
        };
        if let Some(attribute) = attribute {
            let card = card()?;
            let values: *const c_void = (&raw const card).cast();
            done((own()?.set)(descriptor, attribute, OF_DESCRIPTOR, 1, values))?;
        }
        done((own()?.finalize)(descriptor))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudnnBackendGetAttribute(
    descriptor: u64,
    attribute: i32,
    kind: i32,
    room: i64,
    count: *mut i64,
    values: *mut c_void,
) -> Status {
    let Some(workspace_bytes) = ours(descriptor) else {
        return driver(|| done((own()?.get)(descriptor, attribute, kind, room, count, values)));
    };
    driver(|| {
        let (there, number) = match attribute {
            // One way to do it, with one engine, which is asked for by descriptors to be filled.
            RESULTS | CONFIGURED_ENGINE => (1, None),
            PLAN_WORKSPACE => (1, Some(workspace_bytes)),
            ENGINE_NUMBER | SHARED_BYTES | CONFIGURED_WORKSPACE => (1, Some(0)),
            // Notes and choices: none.
            _ => (0, None),
        };
        if room > 0 && !values.is_null() {
            if let Some(number) = number {
                // SAFETY: cuDNN's interface asks of its caller that there is room for as many
                // numbers of this kind as it says.
                unsafe {
                    if kind == OF_SMALL {
                        values.cast::<i32>().write_unaligned(number as i32);
                    } else {
                        values.cast::<i64>().write_unaligned(number);
                    }
                }
            } else if there > 0 {
                for one in shown(1, values) {
                    make_ours(one, workspace_bytes);
                }
            }
        }
        if !count.is_null() {
            // SAFETY: likewise: where the count goes is null or may be written to.
            unsafe { count.write(there) };
        }
        Ok(())
    })
}

/// As many threads as a large layer has, whatever the plan is.
const THREADS: u64 = 1 << 20;

#[unsafe(no_mangle)]
extern "C" fn cudnnBackendExecute(handle: u64, _plan: u64, _pack: u64) -> Status {
    driver(|| kernels::launch(THREADS, stream_of(handle)))
}

// Norms of batches, which want no memory of their own where PyTorch asks.

#[unsafe(no_mangle)]
extern "C" fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    _handle: u64,
    _mode: i32,
    _ops: i32,
    _x: u64,
    _z: u64,
    _y: u64,
    _norm: u64,
    _activation: u64,
    size_bytes: Out<usize>,
) -> Status {
    driver(|| size_bytes.put(0))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    _handle: u64,
    _mode: i32,
    _ops: i32,
    _x: u64,
    _y: u64,
    _dy: u64,
    _dz: u64,
    _dx: u64,
    _norm: u64,
    _activation: u64,
    size_bytes: Out<usize>,
) -> Status {
    driver(|| size_bytes.put(0))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    _handle: u64,
    _mode: i32,
    _ops: i32,
    _activation: u64,
    _x: u64,
    size_bytes: Out<usize>,
) -> Status {
    driver(|| size_bytes.put(0))
}

/// Functions that take a handle first, and only run something.
macro_rules! runs {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(handle: u64) -> Status {
            driver(|| kernels::launch(THREADS, stream_of(handle)))
        }
    )*};
}

runs! {
    cudnnBatchNormalizationBackwardEx
    cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTrainingEx
    cudnnPoolingForward
    cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfGridGeneratorForward
    cudnnSpatialTfSamplerBackward
    cudnnSpatialTfSamplerForward
}
