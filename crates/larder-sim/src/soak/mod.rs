//! Soak runs: a random script on the allocator over the simulated GPU, with everything that must
//! hold checked after every step.
//!
//! One seed decides all of it ([`Plan`]): policy, settings and their changes on the way, memory,
//! streams, what goes wrong, and the script. After each step
//!
//! - the heap checks itself;
//! - a witness who only sees what every caller sees recounts all statistics;
//! - a naive model of the allocator, run in lock-step on a device of its own, must have made the
//!   same placements, statistics and device calls. Where device calls fail at random it cannot
//!   follow, and the first two judge alone.
//!
//! What goes wrong comes back as a [`Failure`] with a script cut down to what is needed to see it.

mod apart;
pub mod concurrent;
mod failure;
mod model;
mod plan;
mod pools;
mod report;
mod run;
mod shrink;
mod tally;
mod witness;

pub use failure::Failure;
pub use plan::{COMBINATIONS, Change, FAULTS_BIT, Plan, Trouble};
pub use report::Report;

use crate::script::Op;
use run::Run;
use shrink::shrink;

/// Runs the plan that belongs to the seed, with a script of so many steps.
pub fn run(seed: u64, steps: usize) -> Result<Report, Box<Failure>> {
    let plan = Plan::new(seed, steps);
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
            step: finding.step,
            op: ops.get(finding.step).copied(),
            reason: finding.reason,
            prefix,
            prefix_reason,
        })
    })
}
