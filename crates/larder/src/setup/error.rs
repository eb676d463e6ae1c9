//! What is wrong with what a text says about devices and settings, in a sentence.

use std::fmt;

use larder_core::config::ConfigError;
use larder_core::policy::UnknownPolicy;
use larder_cuda::CudaError;
use larder_sim::CapacityError;

use super::names::{CONF_VARIABLE, OWN_KEYS, SIMULATED_MAX, TORCH_VARIABLES};

/// Why devices cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DevicesError {
    /// The text names no devices.
    Text {
        /// The text.
        text: String,
        /// What is wrong with it.
        problem: NameProblem,
    },
    /// A variable holds no text in UTF-8.
    NotUnicode(&'static str),
    /// What a variable says names no devices.
    Variable(&'static str, Box<DevicesError>),
    /// The driver is not there, or refused to start or to open a GPU.
    Cuda(CudaError),
    /// The driver knows no GPU.
    NoGpu,
    /// Memory is pinned for GPUs of this process, or simulated ones, and for no others.
    NotPinned(&'static str),
    /// Nobody offers devices under this name any more.
    NotOffered(&'static str),
    /// Whoever offers the devices cannot make them, and says why.
    NotMade(String),
}

impl DevicesError {
    /// Whether the text is at fault, and not the machine.
    pub fn is_in_text(&self) -> bool {
        matches!(
            self,
            DevicesError::Text { .. } | DevicesError::NotUnicode(_) | DevicesError::Variable(..)
        )
    }
}

impl fmt::Display for DevicesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DevicesError::Text { text, problem } => {
                write!(f, "'{text}' names no devices: {problem}")
            }
            DevicesError::NotUnicode(variable) => write!(f, "{variable} is no text in UTF-8"),
            DevicesError::Variable(variable, error) => write!(f, "{variable}: {error}"),
            DevicesError::Cuda(error) => error.fmt(f),
            DevicesError::NoGpu => write!(f, "the CUDA driver knows no GPU"),
            DevicesError::NotPinned(name) => {
                write!(f, "there is no pinned memory for the devices that are offered as '{name}'")
            }
            DevicesError::NotOffered(name) => write!(f, "nobody offers devices as '{name}'"),
            DevicesError::NotMade(words) => f.write_str(words),
        }
    }
}

impl std::error::Error for DevicesError {}

/// Why a text names no devices.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameProblem {
    /// It begins with no kind of devices.
    Kind,
    /// This is not the number of a GPU.
    Index(String),
    /// The GPU stands twice.
    Twice(u32),
    /// There are too many simulated GPUs, or none.
    Count,
    /// A simulated GPU cannot have this much memory.
    Capacity(CapacityError),
}

impl fmt::Display for NameProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameProblem::Kind => {
                write!(f, "devices are written cuda, cuda:0,2, sim:80GiB or sim:80GiB*2")
            }
            NameProblem::Index(word) => write!(f, "'{word}' is no number of a GPU"),
            NameProblem::Twice(index) => write!(f, "GPU {index} stands twice"),
            NameProblem::Count => write!(f, "there are 1 to {SIMULATED_MAX} simulated GPUs"),
            NameProblem::Capacity(error) => error.fmt(f),
        }
    }
}

impl From<CapacityError> for NameProblem {
    fn from(error: CapacityError) -> NameProblem {
        NameProblem::Capacity(error)
    }
}

/// What is wrong with a settings text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingsError {
    /// One of PyTorch's settings, or of ours that are read alike.
    Config(ConfigError),
    /// There is no such policy.
    Policy(UnknownPolicy),
    /// The setting stands twice.
    Twice(&'static str),
    /// The setting wants a value.
    NoValue(&'static str),
    /// Statistics cannot be served there.
    Metrics(String),
    /// Nobody of this name keeps pinned memory.
    Pinned(String),
    /// This is no amount of pinned memory.
    PinnedSize(&'static str, CapacityError),
    /// This is no time for pinned memory to lie unused.
    PinnedIdle(String),
    /// A setting is about Larder's pinned memory, which is left to PyTorch.
    PinnedLeft(&'static str),
    /// The driver's own pool is asked for.
    DriversPool,
    /// A setting stands where only Larder's own belong.
    NotOwn {
        /// Where the text is from.
        name: String,
        /// The setting.
        key: String,
    },
    /// One of Larder's own settings stands where only PyTorch's belong.
    Own {
        /// Where the text is from.
        name: String,
        /// The setting.
        key: String,
    },
    /// A variable holds no text in UTF-8.
    NotUnicode(String),
    /// A text from somewhere cannot be read.
    In {
        /// Where it is from.
        name: String,
        /// What is wrong with it.
        error: Box<SettingsError>,
    },
}

impl SettingsError {
    /// Names where the text is from.
    pub(super) fn of(name: &str) -> impl FnOnce(SettingsError) -> SettingsError {
        move |error| SettingsError::In { name: name.to_owned(), error: Box::new(error) }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Config(error) => error.fmt(f),
            SettingsError::Policy(error) => error.fmt(f),
            SettingsError::Twice(key) => write!(f, "the setting '{key}' stands twice"),
            SettingsError::NoValue(key) => write!(f, "the setting '{key}' wants a value"),
            SettingsError::Metrics(found) => write!(
                f,
                "the setting 'metrics' takes a port, as 9400, or an address with one, as \
                 0.0.0.0:9400, not '{found}'"
            ),
            SettingsError::Pinned(found) => {
                write!(f, "the setting 'pinned' is larder or torch, not '{found}'")
            }
            SettingsError::PinnedSize(key, error) => write!(f, "the setting '{key}': {error}"),
            SettingsError::PinnedIdle(found) => write!(
                f,
                "the setting 'pinned_idle_s' takes whole seconds from 1 on, as 60, not '{found}'"
            ),
            SettingsError::PinnedLeft(key) => write!(
                f,
                "'{key}' is about Larder's pinned memory, and 'pinned:torch' leaves it to \
                 PyTorch's own allocator, which has no such setting; leave one of the two out"
            ),
            SettingsError::DriversPool => write!(
                f,
                "backend:cudaMallocAsync is the driver's own pool, which has nothing of Larder in \
                 it; leave it out, or do not use Larder"
            ),
            SettingsError::NotOwn { name, key } => write!(
                f,
                "{name}: '{key}' is not one of Larder's own settings, which are {}; PyTorch's \
                 settings belong into {}",
                OWN_KEYS.join(", "),
                TORCH_VARIABLES[0],
            ),
            SettingsError::Own { name, key } => write!(
                f,
                "{name}: '{key}' is one of Larder's own settings, which belong into {CONF_VARIABLE}"
            ),
            SettingsError::NotUnicode(name) => write!(f, "{name} is no text in UTF-8"),
            SettingsError::In { name, error } => write!(f, "{name}: {error}"),
        }
    }
}

impl std::error::Error for SettingsError {}

impl From<ConfigError> for SettingsError {
    fn from(error: ConfigError) -> SettingsError {
        SettingsError::Config(error)
    }
}

impl From<UnknownPolicy> for SettingsError {
    fn from(error: UnknownPolicy) -> SettingsError {
        SettingsError::Policy(error)
    }
}
