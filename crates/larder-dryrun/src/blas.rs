//! cuBLAS and cuBLASLt: products take their time and write nothing. Descriptors are the vendor's
//! own, which need no card.
#![allow(non_snake_case, reason = "the names are cuBLAS's")]
#![allow(clippy::too_many_arguments, reason = "so are the arguments")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use crate::border::{Out, Status, driver};
use crate::gpu::{fleet, gpu};
use crate::streams::{new_handle, stream};
use crate::work::{Numbers, product_ns};
use crate::{kernels, vendor};

/// What is set on a handle.
#[derive(Clone, Copy, Debug, Default)]
struct Handle {
    stream: u64,
    pointer_mode: i32,
    math_mode: i32,
}

static HANDLES: Mutex<Option<HashMap<u64, Handle>>> = Mutex::new(None);

fn with_handle<T>(handle: u64, act: impl FnOnce(&mut Handle) -> T) -> T {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    act(handles.get_or_insert_default().entry(handle).or_default())
}

/// CUDA's numbers for types of numbers.
const SINGLE: i32 = 0;
const DOUBLE: i32 = 1;
const TF32_ALLOWED: i32 = 3;

fn numbers(kind: i32, math_mode: i32) -> Numbers {
    match kind {
        SINGLE if math_mode == TF32_ALLOWED => Numbers::Tf32,
        SINGLE => Numbers::Single,
        DOUBLE => Numbers::Double,
        _ => Numbers::Half,
    }
}

