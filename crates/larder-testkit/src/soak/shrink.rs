//! Shrinking: from a script that fails to a short one that fails.

use std::collections::HashSet;

use super::plan::Plan;
use super::run::Run;
use larder_sim::script::Op;

/// How many steps may be run to find a shorter script: some seconds. It is a number of steps and
/// not a time, so that a failure looks the same wherever it is repeated.
const STEPS_MAX: usize = 200_000;

/// Drops operations, in ever smaller pieces, as long as what is left still fails. Returns what is
/// left and why it fails.
pub(super) fn shrink(plan: &Plan, ops: &[Op], reason: &str) -> (Vec<Op>, String) {
    let mut steps = 0;
    let (mut ops, mut reason) = (ops.to_vec(), reason.to_owned());
    let mut piece = (ops.len() / 2).max(1);
    loop {
        let before = ops.len();
        let mut start = 0;
        while start < ops.len() {
            if steps > STEPS_MAX {
                return (ops, reason);
            }
            let end = (start + piece).min(ops.len());
            let shorter = without(&ops, start, end);
            if let Err(finding) = Run::whole(plan, &shorter) {
                steps += finding.step;
                ops = shorter.get(..=finding.step).unwrap_or(&shorter).to_vec();
                reason = finding.reason;
            } else {
                steps += shorter.len();
                start = end;
            }
        }
        if piece > 1 {
            piece /= 2;
        } else if ops.len() == before {
            return (ops, reason);
        }
    }
}

/// The script without the operations from `start` to `end`, and without those that name an
/// allocation or a checkpoint which is thereby gone.
fn without(ops: &[Op], start: usize, end: usize) -> Vec<Op> {
    let gone: HashSet<u64> = ops[start..end]
        .iter()
        .filter_map(|op| if let Op::Alloc { id, .. } = op { Some(*id) } else { None })
        .collect();
    let saved = |op: &Op| {
        if let Op::Checkpoint { checkpoint, .. } = op { Some(*checkpoint) } else { None }
    };
    let lost: HashSet<u32> = ops[start..end].iter().filter_map(saved).collect();
    let depends = |op: &Op| match op {
        Op::Free { id } | Op::Record { id, .. } => gone.contains(id),
        Op::Restore { checkpoint } => lost.contains(checkpoint),
        _ => false,
    };
    let kept = ops[..start].iter().chain(&ops[end..]);
    kept.filter(|op| !depends(op)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_sim::script::Script;

    #[test]
    fn what_depends_on_an_allocation_goes_with_it() {
        let ops = Script::parse("alloc 1 5 0\nalloc 2 5 0\nrecord 1 1\nfree 1\nfree 2").unwrap();
        let left: Vec<String> = without(&ops, 0, 1).iter().map(Op::to_string).collect();
        assert_eq!(left, ["alloc 2 5 0", "free 2"]);
        assert_eq!(without(&ops, 3, 5), ops[..3]);
    }
}
