//! Order: bytes that one stream used go to another only behind the work that used them.
//!
//! Whoever gets bytes that others used before begins when they are done: it follows an event that
//! was recorded behind their last use, or their work has finished. Work of a stream's own is in
//! order anyway.

use std::collections::{BTreeMap, HashMap};

use larder_core::types::Span;
use larder_core::{Addr, StreamId};

use larder_sim::{Moment, SimDevice};

/// Who uses which bytes, and who used them last.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The streams that use the live blocks.
    users: HashMap<Addr, (Span, Vec<StreamId>)>,
    /// By the memory and the offset at which they begin: where they end, and the ends of their last
    /// uses.
    used: BTreeMap<(u64, u64), (u64, Vec<Moment>)>,
}

impl Order {
    /// Another stream uses a live block, in work that runs.
    pub(super) fn used(&mut self, addr: Addr, stream: StreamId) {
        if let Some((_, users)) = self.users.get_mut(&addr)
            && !users.contains(&stream)
        {
            users.push(stream);
        }
    }

    /// A stream is gone, its work done. Nobody uses anything on it any more.
    pub(super) fn forget(&mut self, stream: StreamId) {
        for (_, users) in self.users.values_mut() {
            users.retain(|&user| user != stream);
        }
    }

    /// A block is about to be freed, and was used until now. Says where its uses end.
    pub(super) fn freeing(&mut self, device: &SimDevice, addr: Addr) -> Vec<Moment> {
        let Some((block, users)) = self.users.get(&addr).cloned() else { return Vec::new() };
        let moment = |&stream: &StreamId| {
            // What is captured does not run.
            if !device.is_captured(stream) {
                device.issue(stream);
            }
            device.moment(stream)
        };
        let moments: Vec<Moment> = users.iter().map(moment).collect();
        for extent in device.extents(block).unwrap_or_default() {
            let end = extent.offset_bytes + extent.size_bytes;
            self.cut(extent.memory, extent.offset_bytes);
            self.cut(extent.memory, end);
            let within = (extent.memory, extent.offset_bytes)..(extent.memory, end);
            let gone: Vec<_> = self.used.range(within).map(|(&at, _)| at).collect();
            for at in gone {
                self.used.remove(&at);
            }
            self.used.insert((extent.memory, extent.offset_bytes), (end, moments.clone()));
        }
        moments
    }

    /// The block was freed.
    pub(super) fn freed(&mut self, addr: Addr) {
        self.users.remove(&addr);
    }

    /// A block is live whose stream is gone: nobody uses it so far.
    pub(super) fn adopt(&mut self, block: Span) {
        self.users.insert(block.addr, (block, Vec::new()));
    }

    /// A block was handed out to a stream. Fails if some of its bytes may still be used.
    pub(super) fn taken(
        &mut self,
        device: &SimDevice,
        block: Span,
        stream: StreamId,
    ) -> Result<(), String> {
        self.users.insert(block.addr, (block, vec![stream]));
        for extent in device.extents(block).unwrap_or_default() {
            let end = extent.offset_bytes + extent.size_bytes;
            let used = self.used.range((extent.memory, 0)..(extent.memory, end));
            let used = used.rev().take_while(|&(_, &(until, _))| until > extent.offset_bytes);
            for (_, (_, moments)) in used {
                let early = moments.iter().find(|&&moment| !device.comes_after(stream, moment));
                if let Some(early) = early {
                    return Err(format!(
                        "{stream} was given {} before the work of {} on it has finished",
                        block.addr, early.stream
                    ));
                }
            }
        }
        Ok(())
    }

    /// Lets a run of bytes begin here.
    fn cut(&mut self, memory: u64, offset_bytes: u64) {
        let before = self.used.range_mut((memory, 0)..(memory, offset_bytes)).next_back();
        let Some((_, (until, moments))) = before.filter(|(_, (until, _))| *until > offset_bytes)
        else {
            return;
        };
        let behind = (*until, moments.clone());
        *until = offset_bytes;
        self.used.insert((memory, offset_bytes), behind);
    }
}

#[cfg(test)]
mod tests {
    use larder_core::device::Device;
    use larder_core::types::MIB;

    use super::*;

    const GIVER: StreamId = StreamId(1);
    const TAKER: StreamId = StreamId(2);

    /// The stream has the block, and frees it.
    fn use_once(device: &SimDevice, order: &mut Order, block: Span, stream: StreamId) {
        order.taken(device, block, stream).unwrap();
        order.freeing(device, block.addr);
        order.freed(block.addr);
    }

    /// Memory that the giver used and freed, and a part in the middle of it.
    fn given() -> (SimDevice, Order, Span) {
        let (device, mut order) = (SimDevice::default(), Order::default());
        let addr = device.alloc(10 * MIB).unwrap();
        use_once(&device, &mut order, Span::new(addr, 10 * MIB), GIVER);
        (device, order, Span::new(addr.offset(MIB), MIB))
    }

    #[test]
    fn bytes_that_are_taken_too_early_are_found() {
        let (device, mut order, middle) = given();
        assert_eq!(order.taken(&device, middle, GIVER), Ok(()));
        let early = order.taken(&device, middle, TAKER).unwrap_err();
        assert!(early.contains("before the work of stream 1 on it has finished"), "{early}");
        // An event on the taker's own stream says nothing of the giver.
        let event = device.create_event().unwrap();
        device.record_event(event, TAKER).unwrap();
        device.follow_event(TAKER, event).unwrap();
        assert!(order.taken(&device, middle, TAKER).is_err());
    }

    #[test]
    fn bytes_may_be_taken_behind_an_event_or_when_the_work_is_done() {
        let (device, mut order, middle) = given();
        let event = device.create_event().unwrap();
        device.record_event(event, GIVER).unwrap();
        device.follow_event(TAKER, event).unwrap();
        assert_eq!(order.taken(&device, middle, TAKER), Ok(()));

        let (device, mut order, middle) = given();
        device.wait_stream(GIVER).unwrap();
        assert_eq!(order.taken(&device, middle, TAKER), Ok(()));
    }

    #[test]
    fn an_event_that_was_recorded_before_the_last_use_does_not_do() {
        let (device, mut order) = (SimDevice::default(), Order::default());
        let block = Span::new(device.alloc(2 * MIB).unwrap(), 2 * MIB);
        order.taken(&device, block, StreamId(3)).unwrap();
        order.used(block.addr, GIVER);
        let event = device.create_event().unwrap();
        device.record_event(event, GIVER).unwrap();
        order.freeing(&device, block.addr);
        device.sync(StreamId(3));
        device.follow_event(TAKER, event).unwrap();
        assert!(order.taken(&device, block, TAKER).is_err());
    }

    #[test]
    fn the_last_use_counts_byte_by_byte() {
        let (device, mut order, middle) = given();
        device.sync(GIVER);
        use_once(&device, &mut order, middle, TAKER);
        let mut taken = |from, size_bytes| {
            let part = Span::new(Addr(middle.addr.0 - MIB + from), size_bytes);
            order.taken(&device, part, GIVER)
        };
        assert_eq!(taken(0, MIB), Ok(()));
        assert_eq!(taken(2 * MIB, 8 * MIB), Ok(()));
        assert!(taken(0, MIB + 1).is_err());
        assert!(taken(2 * MIB - 1, MIB).is_err());
    }
}
