//! The versions of PyTorch that Larder knows by their decisions, their settings and their
//! recordings.

use std::fmt;
use std::str::FromStr;

/// A version of PyTorch, as far as its allocator goes. The later is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TorchVersion {
    /// 2.11.0.
    V2_11,
    /// 2.12.0 and 2.12.1.
    V2_12,
    /// 2.13.0.
    V2_13,
    /// 2.14.0 and 2.14.1.
    V2_14,
    /// 2.15.0.
    V2_15,
}

impl TorchVersion {
    /// All of them, the oldest first.
    pub const ALL: [TorchVersion; 5] = [
        TorchVersion::V2_11,
        TorchVersion::V2_12,
        TorchVersion::V2_13,
        TorchVersion::V2_14,
        TorchVersion::V2_15,
    ];

    /// As PyTorch writes it, without what comes behind the second number.
    pub const fn name(self) -> &'static str {
        match self {
            TorchVersion::V2_11 => "2.11",
            TorchVersion::V2_12 => "2.12",
            TorchVersion::V2_13 => "2.13",
            TorchVersion::V2_14 => "2.14",
            TorchVersion::V2_15 => "2.15",
        }
    }
}

impl fmt::Display for TorchVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No version of PyTorch that is known has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownVersion(pub String);

impl fmt::Display for UnknownVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, .., last] = TorchVersion::ALL;
        write!(f, "PyTorch '{}' is not known; {first} to {last} are", self.0)
    }
}

impl std::error::Error for UnknownVersion {}

impl FromStr for TorchVersion {
    type Err = UnknownVersion;

    /// Reads `2.13`, and also `2.13.0` or `2.13.0+cu130`.
    fn from_str(text: &str) -> Result<TorchVersion, UnknownVersion> {
        let is_it = |version: &TorchVersion| {
            text.strip_prefix(version.name())
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        TorchVersion::ALL.into_iter().find(is_it).ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_or_without_what_comes_behind() {
        assert_eq!("2.11".parse(), Ok(TorchVersion::V2_11));
        assert_eq!("2.13.0+cu130".parse(), Ok(TorchVersion::V2_13));
        for unknown in ["2.1", "2.110", "2.10.0", "1.13", ""] {
            let error = unknown.parse::<TorchVersion>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("PyTorch '{unknown}' is not known; 2.11 to 2.15 are")
            );
        }
        assert!(TorchVersion::V2_12 < TorchVersion::V2_13);
    }
}
