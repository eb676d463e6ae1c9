//! A simulated cluster: ranks, each with a simulated GPU of its own, a symmetric heap that they
//! grow together, and an exchange.
//!
//! Ranks are threads of one process or processes of one machine; what they run is the same. From a
//! seed follows a sequence of requests and frees, which every rank makes in a symmetric pool while
//! it does things of its own besides: other memory, other streams, other timing. In the end all
//! blocks have to lie at the same places. A trouble may be planted: a rank that makes one call
//! otherwise, that dies in the middle of growing, or that comes late.

pub mod commons;
pub mod line;
pub mod meeting;
pub mod plan;
pub mod rank;
pub mod run;

use std::fmt;

use larder_core::error::ExchangeError;

/// Something that must not be came of a plan, as a sentence that says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

impl<S: Into<String>> From<S> for Failure {
    fn from(sentence: S) -> Failure {
        Failure(sentence.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Gives what one rank says to all ranks, and returns what each of them said, in the order of the
/// ranks.
pub trait Gather: Send + Sync {
    /// One round. It fails with one sentence on every rank that is left if some rank is gone or
    /// does not come in time.
    fn gather(&self, said: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError>;

    /// This rank takes part no more, and the others are told.
    fn leave(&self);
}
