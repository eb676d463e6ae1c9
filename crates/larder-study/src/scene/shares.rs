//! Shares: how much of each category there is at a moment.

use larder_core::heap::State;
use larder_core::types::Addr;

use super::Scene;
use crate::category::{Categories, Category};

/// What there is of one category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Of which.
    pub category: Category,
    /// How many allocations.
    pub count: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// What there is of each, in the order in which they are shown; those of which there is nothing are
/// left out.
pub type Shares = Vec<Share>;

/// What is live at a moment, by category.
pub fn shares(scene: &Scene, categories: &Categories) -> Shares {
    let kinds = categories.kinds();
    let mut shares: Shares =
        kinds.iter().map(|&category| Share { category, count: 0, bytes: 0 }).collect();
    for block in scene.segments.iter().flat_map(|segment| &segment.blocks) {
        let id = scene.live.get(&Addr(block.span.addr.0)).filter(|_| block.state == State::Live);
        let Some(&id) = id else { continue };
        let category = categories.get(id);
        if let Some(share) = shares.iter_mut().find(|share| share.category == category) {
            share.count += 1;
            share.bytes += block.span.size_bytes;
        }
    }
    shares.retain(|share| share.count > 0);
    shares
}
