//! Plans: what one soak run does, all of it derived from one seed.

use std::fmt;

use larder_core::policy::CaptureRule;
use larder_core::types::{Bytes, GIB, MIB};
use larder_core::{Config, Policy};

use crate::generate::{GenerateOptions, Generator};
use larder_sim::random::Random;
use larder_sim::script::Op;
use larder_sim::{CallKind, Fault, FaultPlan};

/// How many combinations of policy, faults, expandable segments and streams there are. A seed's
/// remainder by this picks one, so that seeds in a row cover them all.
pub const COMBINATIONS: u64 = 32;

/// The bit of a seed that says whether faults are injected.
pub const FAULTS_BIT: u64 = 2;

/// What one run does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where everything comes from.
    pub seed: u64,
    /// The policy of the allocator.
    pub policy: Policy,
    /// The policy of the model that judges it. It is the same one, unless somebody wants to see
    /// the run fail.
    pub judge: Policy,
    /// The settings at the start.
    pub settings: String,
    /// Settings that change on the way.
    pub changes: Vec<Change>,
    /// How much memory the device has.
    pub memory_bytes: u64,
    /// What goes wrong.
    pub trouble: Trouble,
    /// The allocator is dropped with everything still live and the troubles still on.
    pub abrupt_end: bool,
    /// What the program does that scripts have no words for.
    pub habits: Habits,
    /// The shape of the script.
    pub script: GenerateOptions,
}

/// What a program does besides its script. A model follows the sources, and nothing else of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own; any mixture is legal.
pub struct Habits {
    /// It destroys streams whose work is done, and makes new ones with the same handle.
    pub forgets_streams: bool,
    /// It shares blocks with other processes.
    pub shares: bool,
    /// It opens its memory to a peer on the way.
    pub opens_to_peer: bool,
    /// Its pools with odd numbers have sources of their own.
    pub has_sources: bool,
    /// Some of its requests name the address that they want.
    pub names_addresses: bool,
    /// Some of its requests are for plain memory.
    pub asks_for_plain: bool,
}

impl Habits {
    /// Whether the pool of this number has a source when it is made.
    pub(super) fn gives_source(self, pool: u32) -> bool {
        self.has_sources && pool % 2 == 1
    }

    /// Whether the request of this number is for plain memory.
    pub(super) fn wants_plain(self, id: u64) -> bool {
        self.asks_for_plain && id % 5 < 2
    }
}

/// New settings, given right before an allocation. They hang on an allocation and not on a step,
/// so that they stay in place when a failing script is made shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The allocation.
    pub before_id: u64,
    /// The settings text.
    pub settings: String,
}

/// What goes wrong during a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trouble {
    /// Each call of any kind fails with this probability.
    pub call_failure_probability: f64,
    /// Calls that give memory back fail too, so that pages are left over.
    pub stubborn: bool,
    /// So many pages can exist, and no more.
    pub pages_max: Option<u64>,
    /// Events may be late by so many queries.
    pub late_queries_max: u32,
    /// Another process takes and gives back up to so much at a time.
    pub tenant_step_bytes_max: u64,
}

impl Trouble {
    /// Whether calls fail for other reasons than want of memory.
    pub fn has_failing_calls(&self) -> bool {
        self.call_failure_probability > 0.0
    }

    pub(super) fn from_random(random: &mut Random, memory_bytes: u64) -> Trouble {
        let failing = random.chance(0.7);
        let probability = *random.pick(&[0.002, 0.01, 0.05]);
        let page_share = random.between(1, 4);
        Trouble {
            call_failure_probability: if failing { probability } else { 0.0 },
            stubborn: random.chance(0.5),
            pages_max: random.chance(0.3).then_some(memory_bytes / (20 * MIB) / page_share + 1),
            late_queries_max: if random.chance(0.4) { 5 } else { 0 },
            tenant_step_bytes_max: if random.chance(0.4) { memory_bytes / 4 } else { 0 },
        }
    }

