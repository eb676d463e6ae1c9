//! Driver time: what a run's calls for memory would have cost on the card whose prices are known.

use larder_sim::{H200, Spent};

/// The card that the prices are of, its driver, and when they were measured.
pub fn measured_on() -> String {
    format!("{}, driver {}, {}", H200.card, H200.driver, H200.date)
}

/// A time in the one unit in which all of them can be compared.
pub fn time(spent: Spent) -> String {
    format!("{:.1} ms", spent.ns as f64 / 1e6)
}

/// What the column of `larder compare` means.
pub fn remark() -> String {
    format!("driver time: what the calls for memory cost, as measured on {}", measured_on())
}
