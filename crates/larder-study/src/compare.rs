//! Compare: one workload under several settings, and under several policies.

use larder_core::Policy;
use larder_core::config::Config;
use larder_core::types::{Bytes, MIB};

use crate::replay::{Outcome, Replay, ReplayError, Setup};
use crate::settings::{
    FRACTION_KEY, names_fraction, names_key, own_keys, recorded_config, without_fraction,
    without_key,
};
use crate::standing::{Standing, standing};
use crate::watch::{Extent, Watch, Watched};
use crate::workload::Workload;

/// What is compared when the user names no settings: the default, and what people try first.
const USUAL_SETTINGS: [&str; 5] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
];

/// What people try with the policy tight: the usual settings are meant to save what it does not
/// waste.
const TIGHT_SETTINGS: [&str; 5] =
    ["", "tight_soft:1.02", "tight_most:1", "page_size_mb:2", "roundup_power2_divisions:8"];

/// A floor that is so many times what a program has in use at the peak leaves hardly any need of
/// views, even to one that never repeats itself.
const FLOOR_FACTOR: f64 = 1.12;

/// One run and what came of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The settings text as given; empty for the default.
    pub conf: String,
    /// The settings text with the recorded fraction, where that is named among settings and holds.
    pub held_conf: String,
    /// The settings.
    pub config: Config,
    /// Whether these are the settings that the program was recorded with.
    pub is_recorded: bool,
    /// Why these settings could make no difference, in a sentence.
    pub remark: Option<String>,
    /// What part of the device it was allowed, by its settings or else as it was recorded.
    pub fraction: f64,
    /// What came of it.
    pub outcome: Outcome,
    /// Whether it runs with all that it may have been allowed.
    pub standing: Standing,
}

/// The settings that a program was recorded with, where they are none of those that are compared
/// anyway, and a simulated GPU can have them.
pub fn recorded_settings(
    workload: &Workload,
    setup: &Setup,
    settings: &[(String, Config)],
) -> Option<(String, Config)> {
    let config = setup.recorded_config(workload)?;
    let is_among = settings.iter().any(|(_, other)| is_same(other, &config));
    (!is_among).then(|| (config.text.clone(), config))
}

/// The recorded settings without the memory fraction that all runs are held to otherwise, if there
/// is one: whether it is the cause is what people want to know first.
fn unheld_settings(
    workload: &Workload,
    setup: &Setup,
    settings: &[(String, Config)],
) -> Option<(String, Config)> {
    if !setup.is_capped() {
        return None;
    }
    let is_unheld = |config: &Config| names_fraction(config) && config.memory_fraction >= 1.0;
    if settings.iter().any(|(_, config)| is_unheld(config)) {
        return None;
    }
    let recorded = recorded_config(workload).and_then(Result::ok).unwrap_or_default();
    let rest = without_fraction(&recorded.text);
    let conf = [format!("{FRACTION_KEY}:1"), rest].join(",");
    let conf = conf.trim_end_matches(',').to_owned();
    let config = Config::parse(&conf).ok()?;
    Some((conf, config))
}

/// Whether two settings say the same, in whatever words. A fraction that is named is in force, and
/// is not the same as none.
pub(crate) fn is_same(one: &Config, other: &Config) -> bool {
    let bare = |config: &Config| {
        let mut config = config.clone();
        config.text.clear();
        config
    };
    bare(one) == bare(other) && names_fraction(one) == names_fraction(other)
}

/// Runs the workload once for each of the settings; without the memory fraction that all of them
/// are held to, if there is one; and under those that it was recorded with, if it was and they are
/// others, at the end.
pub fn compare(
    workload: &Workload,
    setup: &Setup,
    mut settings: Vec<(String, Config)>,
    watch: &dyn Watch,
) -> Result<Vec<Row>, ReplayError> {
    // Which PyTorch decides may be older than the one that the program was recorded with.
    let is_known = |(_, config): &(String, Config)| config.check_known(setup.policy.torch).is_ok();
    settings.extend(unheld_settings(workload, setup, &settings).filter(is_known));
    settings.extend(recorded_settings(workload, setup, &settings).filter(is_known));
    rows_of(workload, setup, settings, watch)
}

