//! The runtime's functions about captures and graphs.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_core::device::Device;
use larder_core::types::{NodeId, StreamId};

use crate::border::{Answer, Out, Shown, Status, runtime};
use crate::gpu::{Captured, gpu};
use crate::streams::{new_handle, stream};
use crate::values;

/// CUDA's words for whether a stream is captured.
const NOT_CAPTURED: i32 = 0;
const CAPTURED: i32 = 1;

/// What is remembered of each graph, by its handle and by that of what was made of it.
static GRAPHS: Mutex<Option<HashMap<u64, Captured>>> = Mutex::new(None);

fn with_graphs<T>(act: impl FnOnce(&mut HashMap<u64, Captured>) -> T) -> T {
    let mut graphs: MutexGuard<'_, _> = GRAPHS.lock().unwrap_or_else(PoisonError::into_inner);
    act(graphs.get_or_insert_default())
}

/// How many captures are running.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// Whether anything is being captured, for the part that is built for a PyTorch.
#[unsafe(no_mangle)]
extern "C" fn larder_dry_is_capturing() -> i32 {
    i32::from(RUNNING.load(Ordering::Relaxed) > 0)
}

thread_local! {
    /// For each stream, the nodes that this thread was told of last. CUDA lends them until the next
    /// call that changes them, so that they stay where they are while they are the same.
    static LENT: RefCell<BTreeMap<StreamId, Vec<u64>>> = const { RefCell::new(BTreeMap::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamIsCapturing(handle: u64, status: Out<i32>) -> Status {
    runtime(|| {
        let capture = gpu()?.device.capture_of(stream(handle))?;
        status.put(if capture.is_some() { CAPTURED } else { NOT_CAPTURED })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamBeginCapture(handle: u64, _mode: i32) -> Status {
    runtime(|| {
        gpu()?.device.begin_capture(stream(handle))?;
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamEndCapture(handle: u64, graph: Out<u64>) -> Status {
    runtime(|| {
        let (gpu, stream) = (gpu()?, stream(handle));
        let id = gpu.device.capture_of(stream)?;
        let ended = gpu.device.end_capture(stream);
        if id.is_some() && gpu.device.capture_of(stream)?.is_none() {
            RUNNING.fetch_sub(1, Ordering::Relaxed);
        }
        let captured = id.and_then(|id| gpu.beside().captured.remove(&id)).unwrap_or_default();
        if let Err(why) = ended {
            graph.put_if_wanted(0);
            return Err(why.into());
        }
        let handle = new_handle();
        with_graphs(|graphs| graphs.insert(handle, captured));
        graph.put(handle)
    })
}

/// The handle of a running capture's graph is its number, and that of a node its own number.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetCaptureInfo(
    handle: u64,
    status: Out<i32>,
    number: Out<u64>,
    graph: Out<u64>,
    ends: Out<*const u64>,
    edges: Out<*const c_void>,
    end_count: Out<usize>,
) -> Status {
    runtime(|| {
        let (gpu, stream) = (gpu()?, stream(handle));
        let capture = gpu.device.capture_of(stream)?;
        let nodes = gpu.device.capture_ends(stream)?;
        let nodes: Vec<u64> = nodes.into_iter().map(|node| node.0).collect();
        number.put_if_wanted(capture.map_or(0, |id| id.0));
        graph.put_if_wanted(capture.map_or(0, |id| id.0));
        end_count.put_if_wanted(nodes.len());
        edges.put_if_wanted(ptr::null());
        LENT.with_borrow_mut(|lent| {
            let lent = lent.entry(stream).or_default();
            if *lent != nodes {
                *lent = nodes;
            }
            ends.put_if_wanted(lent.as_ptr());
        });
        status.put(if capture.is_some() { CAPTURED } else { NOT_CAPTURED })
    })
}

/// Without room for the nodes it says how many there are.
#[unsafe(no_mangle)]
extern "C" fn cudaGraphNodeGetDependencies(
    node: u64,
    nodes: Out<u64>,
    _edges: *const c_void,
    count: Shown<usize>,
) -> Status {
    runtime(|| {
        let before = gpu()?.device.node_dependencies(NodeId(node))?;
        let before: Vec<u64> = before.into_iter().map(|node| node.0).collect();
        let room = count.read()?;
        count.write(before.len())?;
        // Null says that only their number is wanted.
        let _ = nodes.put_all(&before, room);
        Ok(())
    })
}

/// Every call is legal under a simulated capture that is not about the captured stream, so the mode
/// is what the caller says it is.
#[unsafe(no_mangle)]
extern "C" fn cudaThreadExchangeStreamCaptureMode(_mode: usize) -> Status {
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphGetNodes(graph: u64, _nodes: u64, count: Shown<usize>) -> Status {
    runtime(|| {
        let nodes = with_graphs(|graphs| graphs.get(&graph).map_or(0, |graph| graph.nodes));
        count.write(nodes as usize)
    })
}

fn instantiate(made: Out<u64>, graph: u64) -> Answer {
    let captured = with_graphs(|graphs| graphs.get(&graph).copied());
    let handle = new_handle();
    with_graphs(|graphs| graphs.insert(handle, captured.unwrap_or_default()));
    made.put(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphInstantiate(made: Out<u64>, graph: u64, _flags: u64) -> Status {
    runtime(|| instantiate(made, graph))
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphInstantiateWithFlags(made: Out<u64>, graph: u64, _flags: u64) -> Status {
    runtime(|| instantiate(made, graph))
}

/// Nobody here knows what the graph writes.
#[unsafe(no_mangle)]
extern "C" fn cudaGraphLaunch(made: u64, handle: u64) -> Status {
    runtime(|| {
        let captured = with_graphs(|graphs| graphs.get(&made).copied());
        let captured = captured.ok_or(Status::INVALID_VALUE)?;
        values::forget_all();
        gpu()?.launch(stream(handle), captured.duration_ns)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphDestroy(graph: u64) -> Status {
    with_graphs(|graphs| graphs.remove(&graph));
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphExecDestroy(made: u64) -> Status {
    with_graphs(|graphs| graphs.remove(&made));
    Status::SUCCESS
}

/// Objects that a graph is to keep are kept for ever.
#[unsafe(no_mangle)]
extern "C" fn cudaUserObjectCreate(object: Out<u64>) -> Status {
    runtime(|| object.put(0))
}

#[unsafe(no_mangle)]
extern "C" fn cudaUserObjectRelease(_object: u64) -> Status {
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cudaGraphRetainUserObject(_graph: u64, _object: u64) -> Status {
    Status::SUCCESS
}