    /// The device's plan for it.
    pub fn fault_plan(&self, seed: u64) -> FaultPlan {
        let mut plan = FaultPlan::new(seed);
        if self.has_failing_calls() {
            let gives_back = [CallKind::Unmap, CallKind::Release];
            let takes = [CallKind::Alloc, CallKind::Create, CallKind::Reserve, CallKind::Map];
            for kind in CallKind::ALL {
                if self.stubborn || !gives_back.contains(&kind) {
                    plan = plan.fail_sometimes(kind, self.call_failure_probability, Fault::Other);
                }
            }
            for kind in takes {
                plan = plan.fail_sometimes(kind, self.call_failure_probability, Fault::OutOfMemory);
            }
        }
        if let Some(pages_max) = self.pages_max {
            plan = plan.page_limit(pages_max);
        }
        if self.late_queries_max > 0 {
            plan = plan.late_events(0.3, self.late_queries_max);
        }
        if self.tenant_step_bytes_max > 0 {
            plan = plan.tenant(0.2, self.tenant_step_bytes_max);
        }
        plan
    }
}

impl Plan {
    /// The plan that belongs to the seed, for a script of so many steps.
    pub fn new(seed: u64, steps: usize) -> Plan {
        let combination = seed % COMBINATIONS;
        let policy = policy_of(seed);
        let (faulty, expandable) = (combination & FAULTS_BIT != 0, combination & 4 != 0);
        let streams = (combination / 8) as u32 + 1;
        let mut random = Random::new(seed);
        let (memory_bytes, script) = script_options(&mut random, streams, steps);
        let mut settings = settings(&mut random, expandable);
        let mut changes = changes(&mut random, &settings, expandable, steps);
        let trouble = if faulty {
            Trouble::from_random(&mut random, memory_bytes)
        } else {
            Trouble::default()
        };
        let abrupt_end = random.chance(0.25);
        let judge = policy.clone();
        // From numbers of their own, so that everything else of a seed is as it would be without.
        let has_sources = script.pools && Random::new(seed ^ 0x0050_a4ce).chance(0.5);
        let names_addresses = Random::new(seed ^ 0x0add_4e55).chance(0.3);
        let asks_for_plain = Random::new(seed ^ 0x0009_1a17).chance(0.15);
        let habits = Habits { has_sources, names_addresses, asks_for_plain, ..Habits::default() };
        if Random::new(seed ^ 0x0ca9_70e5).chance(0.4) {
            let texts = changes.iter_mut().map(|change| &mut change.settings);
            texts.chain([&mut settings]).for_each(|text| add_entry(text, "plain_captures:True"));
        }
        Plan {
            seed,
            policy,
            judge,
            settings,
            changes,
            memory_bytes,
            trouble,
            abrupt_end,
            habits,
            script,
        }
    }

    /// This plan under another policy. Nobody marks captures here: where a capture is one that was
    /// marked, any open scope is one.
    #[must_use]
    pub fn under(mut self, mut policy: Policy) -> Plan {
        if policy.capture == CaptureRule::Marked {
            policy.capture = CaptureRule::OpenScope;
        }
        if policy.tight {
            let mut random = Random::new(self.seed ^ 0x07a6_17e5);
            self.habits = Habits {
                forgets_streams: random.chance(0.4),
                shares: random.chance(0.3),
                opens_to_peer: random.chance(0.3),
                ..self.habits
            };
            let limits = tight_settings(&mut random);
            let texts = self.changes.iter_mut().map(|change| &mut change.settings);
            texts.chain([&mut self.settings]).for_each(|text| add_entry(text, &limits));
        }
        self.judge = policy.clone();
        self.policy = policy;
        self
    }

    /// Whether the policy is the one that the seed gives.
    pub(super) fn is_own_policy(&self) -> bool {
        self.policy == policy_of(self.seed)
    }

    /// The script.
    pub fn script(&self) -> Vec<Op> {
        // The plan drew from the seed itself; the script gets numbers of its own.
        Generator::new(self.seed ^ 0x5eed_0f5c_1217, self.script.clone()).generate()
    }

    /// The settings at the start, read.
    pub(super) fn config(&self) -> Config {
        Config::parse(&self.settings).unwrap_or_default()
    }

    /// Whether the model can run beside the allocator. It knows no device that fails, and no views.
    pub(super) fn has_model(&self) -> bool {
        !self.trouble.has_failing_calls() && !self.policy.tight
    }
}