fn rows_of(
    workload: &Workload,
    setup: &Setup,
    settings: Vec<(String, Config)>,
    watch: &dyn Watch,
) -> Result<Vec<Row>, ReplayError> {
    let recorded = setup.recorded_config(workload);
    let extent = Extent::Steps(settings.len() as u64);
    let mut comparing = Watched::begin(watch, "comparing", extent);
    let rows = settings.into_iter().map(|(conf, config)| {
        let is_recorded = recorded.as_ref().is_some_and(|recorded| is_same(recorded, &config));
        let setup = Setup { config, ..setup.clone() };
        let outcome = Replay::new(workload, &setup).run(&workload.ops, &mut ())?;
        let standing = standing(workload, &setup, &workload.ops, outcome.ooms == 0)?;
        comparing.step();
        let remark = remark(&setup, &outcome);
        let fraction = setup.effective_fraction();
        let held_conf = setup.with_held(workload, &conf);
        Ok(Row {
            conf,
            held_conf,
            config: setup.config,
            is_recorded,
            remark,
            fraction,
            outcome,
            standing,
        })
    });
    rows.collect()
}

/// Says of settings that lie idle why they do, and of those that stock PyTorch does not have that
/// they are Larder's.
fn remark(setup: &Setup, outcome: &Outcome) -> Option<String> {
    let remarks = [misplaced_remark(setup), idle_remark(setup, outcome)];
    let remarks: Vec<String> = remarks.into_iter().flatten().collect();
    (!remarks.is_empty()).then(|| remarks.join("; "))
}

/// Says so where a setting is not one of the policy that decides.
pub(crate) fn misplaced_remark(setup: &Setup) -> Option<String> {
    foreign_remark(setup).or_else(|| unheard_remark(setup))
}

/// Says so where settings of Larder's own stand under what stock PyTorch would do.
fn foreign_remark(setup: &Setup) -> Option<String> {
    let keys = own_keys(&setup.config.text);
    if keys.is_empty() || !setup.policy.is_stock() {
        return None;
    }
    let (keys, is) = (keys.join(" and "), if keys.len() == 1 { "is" } else { "are" });
    Some(format!(
        "{keys} {is} Larder's own, for LARDER_CONF: stock PyTorch does not have it, so that this \
         is not what stock PyTorch does"
    ))
}

/// What is meant to save what the policy tight does not waste.
const UNHEARD_BY_TIGHT: [&str; 4] = [
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
    "garbage_collection_threshold",
];

/// Settings without those that the policy does not listen to.
pub(crate) fn heard(policy: &Policy, conf: &str) -> String {
    let unheard = UNHEARD_BY_TIGHT.into_iter().chain(["expandable_segments"]);
    let unheard = unheard.filter(|_| policy.tight);
    unheard.fold(conf.to_owned(), |conf, key| without_key(&conf, key))
}

/// Says so where the policy that decides does not listen to a setting.
fn unheard_remark(setup: &Setup) -> Option<String> {
    let Setup { config, policy, .. } = setup;
    let name = &policy.name;
    let verb = |keys: &[&str]| if keys.len() == 1 { "changes" } else { "change" };
    if !policy.tight {
        let mut keys = own_keys(&config.text);
        keys.retain(|key| key.starts_with("tight_"));
        let is_idle = !keys.is_empty() && !policy.is_stock();
        let (keys, verb) = (keys.join(" and "), verb(&keys));
        return is_idle
            .then(|| format!("{keys} {verb} nothing under {name}: that is for the policy tight"));
    }
    let mut remarks = Vec::new();
    if names_key(config, "expandable_segments") {
        remarks
            .push(format!("expandable_segments changes nothing: under {name} they are always on"));
    }
    let mut idle = UNHEARD_BY_TIGHT.to_vec();
    idle.retain(|key| names_key(config, key));
    if !idle.is_empty() {
        let (keys, verb) = (idle.join(" and "), verb(&idle));
        remarks.push(format!(
            "{keys} {verb} nothing under {name}: it has one pool, joins pages, and keeps none idle"
        ));
    }
    if config.tight_floor_bytes >= setup.memory_bytes {
        remarks.push(format!(
            "tight_floor_mb is no less than the {} that there are: memory is never spared",
            Bytes(setup.memory_bytes)
        ));
    }
    (!remarks.is_empty()).then(|| remarks.join("; "))
}

