//! Soak runs: a random script on the allocator over the simulated GPU, with everything that must
//! hold checked after every step.
//!
//! One seed decides all of it ([`Plan`]): policy, settings and their changes on the way, memory,
//! streams, what goes wrong, and the script. After each step
//!
//! - the heap checks itself;
//! - a checker who only sees what every caller sees recounts all statistics;
//! - a naive model of the allocator, run in lock-step on a device of its own, must have made the
//!   same placements, statistics and device calls. Where device calls fail at random it cannot
//!   follow, and the first two judge alone.
//!
//! Of the tight policy there is no model. There it is what must hold of any allocator that is
//! checked: blocks keep what was written into them, no two lie on the same bytes, and bytes go from
//! one stream to another only behind the work that used them.
//!
//! What goes wrong comes back as a [`Failure`] with a script cut down to what is needed to see it.

mod abroad;
mod apart;
pub mod concurrent;
pub(crate) mod contents;
mod exact;
mod external_checker;
mod failure;
mod habits;
mod model;
mod order;
mod outcome;
mod plan;
mod pools;
mod recount;
mod report;
mod run;
mod shrink;
mod source;
mod tally;

pub use failure::Failure;
pub use plan::{COMBINATIONS, Change, FAULTS_BIT, Habits, Plan, Trouble};
pub use report::Report;

use larder_core::Policy;

use larder_sim::script::Op;
use run::Run;
use shrink::shrink;

/// Runs the plan that belongs to the seed, with a script of so many steps.
pub fn run(seed: u64, steps: usize) -> Result<Report, Box<Failure>> {
    let plan = Plan::new(seed, steps);
    run_plan(&plan, &plan.script())
}

/// Runs the plan that belongs to the seed under a policy of the caller's choice.
pub fn run_under(policy: Policy, seed: u64, steps: usize) -> Result<Report, Box<Failure>> {
    let plan = Plan::new(seed, steps).under(policy);
    run_plan(&plan, &plan.script())
}

/// Runs these operations as the plan says. They need not be the plan's own script.
pub fn run_plan(plan: &Plan, ops: &[Op]) -> Result<Report, Box<Failure>> {
    Run::whole(plan, ops).map_err(|finding| {
        let cut = ops.get(..=finding.step).unwrap_or(ops);
        let (prefix, prefix_reason) = shrink(plan, cut, &finding.reason);
        Box::new(Failure {
            seed: plan.seed,
            steps: plan.script.steps,
            plan: plan.to_string(),
            policy: (!plan.is_own_policy()).then(|| plan.policy.name.to_owned()),
            step: finding.step,
            op: ops.get(finding.step).copied(),
            reason: finding.reason,
            prefix,
            prefix_reason,
        })
    })
}
