//! Divergence: what Python is told of ranks that made different calls.

use larder_core::sequence::{Call, Divergence};

/// What a call was, in the words that `larder.DivergenceError` has for it.
fn call_text(call: Option<Call>) -> String {
    match call {
        None => "none".to_owned(),
        Some(Call::Begin { .. }) => "begin".to_owned(),
        Some(Call::Request { size_bytes, .. }) => format!("request {size_bytes}"),
        Some(Call::Refused { size_bytes }) => format!("refused {size_bytes}"),
        Some(Call::Free { number }) => format!("free {number}"),
        Some(Call::Trim { segments }) => format!("trim {segments}"),
    }
}

/// What each rank did, and its stack.
pub(crate) fn ranks_of(divergence: &Divergence) -> Vec<(String, String)> {
    divergence.ranks.iter().map(|rank| (call_text(rank.call), rank.stack.clone())).collect()
}
