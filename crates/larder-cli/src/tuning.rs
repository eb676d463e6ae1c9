//! The command `tune`.

use std::time::{Duration, Instant};

use larder_core::Policy;
use larder_study::compare::all_policies;
use larder_study::report::{explained, tuned};
use larder_study::sizes::Sizes;
use larder_study::tune::tune;

use crate::args::Common;
use crate::progress::Bars;
use crate::{Refusal, Task, name, print, print_text, set_up, stopped};

/// Searches the settings. Who names no policy sees what can be had of stock PyTorch, and what of
/// Larder's own policies.
pub(crate) fn tune_command(common: &Common, sizes: Sizes, seconds: u64) -> Result<(), Refusal> {
    let start = Instant::now();
    let Task { workload, settings, setup, .. } = set_up(common, None, sizes)?;
    let base = setup.policy.clone();
    let limit = Duration::from_secs(seconds);
    let run = |policies: &[Policy], limit: Duration| {
        tune(&workload, &setup, policies, limit, &Bars::default())
            .map_err(|error| stopped(common, &workload, &error))
    };
    if common.json || common.policy.is_some() {
        let found = run(&[base], limit)?;
        if common.json {
            return print(&tuned::json(&found, setup.memory_bytes));
        }
        let heading = explained::heading(&name(common), &workload, &setup, &settings);
        if let Some(demand) = tuned::demand(&found, &setup) {
            return print_text(&[heading, tuned::base_line(&found.base), demand].join("\n"));
        }
        let title = "the best three";
        let text = [
            heading,
            tuned::base_line(&found.base),
            String::new(),
            tuned::tuned(title, &found, &found.base),
            tuned::below(found.tried, start.elapsed().as_secs_f64(), found.is_cut_short),
        ];
        return print_text(&text.join("\n"));
    }
    let [stock, larders @ ..] = all_policies(workload.stock());
    let (of_torch, of_larder) = ("best with stock PyTorch", "best with `python -m larder`");
    // Whoever recorded the program comes first: what it is compared with is the program as it is.
    let groups = if base.is_stock() {
        [(of_torch, vec![base]), (of_larder, larders.to_vec())]
    } else {
        let others = larders.into_iter().filter(|policy| *policy != base);
        [(of_larder, [base.clone()].into_iter().chain(others).collect()), (of_torch, vec![stock])]
    };
    let [(first_title, first), (second_title, second)] = groups;
    let first = run(&first, limit / 2)?;
    if let Some(demand) = tuned::demand(&first, &setup) {
        let heading = explained::heading(&name(common), &workload, &setup, &settings);
        return print_text(&[heading, tuned::base_line(&first.base), demand].join("\n"));
    }
    // What the first search left is for the second.
    let second = run(&second, limit.saturating_sub(start.elapsed()))?;
    let heading = explained::heading(&name(common), &workload, &setup, &settings);
    let is_cut_short = first.is_cut_short || second.is_cut_short;
    let text = [
        heading,
        tuned::base_line(&first.base),
        tuned::tuned(first_title, &first, &first.base),
        tuned::tuned(second_title, &second, &first.base),
        tuned::below(first.tried + second.tried, start.elapsed().as_secs_f64(), is_cut_short),
    ];
    print_text(&text.join("\n"))
}
