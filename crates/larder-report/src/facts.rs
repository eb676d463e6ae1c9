//! Facts: all that the page says and that is no long table, as JSON.

use larder_core::types::{Bytes, PoolId};
use larder_study::report::{answer, driver, summary};
use larder_study::timeline::{Growth, Lane, Peak, Timeline};
use serde_json::{Value, json};

use crate::arenas::Arena;
use crate::bands::KINDS;
use crate::subject::Subject;

/// More growths than this say nothing more: the largest are kept.
const GROWTHS_MAX: usize = 4000;

/// What the page says of a subject. `levels` are those of the bands.
pub(crate) fn facts(subject: &Subject, unit_bytes: u64, levels: &Value, arenas: &[Arena]) -> Value {
    let Subject { timeline, origins, setup, .. } = subject;
    let stats = &timeline.outcome.stats;
    let peaks = &timeline.series.peaks;
    let kinds = KINDS.iter().map(|&kind| kind.to_owned());
    let frames = origins.frames.iter().map(|frame| json!([frame.name, frame.file, frame.line]));
    let frames: Vec<Value> = frames.collect();
    let arenas = arenas.iter().map(|arena| json!([arena.addr, arena.end, arena.lane]));
    let arenas: Vec<Value> = arenas.collect();
    json!({
        "name": subject.name,
        "policy": setup.policy.name,
        "is_tight": setup.policy.tight,
        "is_stock": setup.policy.is_stock(),
        "is_recording": subject.workload.recording.is_some(),
        "settings": subject.settings.in_words(),
        "memory_bytes": setup.memory_bytes,
        "memory": Bytes(setup.memory_bytes).to_string(),
        "events": timeline.events,
        "allocations": timeline.allocations.len(),
        "unit": unit_bytes,
        "peaks": {
            "allocated": peak(peaks.allocated),
            "active": peak(peaks.active),
            "reserved": peak(peaks.reserved),
        },
        "overhead": timeline.outcome.overhead(),
        "retries": stats.num_alloc_retries,
        "ooms": timeline.outcome.ooms,
        "first_oom": timeline.outcome.first_oom,
        "driver": driver::time(timeline.outcome.driver),
        "bucket": timeline.series.events_each,
        "buckets": timeline.series.buckets.len(),
        "lanes": timeline.lanes.iter().map(lane).collect::<Vec<_>>(),
        "frames": frames,
        "stacks": origins.stacks,
        "kinds": kinds.chain(origins.remarks.iter().cloned()).collect::<Vec<_>>(),
        "levels": levels,
        "stretches": timeline.stretches.len(),
        "arenas": arenas,
        "growths": growths(&timeline.growths),
        "failures": growths(&timeline.failures),
        "compared": compared(subject),
        "answer": subject.answer,
        "verdict": subject.verdict,
        "driver_remark": driver::remark(),
    })
}

fn peak((bytes, event): Peak) -> Value {
    json!({ "bytes": bytes, "event": event })
}

fn lane(lane: &Lane) -> Value {
    let pool = match lane.pool {
        PoolId::NONE => "default".to_owned(),
        PoolId(0, number) => format!("private {number}"),
        PoolId(number, _) => format!("graph {number}"),
    };
    json!({ "stream": lane.stream.0, "pool": pool })
}

/// In the order in which they came.
fn growths(all: &[Growth]) -> Vec<Value> {
    let mut kept: Vec<&Growth> = all.iter().collect();
    if kept.len() > GROWTHS_MAX {
        kept.sort_unstable_by_key(|growth| std::cmp::Reverse(growth.free_bytes));
        kept.truncate(GROWTHS_MAX);
        kept.sort_unstable_by_key(|growth| growth.event);
    }
    let told = |growth: &&Growth| {
        let Growth { event, lane, asked_bytes, free_bytes, largest_bytes, runs } = **growth;
        json!([event, lane, asked_bytes, free_bytes, largest_bytes, runs])
    };
    kept.iter().map(told).collect()
}

/// What `larder compare` prints, with what each would save against the run that the page shows.
fn compared(subject: &Subject) -> Vec<Value> {
    let shown_bytes = peak_reserved(&subject.timeline);
    let runs = subject.compared.iter();
    let rows = runs.flat_map(|(setup, rows)| rows.iter().map(move |row| (setup, row)));
    let advised = answer::advised(&subject.compared);
    let told = rows.enumerate().map(|(at, (setup, row))| {
        let outcome = &row.outcome;
        let stats = &outcome.stats;
        json!({
            "is_advised": advised == Some(at),
            "policy": setup.policy.name,
            "conf": summary::conf_name(&row.conf),
            "is_recorded": row.is_recorded,
            "allocated": stats.allocated_bytes.all.peak,
            "active": stats.active_bytes.all.peak,
            "reserved": stats.reserved_bytes.all.peak,
            "overhead": outcome.overhead(),
            "retries": stats.num_alloc_retries,
            "ooms": outcome.ooms,
            "standing": summary::standing_in_words(row.standing),
            "driver": driver::time(outcome.driver),
            "saved": shown_bytes - stats.reserved_bytes.all.peak,
            "paste": answer::to_set(&setup.policy, row),
            "remark": row.remark,
        })
    });
    told.collect()
}

fn peak_reserved(timeline: &Timeline) -> i64 {
    timeline.outcome.stats.reserved_bytes.all.peak
}
