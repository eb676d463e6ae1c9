//! The runtime's functions about graph capture.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

use larder_core::device::Device;
use larder_core::types::{NodeId, StreamId};

use crate::border::{Out, Room, Shown, Status, runtime};
use crate::gpu::gpu;

/// CUDA's words for whether a stream is captured.
const NOT_CAPTURED: i32 = 0;
const CAPTURED: i32 = 1;

thread_local! {
    /// For each stream, the nodes that this thread was told of last. CUDA lends them until the next
    /// call that changes them, so that they stay where they are while they are the same.
    static LENT: RefCell<BTreeMap<StreamId, Vec<u64>>> = const { RefCell::new(BTreeMap::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamIsCapturing(stream: u64, status: Out<i32>) -> Status {
    runtime(|| {
        let capture = gpu()?.capture_of(StreamId(stream))?;
        status.put(if capture.is_some() { CAPTURED } else { NOT_CAPTURED })
    })
}

/// The handle of a graph is the number of its capture, and that of a node its own number.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetCaptureInfo(
    stream: u64,
    status: Out<i32>,
    number: Out<u64>,
    graph: Out<u64>,
    ends: Out<*const u64>,
    edges: Out<*const c_void>,
    end_count: Out<usize>,
) -> Status {
    runtime(|| {
        let stream = StreamId(stream);
        let capture = gpu()?.capture_of(stream)?;
        let nodes: Vec<u64> = gpu()?.capture_ends(stream)?.into_iter().map(|node| node.0).collect();
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
    nodes: Room<u64>,
    _edges: *const c_void,
    count: Shown<usize>,
) -> Status {
    runtime(|| {
        let before = gpu()?.node_dependencies(NodeId(node))?;
        let before: Vec<u64> = before.into_iter().map(|node| node.0).collect();
        let written = nodes.fill(&before, &count)?;
        count.write(written)
    })
}

/// Every call is legal under a simulated capture that is not about the captured stream, so the mode
/// is what the caller says it is.
#[unsafe(no_mangle)]
extern "C" fn cudaThreadExchangeStreamCaptureMode(_mode: usize) -> Status {
    runtime(|| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_stream_shows_its_nodes_and_they_their_dependencies() {
        // Streams of its own: the device is the process's, and other tests use it too.
        let [first, second] = [0x7700, 0x7710].map(StreamId);
        let gpu = gpu().unwrap();
        gpu.begin_capture(first).unwrap();
        gpu.issue(first);
        gpu.follow(second, first).unwrap();
        gpu.issue(first);
        gpu.issue(second);
        gpu.follow(first, second).unwrap();
        let (mut status, mut count) = (7, 7_usize);
        let mut nodes: *const u64 = ptr::null();
        let asked = cudaStreamGetCaptureInfo(
            first.0,
            Out::to(&mut status),
            Out::none(),
            Out::none(),
            Out::to(&mut nodes),
            Out::none(),
            Out::to(&mut count),
        );
        assert_eq!((asked, status, count), (Status::SUCCESS, CAPTURED, 2));
        let ends = LENT.with_borrow(|lent| lent[&first].clone());
        assert_eq!(ends.len(), 2);
        assert_eq!(nodes, LENT.with_borrow(|lent| lent[&first].as_ptr()));
        for end in ends {
            let mut count = 0_usize;
            let told =
                cudaGraphNodeGetDependencies(end, Room::none(), ptr::null(), Shown::to(&mut count));
            assert_eq!((told, count), (Status::SUCCESS, 1));
            let mut before = [0_u64; 4];
            count = before.len();
            let told = cudaGraphNodeGetDependencies(
                end,
                Room::to(&mut before),
                ptr::null(),
                Shown::to(&mut count),
            );
            assert_eq!((told, count), (Status::SUCCESS, 1));
            assert_ne!(before[0], 0);
            assert_eq!(before[1], 0, "no more was written than there is");
        }
        gpu.end_capture(first).unwrap();
        cudaStreamIsCapturing(second.0, Out::to(&mut status));
        assert_eq!(status, NOT_CAPTURED);
    }
}
