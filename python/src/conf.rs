//! Settings and sizes, as texts. How settings are read, and what the environment says, is the C interface's matter.

use std::env;

use larder_c::settings::{self, Settings, TORCH_VARIABLES, VARIABLE};
use larder_core::Policy;
use larder_core::config::{Config, ConfigError};
use larder_core::types::Bytes;
use pyo3::prelude::*;

use crate::errors::{SettingsError, UsageError};

/// What a caller asks for: a text, or else what the environment says; and perhaps a policy.
pub(crate) fn read(text: Option<&str>, policy: Option<&str>) -> PyResult<Settings> {
    let mut settings = match text {
        Some(text) => settings::parse(text).map_err(|error| format!("settings: {error}")),
        None => settings::from_environment(),
    }
    .map_err(SettingsError::new_err)?;
    let Some(name) = policy else { return Ok(settings) };
    if let Some(named) = text.and_then(policy_in)
        && named.name != name
    {
        let named = named.name;
        return Err(SettingsError::new_err(format!(
            "the settings name the policy {named}, and policy= names {name}"
        )));
    }
    let parsed = name.parse::<Policy>();
    settings.policy = parsed.map_err(|error| SettingsError::new_err(error.to_string()))?;
    Ok(settings)
}

/// The policy that a text names: whatever the policy was before, it is this one after the text.
pub(crate) fn policy_in(text: &str) -> Option<Policy> {
    let after = |policy| Settings { policy, ..Settings::default() }.overlay(text).ok();
    let [first, second] = Policy::all().map(after);
    let (first, second) = (first?, second?);
    (first.policy == second.policy).then_some(first.policy)
}

/// Fails with a sentence if the environment asks for what cannot be in a process with PyTorch. PyTorch reads
/// its own settings itself, and may know more of them than we do.
#[pyfunction]
pub(crate) fn check_environment() -> PyResult<()> {
    let set = |name: &&'static str| env::var(name).ok().map(|text| (*name, text));
    if let Some((name, text)) = TORCH_VARIABLES.iter().find_map(set)
        && !matches!(Config::parse(&text), Err(ConfigError::UnknownKey { .. }))
    {
        check_settings(name, &text)?;
    }
    match set(&VARIABLE) {
        Some((name, text)) => check_settings(name, &text),
        None => Ok(()),
    }
}

/// Fails with a sentence unless the text can be read; `name` says where it is from.
#[pyfunction]
pub(crate) fn check_settings(name: &str, text: &str) -> PyResult<()> {
    let read = settings::parse(text);
    read.map(drop).map_err(|error| SettingsError::new_err(format!("{name}: {error}")))
}

/// A device's number of bytes out of its text.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    larder_sim::parse_capacity(text).map_err(UsageError::new_err)
}

/// A number of bytes as people read it.
#[pyfunction]
pub(crate) fn format_size(size_bytes: u64) -> String {
    Bytes(size_bytes).to_string()
}

/// The names of all policies.
pub(crate) fn policies() -> Vec<&'static str> {
    Policy::all().iter().map(|policy| policy.name).collect()
}