fn idle_remark(setup: &Setup, outcome: &Outcome) -> Option<String> {
    let Setup { config, policy, .. } = setup;
    let threshold = config.garbage_collection_threshold;
    // The policy tight does not listen to it, which is said by itself.
    if threshold <= 0.0 || policy.tight {
        return None;
    }
    let fraction = setup.effective_fraction();
    if fraction >= 1.0 && !policy.collect_without_cap {
        return Some(format!(
            "garbage_collection_threshold does nothing in PyTorch without a memory fraction below \
             1: set one by per_process_memory_fraction (policy {})",
            policy.name
        ));
    }
    let limit_bytes = (threshold * fraction * setup.memory_bytes as f64) as u64;
    let peak_bytes = outcome.stats.reserved_bytes.all.peak.max(0) as u64;
    (peak_bytes <= limit_bytes).then(|| {
        format!(
            "garbage_collection_threshold:{threshold} had nothing to do: it sets in above {} \
             reserved, and there were {} at most; give less --memory to see what it does",
            Bytes(limit_bytes),
            Bytes(peak_bytes)
        )
    })
}

/// The settings that people try first, under one policy or, where none is named, under all of them.
pub fn usual(
    workload: &Workload,
    setup: &Setup,
    policy: Option<&Policy>,
    watch: &dyn Watch,
) -> Result<Vec<(Setup, Vec<Row>)>, ReplayError> {
    under(workload, setup, policy, &usual_settings(policy), true, watch)
}

/// What is compared when the user names no settings, under this policy or under all of them.
pub fn usual_settings(policy: Option<&Policy>) -> Vec<(String, Config)> {
    let is_tight = policy.is_some_and(|policy| policy.tight);
    let confs = if is_tight { TIGHT_SETTINGS } else { USUAL_SETTINGS };
    let settings = confs
        .map(|conf| (conf.to_owned(), Config::parse(conf).expect("usual settings are settings")));
    settings.to_vec()
}

/// A floor for the program, where the device has room for one: what it is depends on what the
/// program uses, so that it stands in no list.
fn floor_settings(setup: &Setup, rows: &[Row]) -> Option<(String, Config)> {
    let usual = rows.iter().find(|row| row.conf.is_empty() && row.outcome.ooms == 0)?;
    let active_bytes = usual.outcome.stats.active_bytes.all.peak.max(0) as f64;
    let floor_mb = (active_bytes * FLOOR_FACTOR / MIB as f64).ceil() as u64;
    let conf = format!("tight_floor_mb:{floor_mb}");
    let config = Config::parse(&conf).ok()?;
    (floor_mb * MIB <= setup.memory_bytes).then_some((conf, config))
}

/// These settings, under one policy or, where none is named, under all of them; of usual settings
/// the tight policy takes the first alone then, since they are meant to save what it does not
/// waste.
pub fn under(
    workload: &Workload,
    setup: &Setup,
    policy: Option<&Policy>,
    settings: &[(String, Config)],
    is_usual: bool,
    watch: &dyn Watch,
) -> Result<Vec<(Setup, Vec<Row>)>, ReplayError> {
    let policies = match policy {
        Some(policy) => vec![policy.clone().for_recording(workload.recorded_torch())],
        None => all_policies(stock_for(workload, settings)).to_vec(),
    };
    let run = |one: Policy| {
        let count = if is_usual && one.tight && policy.is_none() { 1 } else { settings.len() };
        let setup = Setup { policy: one, ..setup.clone() };
        let mut rows = compare(workload, &setup, settings[..count].to_vec(), watch)?;
        if count > 1 && is_usual && setup.policy.tight {
            let floor = Vec::from_iter(floor_settings(&setup, &rows));
            rows.splice(count..count, rows_of(workload, &setup, floor, watch)?);
        }
        Ok((setup, rows))
    };
    policies.into_iter().map(run).collect()
}

/// All policies, stock PyTorch's first, for those who named none.
pub fn all_policies(stock: Policy) -> [Policy; 3] {
    [stock, Policy::default(), Policy::tight()]
}

/// Stock PyTorch for a workload: the one that made it, or the first later one that knows all of
/// these settings.
fn stock_for(workload: &Workload, settings: &[(String, Config)]) -> Policy {
    let stock = workload.stock();
    let needed = settings.iter().map(|(_, config)| config.known_from()).max();
    Policy::torch().for_recording(stock.torch.max(needed))
}
