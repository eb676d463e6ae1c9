//! What a search for the smallest memory came to, for people and for programs.

use larder_core::types::Bytes;
use serde_json::{Value, json};

use crate::card::CONTEXT_BYTES;
use crate::fit::Fit;
use crate::lineup::Place;
use crate::margin::{Margin, OFF_PERCENT, Refused};
use crate::replay::Setup;
use crate::report::explained_json;
use crate::report::json::with_changes;
use crate::report::summary::{changed, count, misplaced, policy, times_over};
use crate::report::table::Table;
use crate::settings::{Chosen, FRACTION_KEY};
use crate::standing::said_up;
use crate::workload::Workload;

/// What `larder fit` prints.
pub fn fitted(
    name: &str,
    workload: &Workload,
    setup: &Setup,
    settings: &Chosen,
    (fit, margin): (&Fit, &Margin),
) -> String {
    let times = times_over(fit.passes).map(|times| format!(" {times}")).unwrap_or_default();
    let Some(memory_bytes) = fit.memory_bytes else {
        let sizes = &workload.sizes;
        let sizes = if sizes.is_same() { String::new() } else { format!(" with sizes {sizes}") };
        let rest = margin.refused.as_ref().map(refused).unwrap_or_default();
        let limit = Bytes(setup.memory_bytes);
        return format!("{name}: does not run{times} in {limit}{sizes}\n{rest}");
    };
    let in_all = if fit.passes > 1 { " in all" } else { "" };
    let retries = match (fit.retries, fit.calm_bytes) {
        (0, _) => "it never has to give its cache back there and try again".to_owned(),
        (number, Some(calm_bytes)) => format!(
            "it has to give its cache back there and try again {}{in_all}, each of which costs \
             time; with {} ({calm_bytes} bytes) never",
            count(number, "time"),
            Bytes(said_up(calm_bytes))
        ),
        (number, None) => format!(
            "it has to give its cache back there and try again {}{in_all}, and {} with {} too",
            count(number, "time"),
            count(fit.roomy_retries, "time"),
            Bytes(setup.memory_bytes)
        ),
    };
    let off = margin.off_bytes.map_or(String::new(), |off_bytes| {
        format!("with sizes {OFF_PERCENT} % off it was seen to need up to {}\n", Bytes(off_bytes))
    });
    format!(
        "{name}: runs{times} in {} ({memory_bytes} bytes), {:.3} times its peak of {} active\n\
         {retries}\n{off}{}\
         the CUDA context, other libraries and other processes come on top: the first two took up \
         to {} of an H200\n\
         {}{}, {}\n{}{}{}{}",
        Bytes(margin.said_bytes.unwrap_or(memory_bytes)),
        fit.ratio().unwrap_or(1.0),
        Bytes(fit.peak_active_bytes),
        margin.refused.as_ref().map(refused).unwrap_or_default(),
        Bytes(CONTEXT_BYTES),
        unknown_rest(workload),
        policy(&setup.policy),
        settings.in_words(),
        misplaced(setup),
        settings.remark(),
        fraction_of_the_fit(setup),
        changed(workload)
    )
}

/// Says of requests that were refused what comes of it if they are refused again.
fn refused(refused: &Refused) -> String {
    let Refused { count: number, largest_bytes, memory_bytes } = *refused;
    let asked = match number {
        1 => format!("1 request of {} was", Bytes(largest_bytes)),
        _ => format!("{number} requests, the largest of {}, were", Bytes(largest_bytes)),
    };
    let asked = format!("{asked} refused when it was recorded, and it went on");
    match memory_bytes {
        Some(bytes) => format!(
            "{asked}: where that may happen again it runs in {} ({bytes} bytes)\n",
            Bytes(said_up(bytes))
        ),
        None => format!("{asked}: without them it needs as much\n"),
    }
}

/// Says of a program that died of want of memory that what it needed is known up to there.
fn unknown_rest(workload: &Workload) -> &'static str {
    let ends = workload.recording.as_ref().is_some_and(|facts| facts.ends_at_failure);
    if ends {
        "the recording ends where the program ran out of memory: what it would have needed later \
         is not known\n"
    } else {
        ""
    }
}

/// Says so where a fraction makes the device larger than the program needs it.
fn fraction_of_the_fit(setup: &Setup) -> String {
    let fraction = setup.effective_fraction();
    if fraction >= 1.0 {
        return String::new();
    }
    format!(
        "{FRACTION_KEY}:{fraction} lets it have that part of the device alone, so that the device \
         must be as much larger: leave it out to see what the program needs\n"
    )
}

/// The smallest memory and what it is measured against, and for how many passes where there are
/// several.
pub fn json(workload: &Workload, setup: &Setup, fit: &Fit, margin: &Margin) -> Value {
    let mut found = json!({
        "policy": setup.policy.name,
        "fit_bytes": fit.memory_bytes,
        "retries": fit.retries,
        "fit_without_retries_bytes": fit.calm_bytes,
        "peak_active_bytes": fit.peak_active_bytes,
        "ratio": fit.ratio(),
        "off_by_percent": OFF_PERCENT,
        "off_bytes": margin.off_bytes,
        "context_bytes": CONTEXT_BYTES,
        "refused": margin.refused.as_ref().map(|refused| json!({
            "requests": refused.count,
            "largest_bytes": refused.largest_bytes,
            "fit_bytes": refused.memory_bytes,
        })),
    });
    if fit.passes > 1 {
        found["passes"] = fit.passes.into();
    }
    with_changes(workload, found)
}

/// What comes of the program on each of several cards.
pub fn lineup(places: &[Place]) -> String {
    let mut table = Table::new(["card", "for the program", "the program"]);
    for place in places {
        let how = match (place.ooms, place.retries, &place.remedy) {
            (0, 0, _) => "yes".to_owned(),
            (0, number, _) => {
                format!("yes, with {}", count(number, "retry").replace("retrys", "retries"))
            }
            (_, _, Some(remedy)) => format!("with {}", remedy.words),
            _ => "no".to_owned(),
        };
        table.push([place.card.to_string(), Bytes(place.room_bytes).to_string(), how]);
    }
    format!(
        "\n{table}\nfor the program: what the card reports, without {} for the CUDA context and \
         libraries, which is the most that they took of an H200\n",
        Bytes(CONTEXT_BYTES)
    )
}

/// The same, as an array.
pub fn lineup_json(places: &[Place]) -> Value {
    let place = |place: &Place| {
        json!({
            "card": place.card.name,
            "total_bytes": place.card.total_bytes,
            "room_bytes": place.room_bytes,
            "runs": place.ooms == 0,
            "ooms": place.ooms,
            "retries": place.retries,
            "remedy": place.remedy.as_ref().map(explained_json::remedy),
        })
    };
    places.iter().map(place).collect()
}
