//! The command `tune`.

use std::time::{Duration, Instant};

use larder_core::Policy;
use larder_study::compare::all_policies;
use larder_study::replay::Setup;
use larder_study::report::{explained, tuned};
use larder_study::sizes::Sizes;
use larder_study::tune::{Tuned, tune};

use crate::args::Common;
use crate::progress::Bars;
use crate::{Refusal, Task, name, print, print_text, set_up, stopped};

/// Searches the settings. Who names no policy sees what can be had of stock PyTorch, and what of
/// Larder's own policies.
pub(crate) fn tune_command(common: &Common, sizes: Sizes, seconds: u64) -> Result<(), Refusal> {
    let start = Instant::now();
    let Task { workload, settings, setup, .. } = set_up(common, None, sizes)?;
    let is_named = common.policy.is_some();
    let base = if is_named { setup.policy.clone() } else { workload.stock() };
    let setup = Setup { policy: base.clone(), ..setup };
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
    let stock = run(&[base], limit / 2)?;
    let others: Vec<Policy> = all_policies(workload.stock())
        .into_iter()
        .filter(|policy| *policy != stock.base.policy)
        .collect();
    // What the first search left is for the second.
    let larders: Tuned = run(&others, limit.saturating_sub(start.elapsed()))?;
    let heading = explained::heading(&name(common), &workload, &setup, &settings);
    let is_cut_short = stock.is_cut_short || larders.is_cut_short;
    let text = [
        heading,
        tuned::base_line(&stock.base),
        tuned::tuned("best with stock PyTorch", &stock, &stock.base),
        tuned::tuned("best with `python -m larder`", &larders, &stock.base),
        tuned::below(stock.tried + larders.tried, start.elapsed().as_secs_f64(), is_cut_short),
    ];
    print_text(&text.join("\n"))
}
