//! Explanations for programs: `larder explain --json`.

use larder_core::types::PoolKind;
use serde_json::{Value, json};

use crate::explain::{Cause, Explanation, Family, Remedy, Verdict};
use crate::report::explained;
use crate::scene::{Hold, Lane, Provenance, Scene, Share, holders, holds, lanes, shares};

/// One object: the request, the cause, where the memory is, what keeps it, and what was tried.
pub fn explanation(explanation: &Explanation, provenance: &Provenance<'_>) -> Value {
    let Explanation { scene, failure, account, .. } = explanation;
    let report = &failure.report;
    let frames = |id: u64| provenance.stack(id).map(|stack| provenance.frames(stack));
    json!({
        "outcome": "failed",
        "failures": explanation.failures,
        "went_on": explanation.went_on,
        "failure": {
            "operation": scene.index + 1,
            "requested_bytes": report.requested_bytes,
            "rounded_bytes": report.rounded_bytes,
            "tried_bytes": report.tried_bytes,
            "stream": failure.stream,
            "pool": failure.pool.map(|pool| [pool.0, pool.1]),
            "message": report.to_string(),
            "frames": frames(failure.id),
        },
        "cause": {
            "name": cause_name(explanation.cause),
            "proven": explanation.is_proven,
            "text": explained::why(explanation),
        },
        "free": {
            "device_bytes": account.room_bytes,
            "withheld_bytes": account.withheld_bytes,
            "own_bytes": account.own_bytes,
            "own_pieces": account.own_pieces,
            "own_largest_bytes": account.own_largest_bytes,
            "other_streams_bytes": account.other_streams_bytes(),
            "other_pools_bytes": account.other_pools_bytes(),
            "other_kind_bytes": account.other_kind_bytes,
            "rounding_bytes": account.rounding_bytes,
        },
        "allowed_bytes": explanation.setup.allowed_bytes(),
        "caps": explanation.setup.caps.map(|caps| json!({
            "least_bytes": caps.least_bytes,
            "most_bytes": caps.most_bytes,
        })),
        "lanes": lanes(scene).iter().map(lane).collect::<Vec<_>>(),
        "kept": kept(scene, provenance),
        "categories": categories(scene, provenance),
        "live": live(scene, provenance),
        "remedies": explanation.remedies.iter().map(remedy).collect::<Vec<_>>(),
        "best": explanation.best().map(remedy),
        "needs_memory": explanation.needs_memory(),
    })
}

/// The name of a cause.
pub fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::TooLarge => "too_large",
        Cause::Fraction => "memory_fraction",
        Cause::CameFree => "came_free",
        Cause::Capture => "capture",
        Cause::SplitLimit => "split_limit",
        Cause::Pieces => "fragmentation",
        Cause::OtherStreams => "other_streams",
        Cause::OtherPools => "other_pools",
        Cause::OtherKind => "other_kind",
        Cause::Rounding => "rounding",
        Cause::Demand => "demand",
    }
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::Expandable => "expandable_segments",
        Family::FinePages => "fine_pages",
        Family::WithoutSplitLimit => "no_split_limit",
        Family::WithoutRounding => "no_rounding",
        Family::SplitLimit => "split_limit",
        Family::Rounding => "rounding",
        Family::Collection => "garbage_collection",
        Family::Policy => "policy",
        Family::Tight => "policy_tight",
        Family::Unheld => "no_memory_fraction",
        Family::EmptiedBefore => "emptied_before_capture",
        Family::PoolsLetGo => "pools_let_go",
        Family::PoolsLend => "pools_lend",
        Family::OneStream => "one_stream",
        Family::LargerCard => "larger_card",
        Family::SmallerSizes => "smaller_sizes",
    }
}

/// What a stream has in a pool.
pub fn lane(lane: &Lane) -> Value {
    json!({
        "stream": lane.stream.0,
        "pool": lane.pool.map(|pool| [pool.0, pool.1]),
        "kind": if lane.kind == PoolKind::Small { "small" } else { "large" },
        "segments": lane.segments,
        "reserved_bytes": lane.reserved_bytes,
        "live_bytes": lane.live_bytes,
        "waiting_bytes": lane.waiting_bytes,
        "free_bytes": lane.free_bytes,
        "free_pieces": lane.free_pieces,
        "largest_bytes": lane.largest_bytes,
    })
}

