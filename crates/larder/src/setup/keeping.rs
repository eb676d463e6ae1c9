//! Keeping: what settings say of pinned memory of the host.

use larder_sim::parse_capacity;

use super::error::SettingsError;
use super::names::{PINNED_AHEAD_KEY, PINNED_IDLE_KEY, PINNED_KEY, PINNED_LIMIT_KEY};
use super::text::split_key;

/// How pinned memory of the host is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keeping {
    /// Who keeps it in a process with PyTorch, if somebody says so.
    pub by: Option<PinnedBy>,
    /// How much may be held; none is as much as there is.
    pub limit_bytes: Option<u64>,
    /// For a request of so many bytes memory is got ahead.
    pub ahead_bytes: Option<u64>,
    /// What nobody used for so long goes back.
    pub idle_s: Option<u64>,
}

/// Who keeps pinned memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedBy {
    /// Larder.
    Larder,
    /// PyTorch's own allocator.
    Torch,
}

impl Keeping {
    /// Reads a settings text on top of this, and gives back the text without what it says of pinned
    /// memory.
    pub(super) fn overlay(&self, text: &str) -> Result<(Keeping, String), SettingsError> {
        let size = |key, text: Option<String>| {
            let size_bytes = text.map(|text| parse_capacity(&text)).transpose();
            size_bytes.map_err(|error| SettingsError::PinnedSize(key, error))
        };
        let (by, rest) = split_key(text, PINNED_KEY)?;
        let by = by.map(|name| keeper(&name)).transpose()?;
        let (limit, rest) = split_key(&rest, PINNED_LIMIT_KEY)?;
        let (ahead, rest) = split_key(&rest, PINNED_AHEAD_KEY)?;
        let (idle, rest) = split_key(&rest, PINNED_IDLE_KEY)?;
        let keeping = Keeping {
            by: by.or(self.by),
            limit_bytes: size(PINNED_LIMIT_KEY, limit)?.or(self.limit_bytes),
            ahead_bytes: size(PINNED_AHEAD_KEY, ahead)?.or(self.ahead_bytes),
            idle_s: idle.map(|text| seconds(&text)).transpose()?.or(self.idle_s),
        };
        match keeping.own_key() {
            Some(key) if keeping.by == Some(PinnedBy::Torch) => Err(SettingsError::PinnedLeft(key)),
            _ => Ok((keeping, rest)),
        }
    }

    /// A setting that is given and that PyTorch's own allocator has not.
    pub(super) fn own_key(&self) -> Option<&'static str> {
        let given = [
            (PINNED_LIMIT_KEY, self.limit_bytes),
            (PINNED_AHEAD_KEY, self.ahead_bytes),
            (PINNED_IDLE_KEY, self.idle_s),
        ];
        given.into_iter().find(|(_, value)| value.is_some()).map(|(key, _)| key)
    }
}

/// Who keeps pinned memory, by name.
fn keeper(name: &str) -> Result<PinnedBy, SettingsError> {
    match name {
        "larder" => Ok(PinnedBy::Larder),
        "torch" => Ok(PinnedBy::Torch),
        other => Err(SettingsError::Pinned(other.to_owned())),
    }
}

fn seconds(text: &str) -> Result<u64, SettingsError> {
    let whole = text.parse().ok().filter(|&seconds: &u32| seconds > 0);
    whole.map(u64::from).ok_or_else(|| SettingsError::PinnedIdle(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Keeping, SettingsError> {
        Keeping::default().overlay(text).map(|(keeping, _)| keeping)
    }

    #[test]
    fn what_is_said_of_pinned_memory_is_taken_out_and_comes_on_top() {
        let text = "pinned_idle_s:60 , policy:tight,pinned_ahead:512MiB";
        let (before, rest) = Keeping::default().overlay(text).unwrap();
        assert_eq!(rest.trim(), "policy:tight");
        let (keeping, rest) = before.overlay("pinned:larder,pinned_limit:64GiB").unwrap();
        let limits = (keeping.limit_bytes, keeping.ahead_bytes, keeping.idle_s);
        assert_eq!(limits, (Some(64 << 30), Some(512 << 20), Some(60)));
        assert_eq!((keeping.by, rest.as_str()), (Some(PinnedBy::Larder), ""));
        assert_eq!(read("").unwrap(), Keeping::default());
    }

    #[test]
    fn what_pytorchs_allocator_has_not_does_not_go_with_it() {
        for own in ["pinned_limit:1GiB", "pinned_ahead:1GiB", "pinned_idle_s:60"] {
            assert!(read(&format!("pinned:larder,{own}")).is_ok(), "{own}");
            let (key, _) = own.split_once(':').unwrap();
            let left = read(&format!("pinned:torch,{own}")).unwrap_err().to_string();
            assert!(left.starts_with(&format!("'{key}' is about Larder's")), "{left}");
        }
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named() {
        for (text, word) in [
            ("pinned:driver", "is larder or torch, not 'driver'"),
            ("pinned_limit:lots", "the setting 'pinned_limit': "),
            ("pinned_ahead:lots", "the setting 'pinned_ahead': "),
            ("pinned_idle_s:soon", "takes whole seconds from 1 on, as 60, not 'soon'"),
            ("pinned_idle_s:0", "not '0'"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
