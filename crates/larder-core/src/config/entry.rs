//! Entries: a key of a settings text with its value, and what values can be.

use crate::config::number::{real, whole};
use crate::config::reserve::Reserve;
use crate::config::{Backend, ConfigError, SIZE_MAX_BYTES};
use crate::types::MIB;

/// A key and its value.
pub(super) struct Entry<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

impl Entry<'_> {
    pub(super) fn bad(&self, expected: impl Into<String>) -> ConfigError {
        ConfigError::BadValue {
            key: self.key.to_owned(),
            value: self.value.to_owned(),
            expected: expected.into(),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, ConfigError> {
        match self.value {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.bad("True or False")),
        }
    }

    /// The backend, which stays what it was when the program began.
    pub(super) fn backend(&self, chosen: Option<Backend>) -> Result<Backend, ConfigError> {
        let backend = match self.value {
            "native" => Backend::Native,
            "cudaMallocAsync" => Backend::CudaMallocAsync,
            _ => return Err(self.bad("native or cudaMallocAsync")),
        };
        match chosen {
            Some(chosen) if chosen != backend => {
                Err(self.bad(format!("the one that was chosen first, {}", chosen.name())))
            }
            _ => Ok(backend),
        }
    }

    /// A whole number of MiB of at least `least_mb`, in bytes. What is larger than any memory is as
    /// good as `SIZE_MAX_BYTES`.
    pub(super) fn mebibytes_from(&self, least_mb: u64) -> Result<u64, ConfigError> {
        self.at_least(least_mb, whole(self.value))
    }

    /// The same, of a setting of ours, which takes nothing but digits.
    pub(super) fn plain_mebibytes(&self) -> Result<u64, ConfigError> {
        self.at_least(0, self.value.parse().ok())
    }

    fn at_least(&self, least_mb: u64, mebibytes: Option<u64>) -> Result<u64, ConfigError> {
        let expected = || self.bad(format!("a whole number of MiB, {least_mb} or more"));
        let mebibytes = mebibytes.filter(|&number| number >= least_mb).ok_or_else(expected)?;
        Ok(mebibytes.min(SIZE_MAX_BYTES / MIB) * MIB)
    }

    /// A size that PyTorch keeps in MiB. What it makes of one beyond all addresses is what is left
    /// of it in bytes.
    pub(super) fn kept_mebibytes(&self) -> Result<u64, ConfigError> {
        let number = whole(self.value).filter(|&number| number > 0);
        let expected = || self.bad("a whole number of MiB, 1 or more");
        Ok(number.ok_or_else(expected)?.wrapping_mul(MIB))
    }

    pub(super) fn page_bytes(&self) -> Result<u64, ConfigError> {
        let mebibytes = self.value.parse().ok();
        let even = mebibytes.filter(|&mebibytes: &u64| {
            mebibytes.is_multiple_of(2) && (2..=1024).contains(&mebibytes)
        });
        let expected = || self.bad("an even number of MiB from 2 to 1024");
        even.map(|mebibytes| mebibytes * MIB).ok_or_else(expected)
    }

    pub(super) fn register_threads(&self) -> Result<u64, ConfigError> {
        let threads = whole(self.value);
        let fitting = threads.filter(|threads| threads.is_power_of_two() && *threads <= 128);
        fitting.ok_or_else(|| self.bad("a power of two from 1 to 128"))
    }

    pub(super) fn fraction(
        &self,
        fits: impl Fn(f64) -> bool,
        expected: &str,
    ) -> Result<f64, ConfigError> {
        real(self.value).filter(|&value| fits(value)).ok_or_else(|| self.bad(expected))
    }

    /// The same, of a setting of ours, which takes a number and nothing after it.
    pub(super) fn plain_fraction(
        &self,
        fits: impl Fn(f64) -> bool,
        expected: &str,
    ) -> Result<f64, ConfigError> {
        let value = self.value.parse().ok();
        value.filter(|&value| fits(value)).ok_or_else(|| self.bad(expected))
    }

    /// A part of the device's memory, or so many GiB. What is neither is passed over, as PyTorch
    /// does.
    pub(super) fn reserve(&self) -> Option<Reserve> {
        Reserve::read(self.value)
    }
}