/// The policy that a seed gives.
fn policy_of(seed: u64) -> Policy {
    if seed & 1 == 0 { Policy::torch_2_11() } else { Policy::larder() }
}

/// A device with room enough, or one on which most scripts run out of memory; and a script to go
/// with it. Few blocks are live at a time, because everything is checked after every step.
fn script_options(random: &mut Random, streams: u32, steps: usize) -> (u64, GenerateOptions) {
    let tight = random.chance(0.5);
    let memory_bytes =
        if tight { random.between(24, 400) * MIB } else { random.between(2, 8) * GIB };
    let limits = if tight {
        (memory_bytes + memory_bytes / 2, memory_bytes + memory_bytes / 8)
    } else {
        (memory_bytes / 2, 256 * MIB)
    };
    // Half of the runs have pools, and half of those graphs and checkpoints.
    let (pools, graphs) = (random.chance(0.5), random.chance(0.5));
    // Some of the others have pools that lend, which takes a device that is full.
    let lending = pools && !graphs && tight && random.chance(0.6);
    let options = GenerateOptions {
        steps,
        streams,
        pools,
        graphs: pools && graphs,
        lending,
        pool_probability: *random.pick(&[0.02, 0.06]),
        live_target: *random.pick(&[8, 20, 40]),
        live_bytes_max: limits.0,
        size_bytes_max: limits.1,
        record_probability: if streams > 1 { *random.pick(&[0.02, 0.1, 0.2]) } else { 0.01 },
        sync_probability: *random.pick(&[0.005, 0.03, 0.1]),
        empty_probability: *random.pick(&[0.0, 0.004, 0.02]),
        fraction_probability: *random.pick(&[0.0, 0.0, 0.003]),
        reset_probability: 0.005,
        ..GenerateOptions::default()
    };
    (memory_bytes, options)
}

/// A settings text: mostly a mixture, at times nothing but the one about expandable segments.
pub(super) fn settings(random: &mut Random, expandable: bool) -> String {
    let mut entries = Vec::new();
    if expandable {
        entries.push("expandable_segments:True".to_owned());
    }
    if random.chance(0.3) {
        return entries.join(",");
    }
    let mut large_mb = 20;
    if random.chance(0.2) {
        large_mb = *random.pick(&[11, 25, 32, 40]);
        entries.push(format!("large_segment_size_mb:{large_mb}"));
    }
    if random.chance(0.4) {
        let above_mb = *random.pick(&[0, 5, 12, 44]);
        entries.push(format!("max_split_size_mb:{}", large_mb + above_mb));
    }
    if random.chance(0.25) {
        let above_mb = *random.pick(&[0, 4, 20, 200]);
        entries.push(format!("max_non_split_rounding_mb:{}", large_mb + above_mb));
    }
    let collects = random.chance(0.3);
    if collects {
        let threshold = random.pick(&["0.1", "0.3", "0.6", "0.9"]);
        entries.push(format!("garbage_collection_threshold:{threshold}"));
    }
    if random.chance(if collects { 0.7 } else { 0.15 }) {
        let fraction = random.pick(&["0.5", "0.75", "0.9", "0.333"]);
        entries.push(format!("per_process_memory_fraction:{fraction}"));
    }
    if random.chance(0.3) {
        let divisions =
            random.pick(&["1", "2", "4", "16", "[1:2,4:8,64:4,>:1]", "[256:1,512:2,>:4]", "[1:4]"]);
        entries.push(format!("roundup_power2_divisions:{divisions}"));
    }
    if random.chance(0.3) {
        entries.push(format!("page_size_mb:{}", random.pick(&[2, 4, 10, 64])));
    }
    if random.chance(0.05) {
        entries.push("throw_on_cudamalloc_oom:True".to_owned());
    }
    if random.chance(0.5) {
        entries.push("graph_capture_record_stream_reuse:True".to_owned());
    }
    if random.chance(0.1) {
        entries.push("release_lock_on_cudamalloc:True".to_owned());
    }
    entries.join(",")
}

/// Adds entries to a settings text.
fn add_entry(text: &mut String, entries: &str) {
    let parts = [text.as_str(), entries].into_iter().filter(|part| !part.is_empty());
    *text = parts.collect::<Vec<_>>().join(",");
}

