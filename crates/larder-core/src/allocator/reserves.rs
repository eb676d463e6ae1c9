//! Reserves: the calls that say how many addresses the next expandable segment of a stream takes.

use std::sync::Arc;

use crate::allocator::Allocator;
use crate::types::StreamId;

impl Allocator {
    /// The stream is of this class from now on; an empty name is none. Expandable segments that are
    /// made for it reserve what the setting `expandable_segments_reserve_by_class` says of the
    /// class, or, where that does not name it, what `expandable_segments_reserve` says. The policy
    /// tight has segments of its own, to which neither applies.
    pub fn set_stream_class(&self, stream: StreamId, class: &str) {
        self.lock().heap.set_stream_class(stream, class);
    }

    /// The class of a stream, if it has one.
    pub fn stream_class(&self, stream: StreamId) -> Option<Arc<str>> {
        self.look().heap.stream_class(stream)
    }

    /// Has somebody asked how many bytes of addresses an expandable segment should reserve,
    /// whenever a request may bring a new one: who keeps settings, and classes of streams,
    /// elsewhere. The hook is given the stream and how many bytes the device has; none is as the
    /// settings here say. It takes the place of one given before, runs with no lock held, and may
    /// call the allocator.
    pub fn on_reserve(&self, hook: impl Fn(StreamId, u64) -> Option<u64> + Send + Sync + 'static) {
        let before = self.hooks.set_reserve_hook(Arc::new(hook));
        drop(before);
    }
}
