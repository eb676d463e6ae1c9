//! Settings, devices and sizes, as texts.

use std::env;

use larder_core::Policy;
use larder_core::config::{Backend, Config, ConfigError};
use larder_core::types::Bytes;
use pyo3::prelude::*;

use crate::errors::{SettingsError, UsageError};

/// Where PyTorch looks for its settings; the first that is set is used alone.
const TORCH_VARIABLES: [&str; 3] =
    ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Where our own are.
const LARDER_VARIABLE: &str = "LARDER_CONF";

/// Who decides, and with which settings.
pub(crate) struct Conf {
    /// The one that the text names, or the default.
    pub(crate) policy: Policy,
    /// Whether the text names one.
    pub(crate) names_policy: bool,
    pub(crate) config: Config,
}

impl Conf {
    /// Reads PyTorch's settings and ours out of one text; `policy` is one of ours.
    pub(crate) fn read(text: &str) -> Result<Conf, String> {
        let (ours, torchs): (Vec<&str>, Vec<&str>) =
            entries(text).into_iter().partition(|entry| key(entry) == "policy");
        let policy = match ours[..] {
            [] => Policy::default(),
            [entry] => {
                let name = entry.split_once(':').map_or("", |(_, name)| name.trim());
                name.parse::<Policy>().map_err(|error| error.to_string())?
            }
            _ => return Err("the setting 'policy' stands twice".to_owned()),
        };
        let config = Config::parse(&torchs.join(",")).map_err(|error| error.to_string())?;
        if config.backend == Backend::CudaMallocAsync {
            return Err("backend:cudaMallocAsync asks for the driver's own allocator in Larder's \
                        place, and the two exclude each other"
                .to_owned());
        }
        Ok(Conf { policy, names_policy: !ours.is_empty(), config })
    }

    /// What a caller asks for: a text, or else what the environment says; and a policy.
    pub(crate) fn of(settings: Option<&str>, policy: Option<&str>) -> PyResult<Conf> {
        let text = match settings {
            Some(text) => text.to_owned(),
            None => environment()?,
        };
        let mut conf = Conf::read(&text)
            .map_err(|error| SettingsError::new_err(format!("settings: {error}")))?;
        if let Some(name) = policy {
            if conf.names_policy && conf.policy.name != name {
                let theirs = conf.policy.name;
                return Err(SettingsError::new_err(format!(
                    "the settings name the policy {theirs}, and policy= names {name}"
                )));
            }
            let parsed = name.parse::<Policy>();
            conf.policy = parsed.map_err(|error| SettingsError::new_err(error.to_string()))?;
        }
        Ok(conf)
    }
}

/// The pieces between commas; those inside brackets belong to a value.
fn entries(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let pieces = text.split(|letter: char| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth == 0
    });
    pieces.filter(|piece| !piece.trim().is_empty()).collect()
}

fn key(entry: &str) -> &str {
    entry.split(':').next().unwrap_or("").trim()
}

/// The settings that the environment asks for, PyTorch's first, checked.
fn environment() -> PyResult<String> {
    let set = |name: &&str| env::var(name).ok().map(|text| ((*name).to_owned(), text));
    let torchs = TORCH_VARIABLES.iter().find_map(set);
    let ours = set(&LARDER_VARIABLE);
    let mut whole = Vec::new();
    for (name, text) in torchs.iter().chain(&ours) {
        Conf::read(text).map_err(|error| SettingsError::new_err(format!("{name}: {error}")))?;
        whole.extend(entries(text));
    }
    let whole = whole.join(",");
    Conf::read(&whole).map_err(|error| {
        let torch_name = torchs.as_ref().map_or("", |(name, _)| name);
        SettingsError::new_err(format!("{torch_name} and {LARDER_VARIABLE}: {error}"))
    })?;
    Ok(whole)
}

/// Fails with a sentence if the environment asks for what cannot be in a process with PyTorch. PyTorch reads its
/// own settings itself, and may know more of them than we do.
#[pyfunction]
pub(crate) fn check_environment() -> PyResult<()> {
    let set = |name: &&str| env::var(name).ok().map(|text| ((*name).to_owned(), text));
    if let Some((name, text)) = TORCH_VARIABLES.iter().find_map(set) {
        match Config::parse(&text) {
            Err(ConfigError::UnknownKey { .. }) => {}
            _ => check_settings(&name, &text)?,
        }
    }
    if let Some((name, text)) = set(&LARDER_VARIABLE) {
        check_settings(&name, &text)?;
    }
    Ok(())
}

/// Fails with a sentence unless the text can be read; `name` says where it is from.
#[pyfunction]
pub(crate) fn check_settings(name: &str, text: &str) -> PyResult<()> {
    match Conf::read(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(SettingsError::new_err(format!("{name}: {error}"))),
    }
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