/// The segments that live blocks keep, those with most free first.
pub fn kept(scene: &Scene, provenance: &Provenance<'_>) -> Value {
    let hold = |hold: &Hold<'_>| {
        let oldest = hold.pins.first().and_then(|block| scene.live.get(&block.span.addr));
        let stack = oldest.and_then(|&id| provenance.stack(id));
        json!({
            "address": hold.segment.span.addr.0,
            "segment_bytes": hold.segment.backed_bytes,
            "stream": hold.segment.stream.0,
            "pool": hold.segment.pool.map(|pool| [pool.0, pool.1]),
            "free_bytes": hold.free_bytes(),
            "free_pieces": hold.free.len(),
            "largest_bytes": hold.free.first().map(|span| span.size_bytes),
            "pins": hold.pins.len(),
            "pin_bytes": hold.pin_bytes(),
            "oldest_operation": oldest.and_then(|id| scene.born.get(id)).map(|index| index + 1),
            "oldest_frames": stack.map(|stack| provenance.frames(stack)),
        })
    };
    holds(scene).iter().take(32).map(hold).collect()
}

/// What is live, by what it is for.
pub fn categories(scene: &Scene, provenance: &Provenance<'_>) -> Value {
    let categories = provenance.categories();
    let share = |share: Share| {
        json!({
            "category": categories.name(share.category),
            "blocks": share.count,
            "bytes": share.bytes,
        })
    };
    shares(scene, categories).into_iter().map(share).collect()
}

/// Who holds the live memory, most first.
pub fn live(scene: &Scene, provenance: &Provenance<'_>) -> Value {
    let holder = |holder: &crate::scene::Holder| {
        json!({
            "bytes": holder.bytes,
            "blocks": holder.count,
            "size_bytes": holder.size_bytes,
            "category": provenance.categories().name(holder.category),
            "oldest_operation": holder.oldest + 1,
            "frames": holder.stack.map(|stack| provenance.frames(stack)),
        })
    };
    holders(scene, provenance).iter().take(64).map(holder).collect()
}

pub(super) fn remedy(remedy: &Remedy) -> Value {
    let (runs, fails_at) = match remedy.verdict {
        Verdict::Runs => (true, None),
        Verdict::Depends(_) => (false, None),
        Verdict::Later(index) => (false, Some(index + 1)),
        Verdict::Fails => (false, remedy.trial.first_failure.map(|index| index + 1)),
    };
    let (verdict, runs_from_bytes) = match remedy.verdict {
        Verdict::Runs => ("runs", None),
        Verdict::Depends(from_bytes) => ("depends", from_bytes),
        Verdict::Later(_) => ("fails_later", None),
        Verdict::Fails => ("fails", None),
    };
    json!({
        "name": family_name(remedy.family),
        "words": remedy.words,
        "policy": remedy.policy.name,
        "conf": remedy.conf,
        "memory_bytes": remedy.memory_bytes,
        "set": remedy.is_setting().then(|| explained::line(&remedy.policy, &remedy.conf)).flatten(),
        "runs": runs,
        "verdict": verdict,
        "runs_from_bytes": runs_from_bytes,
        "gets_past": remedy.gets_past(),
        "fails_at_operation": fails_at,
        "ooms": remedy.trial.ooms,
        "peak_reserved_bytes": remedy.trial.peak_reserved_bytes,
        "retries": remedy.trial.retries,
        "driver_ns": remedy.trial.driver.ns,
        "driver_calls": remedy.trial.driver.calls,
    })
}

/// The memory at a moment: what `larder show --json` prints.
pub fn scene(scene: &Scene, provenance: &Provenance<'_>) -> Value {
    let current = |bytes: i64| bytes.max(0);
    json!({
        "operation": scene.index + 1,
        "allocated_bytes": current(scene.stats.allocated_bytes.all.current),
        "active_bytes": current(scene.stats.active_bytes.all.current),
        "reserved_bytes": current(scene.stats.reserved_bytes.all.current),
        "lanes": lanes(scene).iter().map(lane).collect::<Vec<_>>(),
        "kept": kept(scene, provenance),
        "categories": categories(scene, provenance),
        "live": live(scene, provenance),
    })
}
