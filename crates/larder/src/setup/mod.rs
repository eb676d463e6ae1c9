//! What a text, of a program or of the environment, says about devices and settings.
//!
//! The C library, the Python package and the simulated CUDA runtime all read these alike.

pub mod devices;
mod error;
pub mod keeping;
mod names;
pub mod pinned;
pub mod settings;
mod text;

pub use error::{DevicesError, NameProblem, SettingsError};
