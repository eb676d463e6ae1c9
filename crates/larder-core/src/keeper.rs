//! Keepers: where the contents of memory are kept while it sleeps.

use std::fmt;

/// What becomes of the contents of memory that is put to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keep {
    /// The keeper has them, and they are there again after waking.
    #[default]
    Contents,
    /// Nobody has them. After waking there is anything.
    Nothing,
    /// Nobody has them. After waking there are zeros.
    Zeros,
}

/// Memory of the host for the contents of what sleeps. It is called while the
/// allocator's lock is held, and must not call the allocator.
pub trait Keeper: Send + Sync {
    /// Room for so many bytes, of which nobody else writes any as long as it lives.
    fn keep(&self, size_bytes: u64) -> Result<Box<dyn Kept>, KeeperError>;

    /// Room that nobody needs is kept for the next time, up to so many bytes from now on. A keeper
    /// that keeps none has nothing to do.
    fn set_limit(&self, _limit_bytes: u64) -> Result<(), KeeperError> {
        Ok(())
    }

    /// Gives back what is kept for the next time.
    fn give_back(&self) -> Result<(), KeeperError> {
        Ok(())
    }

    /// How much is kept for the next time.
    fn spare_bytes(&self) -> u64 {
        0
    }
}

/// Why a keeper has no room, or cannot give any back. It says so in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperError(String);

impl<S: Into<String>> From<S> for KeeperError {
    fn from(sentence: S) -> KeeperError {
        KeeperError(sentence.into())
    }
}

impl fmt::Display for KeeperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KeeperError {}

/// Room that a keeper gave. It goes back to the keeper when it is dropped.
pub trait Kept: Send {
    /// What is kept.
    fn bytes(&self) -> &[u8];

    /// Where it is put.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// The keeper of an allocator that was given no other: memory of the host as any program gets it.
/// To copy to it and from it is slower than with pinned memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainKeeper;

impl Keeper for PlainKeeper {
    fn keep(&self, size_bytes: u64) -> Result<Box<dyn Kept>, KeeperError> {
        let bytes = usize::try_from(size_bytes).map_err(|error| error.to_string())?;
        let mut room = Vec::<u8>::new();
        room.try_reserve_exact(bytes).map_err(|error| error.to_string())?;
        drop(room);
        Ok(Box::new(vec![0_u8; bytes]))
    }
}

impl Kept for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_as_large_as_asked_for_and_too_much_is_refused() {
        let mut kept = PlainKeeper.keep(3).unwrap();
        kept.bytes_mut().copy_from_slice(&[1, 2, 3]);
        assert_eq!(kept.bytes(), [1, 2, 3]);
        assert!(PlainKeeper.keep(u64::MAX).is_err());
    }
}
