//! Watching: who wants to show how far work has come that takes seconds.

/// How much there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many bytes; 0 if nobody knows.
    Bytes(u64),
    /// So many steps.
    Steps(u64),
}

/// Hears how far work has come. One piece of work begins after the other has ended.
pub trait Watch {
    /// Work begins.
    fn begin(&self, what: &'static str, extent: Extent);
    /// So much of it is done.
    fn reach(&self, done: u64);
    /// It is done, or given up.
    fn end(&self);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn begin(&self, _what: &'static str, _extent: Extent) {}
    fn reach(&self, _done: u64) {}
    fn end(&self) {}
}

/// A piece of work that is being watched, from here to its end.
pub(crate) struct Watched<'a> {
    watch: &'a dyn Watch,
    done: u64,
}

impl<'a> Watched<'a> {
    pub(crate) fn begin(watch: &'a dyn Watch, what: &'static str, extent: Extent) -> Self {
        watch.begin(what, extent);
        Watched { watch, done: 0 }
    }

    /// So much is done.
    pub(crate) fn reach(&mut self, done: u64) {
        self.done = done;
        self.watch.reach(done);
    }

    /// One more step is done.
    pub(crate) fn step(&mut self) {
        self.reach(self.done + 1);
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.watch.end();
    }
}
