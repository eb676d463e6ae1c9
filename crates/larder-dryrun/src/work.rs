//! How long work lasts: a crude model, enough that events end in about the order in which they end
//! on a card.
//!
//! - A kernel takes a floor, and moves so many bytes for each of its threads at 0.7 of the card's
//!   rate of memory. (A thread of PyTorch's element-wise kernels reads and writes some 32 bytes.)
//! - A product of matrices takes its operations at 0.6 of the card's rate for such numbers, or its
//!   bytes, whichever is more.
//! - A copy takes its bytes: at 0.8 of the card's rate of memory on the card, at 25 GB/s to and
//!   from pinned memory of the host, at 8 GB/s from other memory of the host.

use crate::card::Card;

/// No kernel takes less.
const FLOOR_NS: f64 = 2_000.0;
const BYTES_A_THREAD: f64 = 32.0;
const PINNED_BYTES_PER_NS: f64 = 25.0;
const PAGEABLE_BYTES_PER_NS: f64 = 8.0;

/// The kind of numbers that are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    Half,
    Tf32,
    Single,
    Double,
}

/// The bytes that a card moves in a nanosecond are its gigabytes a second.
fn moving_ns(card: &Card, bytes: f64, share: f64) -> f64 {
    bytes / (card.memory_gb_per_s * share)
}

/// A kernel with so many threads.
pub(crate) fn kernel_ns(card: &Card, threads: u64) -> u64 {
    (FLOOR_NS + moving_ns(card, threads as f64 * BYTES_A_THREAD, 0.7)) as u64
}

/// A product of matrices, or a batch of them.
pub(crate) fn product_ns(card: &Card, numbers: Numbers, [m, n, k, batch]: [u64; 4]) -> u64 {
    let [m, n, k, batch] = [m, n, k, batch].map(|size| size as f64);
    let (tflops, bytes) = match numbers {
        Numbers::Half => (card.half_tflops, 2.0),
        Numbers::Tf32 => (card.tf32_tflops, 4.0),
        Numbers::Single => (card.single_tflops, 4.0),
        Numbers::Double => (card.single_tflops / 2.0, 8.0),
    };
    // Teraflops are thousands of operations in a nanosecond.
    let computing = 2.0 * m * n * k * batch / (tflops * 1_000.0 * 0.6);
    let moved = moving_ns(card, (m * k + k * n + m * n) * batch * bytes, 0.7);
    (FLOOR_NS + computing.max(moved)) as u64
}

/// Between which memories a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    OnCard,
    Pinned,
    Pageable,
}

/// A copy of so many bytes.
pub(crate) fn copy_ns(card: &Card, route: Route, bytes: u64) -> u64 {
    let bytes = bytes as f64;
    let moving = match route {
        Route::OnCard => moving_ns(card, 2.0 * bytes, 0.8),
        Route::Pinned => bytes / PINNED_BYTES_PER_NS,
        Route::Pageable => bytes / PAGEABLE_BYTES_PER_NS,
    };
    (FLOOR_NS + moving) as u64
}