fn multiply(handle: u64, kind: i32, sizes: [u64; 4]) -> Status {
    driver(|| {
        let Handle { stream: on, math_mode, .. } = with_handle(handle, |handle| *handle);
        let lasts_ns = product_ns(&fleet()?.card, numbers(kind, math_mode), sizes);
        gpu()?.launch(stream(on), lasts_ns)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasCreate_v2(handle: Out<u64>) -> Status {
    driver(|| handle.put(new_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtCreate(handle: Out<u64>) -> Status {
    driver(|| handle.put(new_handle()))
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(_handle: u64) -> Status {
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtDestroy(_handle: u64) -> Status {
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(handle: u64, on: u64) -> Status {
    with_handle(handle, |handle| handle.stream = on);
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(_handle: u64, _place: u64, _size_bytes: usize) -> Status {
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetPointerMode_v2(handle: u64, mode: Out<i32>) -> Status {
    driver(|| mode.put(with_handle(handle, |handle| handle.pointer_mode)))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetPointerMode_v2(handle: u64, mode: i32) -> Status {
    with_handle(handle, |handle| handle.pointer_mode = mode);
    Status::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetMathMode(handle: u64, mode: Out<i32>) -> Status {
    driver(|| mode.put(with_handle(handle, |handle| handle.math_mode)))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetMathMode(handle: u64, mode: i32) -> Status {
    with_handle(handle, |handle| handle.math_mode = mode);
    Status::SUCCESS
}

/// Products of two matrices of one kind, and of batches of them.
macro_rules! products {
    ($($single:ident $batched:ident $kind:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $single(handle: u64, _a: i32, _b: i32, m: i32, n: i32, k: i32) -> Status {
            multiply(handle, $kind, [m as u64, n as u64, k as u64, 1])
        }

        #[unsafe(no_mangle)]
        extern "C" fn $batched(
            handle: u64,
            _op_a: i32,
            _op_b: i32,
            m: i32,
            n: i32,
            k: i32,
            _alpha: u64,
            _a: u64,
            _lda: i32,
            _stride_a: i64,
            _b: u64,
            _ldb: i32,
            _stride_b: i64,
            _beta: u64,
            _c: u64,
            _ldc: i32,
            _stride_c: i64,
            count: i32,
        ) -> Status {
            multiply(handle, $kind, [m as u64, n as u64, k as u64, count as u64])
        }
    )*};
}

products! {
    cublasSgemm_v2 cublasSgemmStridedBatched SINGLE;
    cublasDgemm_v2 cublasDgemmStridedBatched DOUBLE;
    cublasCgemm_v2 cublasCgemmStridedBatched DOUBLE;
    cublasZgemm_v2 cublasZgemmStridedBatched DOUBLE;
}

#[unsafe(no_mangle)]
extern "C" fn cublasSgemmEx(
    handle: u64,
    _op_a: i32,
    _op_b: i32,
    m: i32,
    n: i32,
    k: i32,
    _alpha: u64,
    _a: u64,
    kind: i32,
) -> Status {
    multiply(handle, kind, [m as u64, n as u64, k as u64, 1])
}

#[unsafe(no_mangle)]
extern "C" fn cublasGemmEx(
    handle: u64,
    _op_a: i32,
    _op_b: i32,
    m: i32,
    n: i32,
    k: i32,
    _alpha: u64,
    _a: u64,
    kind: i32,
) -> Status {
    multiply(handle, kind, [m as u64, n as u64, k as u64, 1])
}

#[unsafe(no_mangle)]
extern "C" fn cublasGemmStridedBatchedEx(
    handle: u64,
    _op_a: i32,
    _op_b: i32,
    m: i32,
    n: i32,
    k: i32,
    _alpha: u64,
    _a: u64,
    kind: i32,
    _lda: i32,
    _stride_a: i64,
    _b: u64,
    _kind_b: i32,
    _ldb: i32,
    _stride_b: i64,
    _beta: u64,
    _c: u64,
    _kind_c: i32,
    _ldc: i32,
    _stride_c: i64,
    count: i32,
) -> Status {
    multiply(handle, kind, [m as u64, n as u64, k as u64, count as u64])
}

/// Functions that take a handle first, whose work is not looked at.
macro_rules! others {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(handle: u64) -> Status {
            driver(|| kernels::launch(1 << 14, with_handle(handle, |handle| handle.stream)))
        }
    )*};
}

others! {
    cublasSgemv_v2 cublasDgemv_v2 cublasCgemv_v2 cublasZgemv_v2
    cublasSdot_v2 cublasDdot_v2 cublasCdotc_v2 cublasCdotu_v2 cublasZdotc_v2 cublasZdotu_v2
    cublasDotEx
    cublasStrsm_v2 cublasDtrsm_v2 cublasCtrsm_v2 cublasZtrsm_v2
    cublasStrsmBatched cublasDtrsmBatched cublasCtrsmBatched cublasZtrsmBatched
}

// cuBLASLt.

/// What PyTorch is told of the one way that there is to multiply.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    status: i32,
    waves: f32,
    reserved: [i32; 4],
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: u64,
    _operation: u64,
    _a: u64,
    _b: u64,
    _c: u64,
    _d: u64,
    _preference: u64,
    _wanted: i32,
    found: Out<Heuristic>,
    count: Out<i32>,
) -> Status {
    driver(|| {
        found.put(Heuristic {
            algorithm: [0; 8],
            workspace_bytes: 0,
            status: 0,
            waves: 1.0,
            reserved: [0; 4],
        })?;
        count.put(1)
    })
}

type LayoutAttribute = extern "C" fn(u64, i32, *mut u64, usize, *mut usize) -> i32;

/// Rows and columns that a layout has, its batch and its kind of numbers.
fn layout(descriptor: u64) -> Option<[u64; 4]> {
    const KIND: (i32, usize) = (0, 4);
    const ROWS: (i32, usize) = (2, 8);
    const COLUMNS: (i32, usize) = (3, 8);
    const BATCH: (i32, usize) = (5, 4);
    let name = c"cublasLtMatrixLayoutGetAttribute";
    let found = vendor::function(&[c"libcublasLt.so.13", c"libcublasLt.so.12"], name)?;
    // SAFETY: it is cuBLASLt's function of this name, which has this type by its header.
    let ask = unsafe { std::mem::transmute::<*mut c_void, LayoutAttribute>(found) };
    let read = |(attribute, size): (i32, usize)| {
        let (mut value, mut written) = (0_u64, 0);
        (ask(descriptor, attribute, &raw mut value, size, &raw mut written) == 0).then_some(value)
    };
    Some([read(ROWS)?, read(COLUMNS)?, read(BATCH)?, read(KIND)?])
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmul(
    _handle: u64,
    _operation: u64,
    _alpha: u64,
    _a: u64,
    a_layout: u64,
    _b: u64,
    _b_layout: u64,
    _beta: u64,
    _c: u64,
    _c_layout: u64,
    _d: u64,
    d_layout: u64,
    _algorithm: u64,
    _workspace: u64,
    _workspace_bytes: usize,
    on: u64,
) -> Status {
    driver(|| {
        let a = layout(a_layout).ok_or(Status::INVALID_VALUE)?;
        let [m, n, batch, kind] = layout(d_layout).ok_or(Status::INVALID_VALUE)?;
        // One of a's sides is the result's first, and the other is what is summed over.
        let k = a[0] * a[1] / m.max(1);
        let kind = numbers(kind as i32, TF32_ALLOWED);
        gpu()?.launch(stream(on), product_ns(&fleet()?.card, kind, [m, n, k, batch]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_cublas_13() {
        assert_eq!(std::mem::size_of::<Heuristic>(), 96);
    }
}
