//! The versions of PyTorch whose allocators are peers, each out of its own wheel.

use std::fmt;

/// A version of PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Torch {
    /// As people and policies call it.
    pub(crate) minor: &'static str,
    /// As the package index calls it.
    pub(crate) full: &'static str,
}

/// The one that Larder has decided like from the beginning, and whose viewer shows our snapshots.
pub(crate) const OLDEST: Torch = Torch { minor: "2.11", full: "2.11.0" };
/// The newest that is known.
pub(crate) const NEWEST: Torch = Torch { minor: "2.15", full: "2.15.0" };

/// All of them, the oldest first.
pub(crate) const ALL: [Torch; 5] = [
    OLDEST,
    Torch { minor: "2.12", full: "2.12.1" },
    Torch { minor: "2.13", full: "2.13.0" },
    Torch { minor: "2.14", full: "2.14.1" },
    NEWEST,
];

/// Other releases of some of them: what is built for a minor version is for these too.
pub(crate) const OTHER_RELEASES: [Torch; 2] =
    [Torch { minor: "2.12", full: "2.12.0" }, Torch { minor: "2.14", full: "2.14.0" }];

impl Torch {
    /// The version of a name, or another release of such a version.
    pub(crate) fn released(name: &str) -> Result<Self, String> {
        let other = OTHER_RELEASES.into_iter().find(|torch| name == torch.full);
        other.map_or_else(|| Self::named(name), Ok)
    }

    /// The version of a name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = ALL.into_iter().find(|torch| name == torch.minor || name == torch.full);
        found.ok_or_else(|| {
            let [others @ .., last] = ALL.map(|torch| torch.minor);
            format!(
                "there is no peer of PyTorch '{name}'; there are {} and {last}",
                others.join(", ")
            )
        })
    }

    /// The policy that decides as it does.
    pub(crate) fn policy(self) -> String {
        format!("torch-{}", self.minor)
    }
}

impl fmt::Display for Torch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_by_either_name() {
        assert_eq!((Torch::named("2.11"), Torch::named("2.15.0")), (Ok(OLDEST), Ok(NEWEST)));
        assert_eq!(Torch::released("2.12.0").map(|torch| torch.minor), Ok("2.12"));
        let unknown = Torch::named("2.12.0").unwrap_err();
        assert!(unknown.ends_with("there are 2.11, 2.12, 2.13, 2.14 and 2.15"), "{unknown}");
    }
}
