//! The output of `--json`: flat objects with the keys that PyTorch users know.

use larder_core::TorchVersion;
use serde_json::{Map, Value, json};

use crate::bench::Measured;
use crate::compare::Row;
use crate::passes::Pass;
use crate::replay::{Outcome, Setup};
use crate::report::driver;
use crate::sizes::Sizes;
use crate::standing::Standing;
use crate::workload::Workload;

/// Every key of `torch.cuda.memory_stats()`, the allocations that failed, the device's calls and
/// what they cost, and what a reader would have to work out otherwise. Of several passes there is a
/// list.
pub fn outcome(workload: &Workload, outcome: &Outcome) -> Value {
    let mut object = changes(&workload.sizes);
    for (key, value) in outcome.stats.entries() {
        object.insert(key, value.into());
    }
    later_statistics(outcome, &mut object);
    object.insert("max_split_size".into(), outcome.max_split_bytes.into());
    object.insert("ooms".into(), outcome.ooms.into());
    object.insert("device.used".into(), outcome.used_bytes.into());
    object.insert("device.malloc".into(), outcome.calls.alloc.into());
    object.insert("device.free".into(), outcome.calls.free.into());
    object.insert("device.create".into(), outcome.calls.create.into());
    object.insert("device.map".into(), outcome.calls.map.into());
    object.insert("device.unmap".into(), outcome.calls.unmap.into());
    object.insert("driver.ns".into(), outcome.driver.ns.into());
    object.insert("driver.calls".into(), outcome.driver.calls.into());
    object.insert("driver.last_third.ns".into(), outcome.driver_last_third.ns.into());
    object.insert("driver.last_third.calls".into(), outcome.driver_last_third.calls.into());
    object.insert("driver.measured_on".into(), driver::measured_on().into());
    object.insert("operations".into(), outcome.operations.into());
    object.insert("overhead".into(), outcome.overhead().into());
    object.insert("first_oom".into(), outcome.first_oom.clone().into());
    // Counted from 1, as people count.
    let first_oom = outcome.first_oom_index.map(|index| index as u64 + 1);
    object.insert("first_oom.operation".into(), first_oom.into());
    if outcome.passes.len() > 1 {
        object.insert("passes".into(), outcome.passes.iter().map(pass).collect());
    }
    Value::Object(object)
}

/// What PyTorch counts since 2.12 and 2.13; of an older one it would be a key that it does not
/// have.
fn later_statistics(outcome: &Outcome, object: &mut Map<String, Value>) {
    let counts_since = |since| outcome.torch.is_none_or(|version| version >= since);
    if counts_since(TorchVersion::V2_12) {
        object.insert("num_oom_rejections".into(), outcome.stats.num_oom_rejections.into());
    }
    if !counts_since(TorchVersion::V2_13) {
        return;
    }
    for (pool, reserved) in &outcome.reserved_by_pool {
        let name = format!("reserved_bytes_by_private_pools.{}_{}", pool.0, pool.1);
        for (key, value) in reserved.entries(&name) {
            object.insert(key, value.into());
        }
    }
}

fn pass(pass: &Pass) -> Value {
    json!({
        "peak_active_bytes": pass.peak_active_bytes,
        "peak_reserved_bytes": pass.peak_reserved_bytes,
        "overhead": pass.overhead(),
        "ooms": pass.ooms,
        "driver_ns": pass.driver.ns,
        "driver_calls": pass.driver.calls,
    })
}

/// How the sizes of the program were changed; nothing where they were not.
fn changes(sizes: &Sizes) -> Map<String, Value> {
    let mut object = Map::new();
    if sizes.scale != 1 {
        object.insert("scale".into(), sizes.scale.into());
    }
    if let Some(jitter) = sizes.jitter {
        object.insert("jitter_percent".into(), jitter.percent.into());
        object.insert("jitter_seed".into(), jitter.seed.into());
    }
    object
}

/// An object with how the sizes were changed in it.
pub(super) fn with_changes(workload: &Workload, mut value: Value) -> Value {
    if let Value::Object(object) = &mut value {
        object.extend(changes(&workload.sizes));
    }
    value
}

/// One object for each of the settings. Those that the program was recorded with come last, if they
/// are none of the others.
pub fn rows(workload: &Workload, setup: &Setup, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let row = json!({
            "policy": setup.policy.name,
            "conf": row.conf,
            "recorded": row.is_recorded,
            "remark": row.remark,
            "memory_bytes": setup.memory_bytes,
            "peak_allocated_bytes": row.outcome.stats.allocated_bytes.all.peak,
            "peak_active_bytes": row.outcome.stats.active_bytes.all.peak,
            "peak_reserved_bytes": row.outcome.stats.reserved_bytes.all.peak,
            "overhead": row.outcome.overhead(),
            "retries": row.outcome.stats.num_alloc_retries,
            "ooms": row.outcome.ooms,
            "verdict": verdict(row.standing).0,
            "runs_from_bytes": verdict(row.standing).1,
            "driver_ns": row.outcome.driver.ns,
            "driver_calls": row.outcome.driver.calls,
            "driver_last_third_ns": row.outcome.driver_last_third.ns,
            "driver_last_third_calls": row.outcome.driver_last_third.calls,
        });
        with_changes(workload, row)
    };
    Value::Array(rows.iter().map(row).collect())
}

/// Whether it runs, and from which cap on where that depends on it.
pub(crate) fn verdict(standing: Standing) -> (&'static str, Option<u64>) {
    match standing {
        Standing::Runs => ("runs", None),
        Standing::Depends(from_bytes) => ("depends", from_bytes),
        Standing::Fails => ("fails", None),
    }
}

/// The line that `larder bench` prints.
pub fn measured(measured: &Measured) -> Value {
    json!({
        "ns_per_op": measured.ns_per_op,
        "ops": measured.ops,
        "threads": measured.threads,
    })
}
