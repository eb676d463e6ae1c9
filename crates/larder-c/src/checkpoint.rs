//! Checkpoints of private pools.

use larder_core::heap::checkpoint::Checkpoint;

use crate::border::{Held, Out, Owned, PoolName, Status, Token, guard, guard_or};
use crate::larder::Larder;

/// `larder_restored`
pub(crate) struct Restored {
    freed: Vec<Token>,
    live: Vec<Token>,
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_checkpoint(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    out: Out<Owned<Checkpoint>>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let allocator = larder.get("larder")?.device(device)?;
        out.put(Owned::give(allocator.checkpoint_pool(pool.into())?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_checkpoint_free(checkpoint: Held<Checkpoint>) {
    guard_or((), || drop(checkpoint.take()));
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_restore(
    larder: Held<Larder>,
    device: i32,
    checkpoint: Held<Checkpoint>,
    out: Out<Owned<Restored>>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let (larder, checkpoint) = (larder.get("larder")?, checkpoint.get("checkpoint")?);
        let restored = larder.device(device)?.restore_pool(checkpoint)?;
        restored.created.iter().for_each(|&addr| larder.note(addr, device));
        let tokens = |addrs: Vec<larder_core::Addr>| {
            addrs.into_iter().map(|addr| Token::new(addr.0)).collect()
        };
        let (freed, live) = (tokens(restored.freed), tokens(restored.created));
        out.put(Owned::give(Restored { freed, live }));
        Ok(())
    })
}

/// The start of a list, and how long it is; null where there is none.
pub(crate) fn list<T>(items: &[T], count: Out<usize>) -> *const T {
    count.put_if_wanted(items.len());
    items.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn larder_restored_freed(restored: Held<Restored>, count: Out<usize>) -> *const Token {
    list(restored.read().map_or(&[], |restored| &restored.freed), count)
}

#[unsafe(no_mangle)]
extern "C" fn larder_restored_live(restored: Held<Restored>, count: Out<usize>) -> *const Token {
    list(restored.read().map_or(&[], |restored| &restored.live), count)
}

#[unsafe(no_mangle)]
extern "C" fn larder_restored_free(restored: Held<Restored>) {
    guard_or((), || drop(restored.take()));
}
