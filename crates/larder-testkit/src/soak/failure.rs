//! Failures: what went wrong in a run, with all that is needed to see it again.

use std::fmt;

use larder_sim::script::Op;

/// A run found something wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that the run came from.
    pub seed: u64,
    /// How many steps were asked for.
    pub steps: usize,
    /// What the run was, in words.
    pub plan: String,
    /// The policy that was asked for, if the seed would have another.
    pub policy: Option<String>,
    /// The step of the whole script that failed, from 0; its length if it was the ending.
    pub step: usize,
    /// The operation that failed; none if it was the ending.
    pub op: Option<Op>,
    /// What was wrong.
    pub reason: String,
    /// The shortest script found that fails too. Its own failure may have another reason.
    pub prefix: Vec<Op>,
    /// Why `prefix` fails.
    pub prefix_reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} failed at step {}, ", self.seed, self.step)?;
        match self.op {
            Some(op) => writeln!(f, "'{op}': {}", self.reason)?,
            None => writeln!(f, "the ending: {}", self.reason)?,
        }
        writeln!(f, "plan: {}", self.plan)?;
        let count = self.prefix.len();
        writeln!(f, "shortest failing prefix found ({count} operations): {}", self.prefix_reason)?;
        for op in &self.prefix {
            writeln!(f, "    {op}")?;
        }
        write!(f, "repeat with: cargo testkit soak --seed {} --steps {}", self.seed, self.steps)?;
        self.policy.iter().try_for_each(|policy| write!(f, " --policy {policy}"))
    }
}

impl std::error::Error for Failure {}
