//! What a placement has at once for a request of the fast path.

use crate::types::Addr;

/// The answer of a placement.
pub(super) enum Ready {
    /// The request has its block.
    Taken(Addr),
    /// There is none, and the index is not to be asked either.
    Declined,
    /// Nothing: the index is next.
    Nothing,
}
