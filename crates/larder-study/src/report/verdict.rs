//! Verdicts: what is wrong with a run in one sentence, how much of what is held could be had back
//! and how, and the line to paste. A page begins with one.

use larder_core::heap::State;
use larder_core::types::{Bytes, StreamId};
use serde_json::{Value, json};

use crate::explain::{Explanation, Outlook, explain, outlook};
use crate::replay::{ReplayError, Setup};
use crate::report::explained::{advice, line, why};
use crate::report::summary::count;
use crate::scene::Scene;
use crate::watch::Watch;
use crate::workload::Workload;

/// How many bytes of the held memory are free, by why they are not had back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Back {
    /// In segments of which nothing is in use: emptying the cache gives them back.
    emptied: u64,
    /// Between live blocks, on the stream that asks.
    pinned: u64,
    /// Between live blocks on other streams.
    others: u64,
    /// Freed, and still awaited by a stream.
    waiting: u64,
}

/// With more operations than this a verdict takes too many replays for a page.
const OPERATIONS_MAX: usize = 2_000_000;

/// The verdict on a run, as the page takes it; null where that would take too long.
pub fn verdict(
    workload: &Workload,
    setup: &Setup,
    watch: &dyn Watch,
) -> Result<Value, ReplayError> {
    if workload.ops.len() > OPERATIONS_MAX {
        return Ok(Value::Null);
    }
    if let Some(found) = explain(workload, setup, None, watch)? {
        return Ok(failed(&found));
    }
    let scene = Scene::of_peak(workload, setup)?;
    Ok(match outlook(workload, setup, watch)? {
        Some(found) => calm(&found, &scene),
        None => Value::Null,
    })
}

fn failed(found: &Explanation) -> Value {
    let report = &found.failure.report;
    let times = match found.failures {
        1 => String::new(),
        number if found.failure.earlier == 0 => format!(", the first of {number} that fail"),
        number => format!(", number {} of {number} that fail", found.failure.earlier + 1),
    };
    let asked = Bytes(report.requested_bytes);
    let sentence = format!("Out of memory: a request of {asked}{times}. The cause: {}", why(found));
    let (words, paste) = advice(found);
    let open = found
        .setup
        .caps
        .map(|caps| format!("The recording leaves open how much the program was allowed: {caps}."));
    let stream = StreamId(u64::from(found.failure.stream));
    json!({
        "kind": "failed",
        "sentence": sentence,
        "when": "when it failed",
        "allowed": Bytes(found.setup.allowed_bytes()).to_string(),
        "back": parts(Back::of(&found.scene, Some(stream))),
        "advice": words,
        "paste": paste,
        "open": open,
    })
}

fn calm(found: &Outlook, scene: &Scene) -> Value {
    let never_bytes = found.peak_reserved_bytes.saturating_sub(found.peak_active_bytes);
    let near = match found.near.len() {
        0 => "nothing was near to failing".to_owned(),
        number => format!(
            "{} met only when the cache had been given back",
            if number == 1 {
                "1 request was".to_owned()
            } else {
                format!("{number} requests were")
            }
        ),
    };
    let sentence = format!(
        "Nothing failed, and {near}. It held {} and used {} at most: {} were never used at once.",
        Bytes(found.peak_reserved_bytes),
        Bytes(found.peak_active_bytes),
        Bytes(never_bytes)
    );
    let advice = match &found.best {
        None => "No setting that was tried does better.".to_owned(),
        Some(best) => format!(
            "With {} it holds {}, with {}.",
            best.words,
            Bytes(best.trial.peak_reserved_bytes),
            count(best.trial.retries, "retry").replace("retrys", "retries")
        ),
    };
    json!({
        "kind": if found.near.is_empty() { "calm" } else { "retried" },
        "sentence": sentence,
        "when": "when most was in use",
        "allowed": Bytes(found.setup.allowed_bytes()).to_string(),
        "back": parts(Back::of(scene, None)),
        "advice": advice,
        "paste": found.best.as_ref().and_then(|best| line(&best.policy, &best.conf)),
        "open": null,
    })
}

/// Each part that there is, the largest first.
fn parts(back: Back) -> Vec<Value> {
    let mut parts = vec![
        (back.emptied, "idle: emptying the cache gives it back"),
        (back.pinned, "pinned: free between live blocks that keep it"),
        (back.others, "pinned on other streams, where this request gets nothing"),
        (back.waiting, "freed, and awaited by a stream that still uses it"),
    ];
    parts.retain(|&(bytes, _)| bytes > 0);
    parts.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
    let told = parts.iter().map(
        |&(bytes, how)| json!({ "bytes": bytes, "size": Bytes(bytes).to_string(), "how": how }),
    );
    told.collect()
}

impl Back {
    /// Adds up what is free in a scene; without a stream all of it is the program's own.
    fn of(scene: &Scene, stream: Option<StreamId>) -> Back {
        let mut back = Back::default();
        for segment in scene.homes() {
            let has = |states: &[State]| {
                let blocks = segment.blocks.iter().filter(|block| states.contains(&block.state));
                blocks.map(|block| block.span.size_bytes).sum::<u64>()
            };
            let free_bytes = has(&[State::Free, State::Deferred]);
            let waiting_bytes = has(&[State::Waiting]);
            back.waiting += waiting_bytes;
            if waiting_bytes + has(&[State::Live, State::Lent, State::Hollow]) == 0 {
                back.emptied += free_bytes;
            } else if stream.is_none_or(|stream| stream == segment.stream) {
                back.pinned += free_bytes;
            } else {
                back.others += free_bytes;
            }
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use larder_core::Policy;
    use larder_core::types::MIB;
    use larder_sim::script::Script;

    use super::*;
    use crate::watch::Unwatched;

    fn told(script: &str, memory_mib: u64) -> Value {
        let ops = Script::parse(script).expect("a script");
        let workload = Workload { ops, ..Workload::default() };
        let (policy, memory_bytes) = (Policy::torch_2_11(), memory_mib * MIB);
        let setup = Setup { policy, memory_bytes, ..Setup::default() };
        verdict(&workload, &setup, &Unwatched).expect("it runs")
    }

    #[test]
    fn what_could_be_had_back_is_told_by_how() {
        let pinned = "alloc 1 200MiB 0\nfree 1\nalloc 2 40MiB 0\n";
        let other = pinned.replace(" 0\n", " 7\n").replace("alloc 1", "alloc 5");
        let other = other.replace("free 1", "free 5").replace("alloc 2", "alloc 6");
        let said = told(&format!("{pinned}{other}alloc 3 220MiB 0\n"), 600);
        assert_eq!(said["kind"], "failed");
        assert_eq!(said["paste"], "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
        let sizes = said["back"].as_array().expect("parts").iter().map(|part| &part["size"]);
        assert_eq!(sizes.collect::<Vec<_>>(), ["160.00 MiB", "160.00 MiB"]);
        let sentence = said["sentence"].as_str().expect("a sentence");
        assert!(sentence.starts_with("Out of memory: a request of 220.00 MiB. The cause: "));
    }

    #[test]
    fn a_run_that_did_not_fail_is_told_what_it_holds_for_nothing() {
        let said = told("alloc 1 100MiB 0\nfree 1\nalloc 2 300MiB 0\n", 1000);
        assert_eq!(said["kind"], "calm");
        assert_eq!(said["back"][0]["bytes"], 100 * MIB);
        let sentence = said["sentence"].as_str().expect("a sentence");
        assert!(sentence.contains("100.00 MiB were never used at once"), "{sentence}");
        assert_eq!(said["paste"], "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    }
}
