//! Captures that a program declares.

use std::fmt;
use std::sync::Arc;

use larder_core::CaptureToken;

use crate::error::Error;

/// A graph capture that its thread declared: [`Pool::begin_capture`](crate::Pool::begin_capture)
/// gives it, and it ends the capture when it is ended or dropped. It ends this one and no other,
/// whatever was captured on the stream since.
#[must_use = "the capture is over for the allocator when this is dropped"]
pub struct Capture {
    allocator: Arc<larder_core::Allocator>,
    token: Option<CaptureToken>,
}

impl Capture {
    pub(crate) fn new(allocator: Arc<larder_core::Allocator>, token: CaptureToken) -> Capture {
        Capture { allocator, token: Some(token) }
    }

    /// The capture is over, or failed. Dropping this says it too, and cannot tell of an error.
    pub fn end(mut self) -> Result<(), Error> {
        self.token.take().map_or(Ok(()), |token| Ok(self.allocator.end_capture(token)?))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            // It is ended once, here, so that there is nothing that could be wrong.
            let _ = self.allocator.end_capture(token);
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("token", &self.token).finish_non_exhaustive()
    }
}
