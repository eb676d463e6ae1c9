//! Progress bars, for work that takes seconds. They show on a terminal only.

use std::cell::RefCell;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use larder_study::watch::{Extent, Watch};

/// A bar on standard error. It draws nothing where that is not a terminal, and it goes away when
/// the work is done.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar over bytes.
    pub(crate) fn bytes(what: &'static str, total_bytes: u64) -> Progress {
        Progress::new(what, total_bytes, "{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
    }

    /// A bar over steps.
    pub(crate) fn steps(what: &'static str, total: u64) -> Progress {
        Progress::new(what, total, "{msg} {wide_bar} {human_pos}/{human_len} {eta}")
    }

    fn new(what: &'static str, total: u64, template: &str) -> Progress {
        let bar =
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// So much is done.
    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// The work is done.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Shows each piece of work as a bar.
#[derive(Default)]
pub(crate) struct Bars(RefCell<Option<Progress>>);

impl Watch for Bars {
    fn begin(&self, what: &'static str, extent: Extent) {
        self.0.replace(Some(match extent {
            Extent::Bytes(total_bytes) => Progress::bytes(what, total_bytes),
            Extent::Steps(total) => Progress::steps(what, total),
        }));
    }

    fn reach(&self, done: u64) {
        if let Some(bar) = &*self.0.borrow() {
            bar.set(done);
        }
    }

    fn end(&self) {
        self.0.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_goes_as_far_as_its_steps() {
        let bar = Progress::steps("replaying", 90);
        bar.set(30);
        assert_eq!((bar.0.position(), bar.0.length()), (30, Some(90)));
    }
}
