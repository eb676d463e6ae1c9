//! What goes wrong, planned ahead: calls that fail, events that are late, a greedy neighbour.

use larder_core::device::DeviceError;

use crate::calls::{CallKind, KINDS};
use crate::random::Random;

/// The device's code for a fault that was planned.
pub const FAULT_CODE: i32 = 999;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// As `DeviceError::OutOfMemory`.
    OutOfMemory,
    /// As `DeviceError::Other` with [`FAULT_CODE`].
    Other,
}

impl Fault {
    /// The error that the caller sees.
    pub fn error(self) -> DeviceError {
        match self {
            Fault::OutOfMemory => DeviceError::OutOfMemory,
            Fault::Other => DeviceError::Other {
                code: FAULT_CODE,
                text: String::from("the simulated device failed as planned"),
            },
        }
    }
}

/// A plan of faults. Equal plans on equal calls give equal faults.
///
/// The default plan has none.
///
/// ```
/// use larder_sim::{CallKind, Fault, FaultPlan};
///
/// let plan = FaultPlan::new(42)
///     .fail_nth(CallKind::Create, 4, Fault::OutOfMemory)
///     .fail_sometimes(CallKind::Alloc, 0.01, Fault::OutOfMemory)
///     .late_events(0.2, 5);
/// ```
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    seed: u64,
    calls: Vec<CallFault>,
    page_limit: Option<u64>,
    late: Option<LateEvents>,
    tenant: Option<Tenant>,
}

#[derive(Clone, Copy, Debug)]
struct CallFault {
    kind: CallKind,
    when: When,
    fault: Fault,
}

#[derive(Clone, Copy, Debug)]
enum When {
    Nth(u64),
    From(u64),
    Sometimes(f64),
}

#[derive(Clone, Copy, Debug)]
struct LateEvents {
    probability: f64,
    queries_max: u32,
}

#[derive(Clone, Copy, Debug)]
struct Tenant {
    probability: f64,
    step_bytes_max: u64,
}

impl FaultPlan {
    /// A plan with no faults yet, whose random choices will follow `seed`.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan { seed, ..FaultPlan::default() }
    }

    /// The `number`-th call of the kind fails, counted from 1 and from when the plan took effect.
    #[must_use]
    pub fn fail_nth(self, kind: CallKind, number: u64, fault: Fault) -> FaultPlan {
        self.with(CallFault { kind, when: When::Nth(number), fault })
    }

    /// The `number`-th call of the kind fails, and all after it.
    #[must_use]
    pub fn fail_from(self, kind: CallKind, number: u64, fault: Fault) -> FaultPlan {
        self.with(CallFault { kind, when: When::From(number), fault })
    }

    /// Each call of the kind fails with this probability.
    #[must_use]
    pub fn fail_sometimes(self, kind: CallKind, probability: f64, fault: Fault) -> FaultPlan {
        self.with(CallFault { kind, when: When::Sometimes(probability), fault })
    }

    /// At most this many pages exist at a time: the device runs out of memory in the middle of
    /// mapping a larger piece, and has memory again once pages are released.
    #[must_use]
    pub fn page_limit(mut self, pages_max: u64) -> FaultPlan {
        self.page_limit = Some(pages_max);
        self
    }

    /// With this probability, an event says "not yet" to its first queries, up to `queries_max`,
    /// although its work has finished. Waiting for it works as ever.
    #[must_use]
    pub fn late_events(mut self, probability: f64, queries_max: u32) -> FaultPlan {
        self.late = Some(LateEvents { probability, queries_max });
        self
    }

    /// Before each call that takes memory, with this probability, another process takes or gives
    /// back up to `step_bytes_max`.
    #[must_use]
    pub fn tenant(mut self, probability: f64, step_bytes_max: u64) -> FaultPlan {
        self.tenant = Some(Tenant { probability, step_bytes_max });
        self
    }

    fn with(mut self, fault: CallFault) -> FaultPlan {
        self.calls.push(fault);
        self
    }
}

/// What another process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantStep {
    Take(u64),
    Give(u64),
}

