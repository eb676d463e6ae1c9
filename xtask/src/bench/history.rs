//! What it costs to remember: the same scripts with the history off and on, without call stacks.

use super::contestant::Run;
use super::table::Figures;
use super::timing::Timing;
use super::workload::{HOT_BLOCK, RANDOM_SIZES, VARLEN, Workload};
use crate::programs::Programs;

/// How many entries are kept. The ring is full long before a measurement ends.
pub(super) const ENTRIES: u64 = 100_000;

/// For each workload three rows: off, on, and what the difference comes to for one event.
pub(super) fn compare(programs: &Programs, workloads: &[Workload], timing: Timing) -> Vec<Figures> {
    let chosen = [HOT_BLOCK, RANDOM_SIZES, VARLEN];
    let mut rows = Vec::new();
    for workload in workloads.iter().filter(|workload| chosen.contains(&workload.name.as_str())) {
        eprintln!("==> history of {}", workload.name);
        let measure = |history, state: &str| {
            let run = Run { script: &workload.script, repeat: 1, threads: 1, history };
            // The least: in a difference what disturbs the machine would count twice.
            timing.measure_run(programs, run, format!("{}, {state}", workload.name)).least
        };
        let (off, on) = (measure(None, "off"), measure(Some(ENTRIES), "on"));
        let event = per_event(&off, &on, format!("{}, an event", workload.name));
        rows.extend([off, on, event]);
    }
    rows
}

/// A malloc is one event and a free is two, and a script has as many of the one as of the other.
fn per_event(off: &Figures, on: &Figures, name: String) -> Figures {
    let mut values = on.values;
    for (value, off) in values.iter_mut().zip(off.values) {
        *value = value.zip(off).map(|(on, off)| (on - off) / 1.5);
    }
    Figures { name, values }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_shared_by_three_events_to_two_operations() {
        let row = |values| Figures { name: String::new(), values };
        let off = row([Some(300.0), None, Some(60.0), None, None]);
        let on = row([Some(600.0), None, Some(90.0), Some(90.0), None]);
        let event = per_event(&off, &on, "x".to_owned());
        assert_eq!(event.values, [Some(200.0), None, Some(20.0), None, None]);
    }
}
