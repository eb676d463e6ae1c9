//! Settings and sizes, as texts. How settings are read, and what the environment says, is the C
//! interface's matter.

use larder::setup::devices::{self, Devices};
use larder::setup::settings::{self, Settings};
use larder_core::Policy;
use larder_core::types::Bytes;
use pyo3::prelude::*;

use crate::errors::{SettingsError, UsageError};

/// What a caller asks for: a text, or else what the environment says; and perhaps a policy.
pub(crate) fn read(text: Option<&str>, policy: Option<&str>) -> PyResult<Settings> {
    let settings = match text {
        Some(text) => settings::parse(text).map_err(|error| format!("settings: {error}")),
        None => settings::from_environment().map_err(|error| error.to_string()),
    };
    under(settings, text, policy)
}

/// The settings of a replay: a text as PyTorch reads it, and perhaps a policy. What is for programs
/// that run now could make no difference there, so it is refused.
pub(crate) fn read_for_replay(text: &str, policy: Option<&str>) -> PyResult<Settings> {
    let settings = settings::parse_as_torch(text).map_err(|error| format!("settings: {error}"));
    let settings = under(settings, Some(text), policy)?;
    if settings.oom_snapshot.is_some() || settings.metrics.is_some() {
        let sentence =
            "settings: oom_snapshot and metrics are for a program that runs, not for a replay";
        return Err(SettingsError::new_err(sentence));
    }
    Ok(settings)
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    SettingsError::new_err(error.to_string())
}

/// The settings under the policy that is named beside them, if one is.
fn under(
    settings: Result<Settings, String>,
    text: Option<&str>,
    policy: Option<&str>,
) -> PyResult<Settings> {
    let settings = settings.map_err(SettingsError::new_err)?;
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
    let policy = parsed.map_err(refused)?;
    let settings = settings.with_policy(policy);
    settings.check_known().map_err(refused)?;
    Ok(settings)
}

/// The policy that a text names: whatever the policy was before, it is this one after the text.
pub(crate) fn policy_in(text: &str) -> Option<Policy> {
    let after = |policy| Settings::of(policy).overlay(text).ok();
    let [first, others @ ..] = Policy::all().map(after).map(|settings| settings.map(|s| s.policy));
    first.filter(|policy| others.iter().all(|other| other.as_ref() == Some(policy)))
}

/// Fails with a sentence unless the text holds Larder's own settings alone. `name` says where the
/// text is from.
#[pyfunction]
pub(crate) fn check_own_settings(name: &str, text: &str) -> PyResult<()> {
    settings::check_own(name, text).map_err(refused)
}

/// Fails with a sentence if PyTorch's settings ask for what cannot be.
#[pyfunction]
pub(crate) fn check_torch_settings(name: &str, text: &str) -> PyResult<()> {
    settings::check_torch(name, text).map_err(refused)
}

/// What kind of devices a text names: `cuda`, `simulated` or `offered`.
#[pyfunction]
pub(crate) fn device_kind(text: &str) -> PyResult<&'static str> {
    match devices::parse(text) {
        Ok(Devices::AllCuda | Devices::Cuda(_)) => Ok("cuda"),
        Ok(Devices::Simulated { .. }) => Ok("simulated"),
        Ok(Devices::Offered(_)) => Ok("offered"),
        Err(error) => Err(UsageError::new_err(error.to_string())),
    }
}

/// A device's number of bytes out of its text.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    larder_sim::parse_capacity(text).map_err(|error| UsageError::new_err(error.to_string()))
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
