//! Compare: one workload under several settings.

use larder_core::Config;

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

/// One setting and what came of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The settings text as given; empty for the default.
    pub conf: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// Runs the workload once for each of the settings.
pub fn compare(
    workload: &Workload,
    setup: &Setup,
    settings: Vec<(String, Config)>,
    watch: &dyn Watch,
) -> Result<Vec<Row>, ReplayError> {
    let extent = Extent::Steps(settings.len() as u64);
    let mut comparing = Watched::begin(watch, "comparing", extent);
    let rows = settings.into_iter().map(|(conf, config)| {
        let setup = Setup { config, ..setup.clone() };
        let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ())?;
        comparing.step();
        Ok(Row { conf, outcome })
    });
    rows.collect()
}