/// How much may be held under the policy tight, as a settings text.
fn tight_settings(random: &mut Random) -> String {
    let mut entries = Vec::new();
    if random.chance(0.4) {
        let percent = random.pick(&["0", "0.003", "0.03", "100"]);
        entries.push(format!("tight_views_percent:{percent}"));
    }
    if random.chance(0.2) {
        entries.push(format!("tight_soft:{}", random.pick(&["1", "1.05", "2"])));
    }
    if random.chance(0.2) {
        entries.push(format!("tight_most:{}", random.pick(&["1", "1.5"])));
    }
    if random.chance(0.3) {
        entries.push(format!("tight_floor_mb:{}", random.pick(&[8, 60, 400, 4000])));
    }
    entries.join(",")
}

/// Now and then expandable segments are turned on or off on the way, mostly with all other
/// settings as they were.
fn changes(
    random: &mut Random,
    settings_at_start: &str,
    expandable: bool,
    steps: usize,
) -> Vec<Change> {
    if random.chance(0.4) {
        return Vec::new();
    }
    let on = "expandable_segments:True";
    let others = settings_at_start.trim_start_matches(on).trim_start_matches(',').to_owned();
    let count = random.between(1, 6);
    let mut ids: Vec<u64> = (0..count).map(|_| random.between(1, steps as u64 / 2 + 1)).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut is_on = expandable;
    let change = |before_id| {
        is_on = !is_on;
        let switch = if is_on { on } else { "expandable_segments:False" };
        let others = if random.chance(0.2) { settings(random, false) } else { others.clone() };
        let separator = if others.is_empty() { "" } else { "," };
        Change { before_id, settings: format!("{switch}{separator}{others}") }
    };
    ids.into_iter().map(change).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings =
            if self.settings.is_empty() { "the default settings" } else { &self.settings };
        write!(f, "policy {} with {settings}", self.policy)?;
        if self.judge != self.policy {
            write!(f, ", judged by another policy")?;
        }
        write!(f, "; {} of memory", Bytes(self.memory_bytes))?;
        match self.script.streams {
            1 => write!(f, ", 1 stream")?,
            streams => write!(f, ", {streams} streams")?,
        }
        match (self.script.pools, self.script.graphs) {
            (true, true) => write!(f, ", private pools, graphs and checkpoints")?,
            (true, false) => write!(f, ", private pools")?,
            (false, _) => {}
        }
        for Change { before_id, settings } in &self.changes {
            write!(f, "; before allocation {before_id} the settings become {settings}")?;
        }
        let trouble = &self.trouble;
        if trouble.has_failing_calls() {
            let percent = trouble.call_failure_probability * 100.0;
            let which = if trouble.stubborn { "all" } else { "all but those that drop pages" };
            write!(f, "; {percent} % of calls fail ({which})")?;
        }
        if let Some(pages_max) = trouble.pages_max {
            write!(f, "; at most {pages_max} pages")?;
        }
        if trouble.late_queries_max > 0 {
            write!(f, "; late events")?;
        }
        if trouble.tenant_step_bytes_max > 0 {
            write!(f, "; another process takes memory")?;
        }
        for (is_on, words) in [
            (self.habits.forgets_streams, "streams come and go"),
            (self.habits.shares, "blocks are shared"),
            (self.habits.opens_to_peer, "a peer comes"),
            (self.habits.has_sources, "odd pools have sources"),
            (self.habits.names_addresses, "some requests name an address"),
            (self.habits.asks_for_plain, "some requests are for plain memory"),
        ] {
            if is_on {
                write!(f, "; {words}")?;
            }
        }
        if self.abrupt_end {
            write!(f, "; dropped with memory live")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_plan_and_all_settings_can_be_read() {
        for seed in 0..500 {
            let plan = Plan::new(seed, 100);
            assert_eq!(plan.to_string(), Plan::new(seed, 100).to_string());
            assert_eq!(plan.script(), Plan::new(seed, 100).script());
            Config::parse(&plan.settings).unwrap();
            assert_eq!(plan.config().expandable_segments, seed & 4 != 0);
            assert!(seed & 2 != 0 || plan.trouble == Trouble::default());
        }
    }
}
