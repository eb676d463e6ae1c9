//! Other processes and other devices.

use larder_core::Addr;
use larder_core::allocator::share::Shared;
use larder_core::types::PoolKind;

use crate::border::{Held, Out, Owned, Room, Shown, Status, Token, guard, guard_or};
use crate::checkpoint::list;
use crate::larder::Larder;

/// `larder_expandable`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Expandable {
    pub(crate) stream: Token,
    pub(crate) is_small: bool,
    pub(crate) mapped_bytes: u64,
}

#[unsafe(no_mangle)]
extern "C" fn larder_share(larder: Held<Larder>, ptr: Token, out: Out<Owned<Shared>>) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, out.wanted("out")?);
        let addr = Addr(ptr.number());
        let (_, shared) = larder.at(addr, |allocator| allocator.share(addr))?;
        out.put(Owned::give(shared));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_shared_bytes(shared: Held<Shared>, length: Out<usize>) -> *const u8 {
    list(shared.read().map_or(&[], |shared| &shared.bytes), length)
}

#[unsafe(no_mangle)]
extern "C" fn larder_shared_offset(shared: Held<Shared>) -> u64 {
    shared.read().map_or(0, |shared| shared.offset_bytes)
}

#[unsafe(no_mangle)]
extern "C" fn larder_shared_free(shared: Held<Shared>) {
    guard_or((), || drop(shared.take()));
}

#[unsafe(no_mangle)]
extern "C" fn larder_open_shared(
    larder: Held<Larder>,
    device: i32,
    bytes: Shown<u8>,
    length: usize,
    out: Out<Token>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let bytes = bytes.list(length, "bytes")?;
        let addr = larder.get("larder")?.device(device)?.open_shared(bytes)?;
        out.put(Token::new(addr.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_close_shared(larder: Held<Larder>, device: i32, ptr: Token) -> Status {
    guard(|| {
        let allocator = larder.get("larder")?.device(device)?;
        Ok(allocator.close_shared(Addr(ptr.number()))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_enable_peer(larder: Held<Larder>, device: i32, owner: i32) -> Status {
    guard(|| {
        let larder = larder.get("larder")?;
        let peer = larder.device(device)?.device_index();
        Ok(larder.device(owner)?.open_to_peer(peer)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_expandable_segments(
    larder: Held<Larder>,
    device: i32,
    segments: Room<Expandable>,
    room: usize,
    count: Out<usize>,
) -> Status {
    guard(|| {
        let count = count.wanted("count")?;
        segments.check(room, "segments")?;
        let states = larder.get("larder")?.device(device)?.expandable_segments();
        let found: Vec<Expandable> = states
            .iter()
            .map(|state| Expandable {
                stream: Token::new(state.stream.0),
                is_small: state.kind == PoolKind::Small,
                mapped_bytes: state.mapped_bytes,
            })
            .collect();
        segments.fill(&found, room);
        count.put(found.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_has_expandable(larder: Held<Larder>, device: i32, out: Out<bool>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        out.put(larder.get("larder")?.device(device)?.has_expandable());
        Ok(())
    })
}