/// A plan that is under way: how many calls came, and where the random numbers stand.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    plan: FaultPlan,
    random: Random,
    calls_seen: [u64; KINDS],
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan) -> Faults {
        let random = Random::new(plan.seed);
        Faults { plan, random, calls_seen: [0; KINDS] }
    }

    /// Whether this call fails, and how. `page_count` is how many pages exist now.
    pub(crate) fn strike(&mut self, kind: CallKind, page_count: u64) -> Option<Fault> {
        let seen = &mut self.calls_seen[kind as usize];
        *seen += 1;
        let number = *seen;
        let mut struck = None;
        for planned in self.plan.calls.iter().filter(|planned| planned.kind == kind) {
            let strikes = match planned.when {
                When::Nth(nth) => number == nth,
                When::From(first) => number >= first,
                When::Sometimes(probability) => self.random.chance(probability),
            };
            if strikes {
                // The first in the plan wins, but every die is cast, so that one fault does not
                // shift the random numbers of the next.
                struck = struck.or(Some(planned.fault));
            }
        }
        let at_limit = self.plan.page_limit.is_some_and(|limit| page_count >= limit);
        if kind == CallKind::Create && at_limit {
            struck = struck.or(Some(Fault::OutOfMemory));
        }
        struck
    }

    /// How many queries too many the event that is being recorded will need.
    pub(crate) fn late_queries(&mut self) -> u32 {
        match self.plan.late {
            Some(late) if self.random.chance(late.probability) => {
                self.random.between(1, u64::from(late.queries_max.max(1))) as u32
            }
            _ => 0,
        }
    }

    /// What the other process does before a call of this kind.
    pub(crate) fn tenant_step(&mut self, kind: CallKind) -> Option<TenantStep> {
        let tenant = self.plan.tenant?;
        let takes_memory = matches!(kind, CallKind::Alloc | CallKind::Create);
        if !takes_memory || !self.random.chance(tenant.probability) {
            return None;
        }
        let size_bytes = self.random.between(0, tenant.step_bytes_max);
        let gives = self.random.chance(0.5);
        Some(if gives { TenantStep::Give(size_bytes) } else { TenantStep::Take(size_bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(plan: FaultPlan, kind: CallKind, calls: u32) -> Vec<Option<Fault>> {
        let mut faults = Faults::new(plan);
        (0..calls).map(|_| faults.strike(kind, 0)).collect()
    }

    #[test]
    fn the_nth_call_of_its_kind_fails_and_no_other() {
        let plan = FaultPlan::new(1).fail_nth(CallKind::Map, 2, Fault::Other).fail_from(
            CallKind::Free,
            3,
            Fault::OutOfMemory,
        );
        assert_eq!(strikes(plan.clone(), CallKind::Map, 3), [None, Some(Fault::Other), None]);
        assert_eq!(strikes(plan.clone(), CallKind::Unmap, 2), [None, None]);
        let out = Some(Fault::OutOfMemory);
        assert_eq!(strikes(plan, CallKind::Free, 4), [None, None, out, out]);
    }

    #[test]
    fn chances_replay_from_the_seed() {
        let plan = |seed| FaultPlan::new(seed).fail_sometimes(CallKind::Alloc, 0.3, Fault::Other);
        let first = strikes(plan(5), CallKind::Alloc, 1000);
        assert_eq!(first, strikes(plan(5), CallKind::Alloc, 1000));
        assert_ne!(first, strikes(plan(6), CallKind::Alloc, 1000));
        let failed = first.iter().flatten().count();
        assert!((200..400).contains(&failed), "{failed} of 1000 failed");
    }

    #[test]
    fn pages_run_out_at_the_limit_and_come_back_below_it() {
        let mut faults = Faults::new(FaultPlan::new(0).page_limit(2));
        assert_eq!(faults.strike(CallKind::Create, 1), None);
        assert_eq!(faults.strike(CallKind::Create, 2), Some(Fault::OutOfMemory));
        assert_eq!(faults.strike(CallKind::Alloc, 2), None, "only pages are limited");
        assert_eq!(faults.strike(CallKind::Create, 1), None);
    }

    #[test]
    fn the_default_plan_does_nothing() {
        let mut faults = Faults::new(FaultPlan::default());
        for kind in CallKind::ALL {
            assert_eq!(faults.strike(kind, 1 << 40), None);
            assert_eq!(faults.tenant_step(kind), None);
        }
        assert_eq!(faults.late_queries(), 0);
    }
}
