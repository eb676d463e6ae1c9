//! How a program fared that did not fail, for people and for programs.

use larder_core::types::Bytes;
use larder_sim::Spent;
use serde_json::{Value, json};

use crate::explain::{NearFailure, Outlook};
use crate::report::answer::Commands;
use crate::report::explained::{line, moment, stack_lines};
use crate::report::quote::quoted;
use crate::report::summary::count;
use crate::report::{driver, explained_json};
use crate::scene::Provenance;

/// How many near failures are shown.
const NEAR_SHOWN: usize = 6;

/// What `larder explain` prints where nothing failed.
pub fn text(
    heading: &str,
    outlook: &Outlook,
    provenance: &Provenance<'_>,
    commands: &Commands,
) -> String {
    let Outlook { peak_active_bytes, peak_reserved_bytes, .. } = *outlook;
    let never_bytes = peak_reserved_bytes.saturating_sub(peak_active_bytes);
    let mut text = format!(
        "{heading}\nnothing failed: {} were in use at the peak, and {} held of the GPU, of {} that \
         it may have.\n",
        Bytes(peak_active_bytes),
        Bytes(peak_reserved_bytes),
        Bytes(outlook.setup.allowed_bytes())
    );
    text.push_str(&format!(
        "held but never used at once: {}; held and idle when most was in use: {}; idle at the end: \
         {}\n\n",
        Bytes(never_bytes),
        Bytes(outlook.idle_at_peak_bytes),
        Bytes(outlook.idle_at_end_bytes)
    ));
    text.push_str(&near(outlook, provenance));
    text.push_str(&best(outlook, commands));
    text.push_str("--memory with less shows what would fail first on a smaller card\n");
    text
}

fn near(outlook: &Outlook, provenance: &Provenance<'_>) -> String {
    let near = &outlook.near;
    if near.is_empty() {
        return "No request was near to failing: none had to have the cache given back.\n"
            .to_owned();
    }
    let cost_ns = near.iter().map(|near| near.driver_ns).sum();
    let mut text = format!(
        "Near failures: {} met only when the cache had been given back, which took {} of {} driver \
         time in all:\n\n",
        match near.len() {
            1 => "1 request was".to_owned(),
            number => format!("{number} requests were"),
        },
        driver::time(Spent { calls: 0, ns: cost_ns }),
        driver::time(Spent { calls: 0, ns: outlook.driver_ns }),
    );
    for NearFailure { index, id, asked_bytes, given_back_bytes, driver_ns } in
        near.iter().take(NEAR_SHOWN)
    {
        text.push_str(&format!(
            "  {} asked for {}: {} given back, {}\n",
            moment(*index, *id, provenance),
            Bytes(*asked_bytes),
            Bytes(*given_back_bytes),
            driver::time(Spent { calls: 0, ns: *driver_ns })
        ));
        text.push_str(&stack_lines(provenance.stack(*id), provenance, "    "));
    }
    if near.len() > NEAR_SHOWN {
        text.push_str(&format!("  and {} more\n", near.len() - NEAR_SHOWN));
    }
    text.push('\n');
    text
}

fn best(outlook: &Outlook, commands: &Commands) -> String {
    let Some(best) = &outlook.best else {
        return "No setting that was tried does better: leave them.\n".to_owned();
    };
    let trial = &best.trial;
    let held = Bytes(trial.peak_reserved_bytes);
    let saved = outlook.peak_reserved_bytes as i64 - trial.peak_reserved_bytes as i64;
    let saved = match saved {
        0 => "as much".to_owned(),
        1.. => format!("{} less", Bytes(saved as u64)),
        _ => format!("{} more", Bytes(saved.unsigned_abs())),
    };
    let line =
        line(&best.policy, &best.conf).map_or(String::new(), |line| format!("\n\n  {line}\n"));
    format!(
        "Best: with {} it holds {held}, {saved}, with {} and {} of driver time; `larder replay {} \
         --policy {} --conf {}` shows it.{line}\n",
        best.words,
        count(trial.retries, "retry").replace("retrys", "retries"),
        driver::time(trial.driver),
        commands.replay,
        best.policy.name,
        quoted(&best.conf)
    )
}

/// One object, which says that nothing failed and whether anything nearly did.
pub fn json(outlook: &Outlook) -> Value {
    let near = |near: &NearFailure| {
        json!({
            "operation": near.index + 1,
            "requested_bytes": near.asked_bytes,
            "given_back_bytes": near.given_back_bytes,
            "driver_ns": near.driver_ns,
        })
    };
    json!({
        "outcome": if outlook.near.is_empty() { "calm" } else { "retried" },
        "failure": null,
        "peak_active_bytes": outlook.peak_active_bytes,
        "peak_reserved_bytes": outlook.peak_reserved_bytes,
        "allowed_bytes": outlook.setup.allowed_bytes(),
        "never_used_bytes": outlook.peak_reserved_bytes.saturating_sub(outlook.peak_active_bytes),
        "idle_at_peak_bytes": outlook.idle_at_peak_bytes,
        "idle_at_end_bytes": outlook.idle_at_end_bytes,
        "near_failures": outlook.near.iter().map(near).collect::<Vec<_>>(),
        "driver_ns": outlook.driver_ns,
        "best": outlook.best.as_ref().map(explained_json::remedy),
    })
}
