//! Captures: what is told of them, and of the graphs that they make.

use std::ptr;

use larder_core::device::DeviceError;

use super::check;
use crate::sys::{self, CUresult, CUstream};
use crate::table::{self, table};

/// What the driver tells of a stream's capture. Drivers before CUDA 12.3 know nothing of data on
/// edges.
///
/// # Safety
/// The stream is alive, and each pointer is null or to a value of its type.
unsafe fn capture_info(
    stream: CUstream,
    status: *mut sys::CUstreamCaptureStatus,
    id: *mut sys::cuuint64_t,
    nodes: *mut *const sys::CUgraphNode,
    edges: *mut *const sys::CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    let graph = ptr::null_mut();
    // SAFETY: the caller promises what the driver needs.
    unsafe {
        if table().cuStreamGetCaptureInfo_v3.is_some() {
            table::cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count)
        } else {
            table::cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count)
        }
    }
}

/// What the driver tells of the nodes that a node depends on.
///
/// # Safety
/// The node is alive; the arrays are null or have room for as many as the count says.
unsafe fn dependencies(
    node: sys::CUgraphNode,
    nodes: *mut sys::CUgraphNode,
    edges: *mut sys::CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    // SAFETY: the caller promises what the driver needs.
    unsafe {
        if table().cuGraphNodeGetDependencies_v2.is_some() {
            table::cuGraphNodeGetDependencies_v2(node, nodes, edges, count)
        } else {
            table::cuGraphNodeGetDependencies(node, nodes, count)
        }
    }
}

/// The capture that a stream is under: its number, and whether it still goes well. Nothing is known
/// of the number of one that was broken.
///
/// # Safety
/// The stream is alive.
pub unsafe fn capture_of(stream: CUstream) -> Result<Option<(u64, bool)>, DeviceError> {
    use sys::CUstreamCaptureStatus as Status;
    let (mut status, mut id) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
    // SAFETY: the pointers are to values of the right types, and those that are null are optional.
    check(unsafe {
        capture_info(
            stream,
            &raw mut status,
            &raw mut id,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        )
    })?;
    let goes_well = status == Status::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    Ok((status != Status::CU_STREAM_CAPTURE_STATUS_NONE).then_some((id, goes_well)))
}

/// What the next work on a captured stream will depend on; nothing if the stream is not captured.
///
/// # Safety
/// The stream is alive, and nobody else works on it meanwhile.
pub unsafe fn capture_ends(stream: CUstream) -> Result<Vec<u64>, DeviceError> {
    use sys::CUstreamCaptureStatus as Status;
    let (mut status, mut count) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
    let mut nodes: *const sys::CUgraphNode = ptr::null();
    let mut edges: *const sys::CUgraphEdgeData = ptr::null();
    // SAFETY: as in `capture_of`. With edges asked for, the driver also tells of those that carry
    // data, which it refuses to leave out.
    check(unsafe {
        capture_info(
            stream,
            &raw mut status,
            ptr::null_mut(),
            &raw mut nodes,
            &raw mut edges,
            &raw mut count,
        )
    })?;
    if status != Status::CU_STREAM_CAPTURE_STATUS_ACTIVE || nodes.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the driver names an array of that many nodes, which stays until the next call that
    // works on the stream; the caller promises that there is none meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(nodes, count) }
        .iter()
        .map(|&node| node as u64)
        .collect())
}

/// The nodes that a node depends on, which may be named more than once.
///
/// # Safety
/// The node is one of a graph that is alive and that nobody else changes meanwhile.
pub unsafe fn node_dependencies(node: u64) -> Result<Vec<u64>, DeviceError> {
    let node = node as sys::CUgraphNode;
    let mut count = 0;
    // SAFETY: with no arrays the driver only counts.
    check(unsafe { dependencies(node, ptr::null_mut(), ptr::null_mut(), &raw mut count) })?;
    let mut nodes = vec![ptr::null_mut(); count];
    let mut edges = vec![sys::CUgraphEdgeData::default(); count];
    if count > 0 {
        // SAFETY: both arrays have room for as many as the driver just counted. With edges given
        // it also tells of those that carry data, which it refuses to leave out.
        check(unsafe {
            dependencies(node, nodes.as_mut_ptr(), edges.as_mut_ptr(), &raw mut count)
        })?;
    }
    nodes.truncate(count);
    Ok(nodes.into_iter().map(|node| node as u64).collect())
}
