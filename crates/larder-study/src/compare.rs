//! Compare: one workload under several settings, and under several policies.

use larder_core::Policy;
use larder_core::config::{Backend, Config};
use larder_core::types::Bytes;

use crate::replay::{Outcome, Replay, ReplayError, Setup};
use crate::watch::{Extent, Watch, Watched};
use crate::workload::Workload;

/// What is compared when the user names no settings: the default, and what people try first.
pub const USUAL_SETTINGS: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
];

/// One run and what came of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The settings text as given; empty for the default.
    pub conf: String,
    /// Whether these are the settings that the program was recorded with.
    pub is_recorded: bool,
    /// Why these settings could make no difference, in a sentence.
    pub remark: Option<String>,
    /// What came of it.
    pub outcome: Outcome,
}

/// The settings that a program was recorded with, where they are none of those that are compared
/// anyway, and a simulated GPU can have them.
pub fn recorded_settings(
    workload: &Workload,
    settings: &[(String, Config)],
) -> Option<(String, Config)> {
    let conf = workload.recorded_conf()?;
    let config = Config::parse(conf).ok()?;
    let is_among = settings.iter().any(|(_, other)| is_same(other, &config));
    let is_native = config.backend == Backend::Native;
    (!is_among && is_native).then(|| (conf.to_owned(), config))
}

/// Whether two settings say the same, in whatever words.
fn is_same(one: &Config, other: &Config) -> bool {
    let bare = |config: &Config| {
        let mut config = config.clone();
        config.text.clear();
        config
    };
    bare(one) == bare(other)
}

/// Runs the workload once for each of the settings, and under those that it was recorded with, if it
/// was and they are others, at the end.
pub fn compare(
    workload: &Workload,
    setup: &Setup,
    mut settings: Vec<(String, Config)>,
    watch: &dyn Watch,
) -> Result<Vec<Row>, ReplayError> {
    settings.extend(recorded_settings(workload, &settings));
    let recorded = workload.recorded_conf().and_then(|conf| Config::parse(conf).ok());
    let extent = Extent::Steps(settings.len() as u64);
    let mut comparing = Watched::begin(watch, "comparing", extent);
    let rows = settings.into_iter().map(|(conf, config)| {
        let is_recorded = recorded.as_ref().is_some_and(|recorded| is_same(recorded, &config));
        let setup = Setup { config, ..setup.clone() };
        let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ())?;
        comparing.step();
        let remark = remark(&setup, &outcome);
        Ok(Row { conf, is_recorded, remark, outcome })
    });
    rows.collect()
}

/// Says of settings that lie idle why they do.
fn remark(setup: &Setup, outcome: &Outcome) -> Option<String> {
    let Setup { config, policy, .. } = setup;
    let threshold = config.garbage_collection_threshold;
    if threshold <= 0.0 {
        return None;
    }
    let fraction = setup.effective_fraction();
    if fraction >= 1.0 && !policy.collect_without_cap {
        return Some(format!(
            "garbage_collection_threshold does nothing in PyTorch without a memory fraction below 1: \
             per_process_memory_fraction sets one (policy {})",
            policy.name
        ));
    }
    let limit_bytes = (threshold * fraction * setup.memory_bytes as f64) as u64;
    let peak_bytes = outcome.stats.reserved_bytes.all.peak.max(0) as u64;
    (peak_bytes <= limit_bytes).then(|| {
        format!(
            "garbage_collection_threshold:{threshold} had nothing to do: it sets in above {} reserved, \
             and there were {} at most; less memory shows what it does",
            Bytes(limit_bytes),
            Bytes(peak_bytes)
        )
    })
}

/// All policies, stock PyTorch's first, for those who named none.
pub fn all_policies() -> [Policy; 3] {
    [Policy::torch_2_11(), Policy::default(), Policy::tight()]
}
