//! Symmetric pools: made, asked for positions, trimmed and sealed.

use larder_core::Addr;
use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::sequence::MESSAGE_BYTES;

use crate::border::{Foreign, Held, Out, PoolName, Problem, Shown, Status, Token, guard};
use crate::larder::Larder;
use crate::sources::Source;

/// `LARDER_SEAL_BYTES`
pub(crate) const SEAL_BYTES: usize = MESSAGE_BYTES;

/// No cluster has more ranks.
const RANKS_MAX: usize = 1 << 20;

/// `larder_position`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Position {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) generation: u64,
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_add_symmetric(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    source: Shown<Source>,
    growth_bytes: usize,
) -> Status {
    guard(|| {
        let source = source.needed("source")?.taken(device)?;
        let allocator = larder.get("larder")?.device(device)?;
        let options = SymmetricOptions::default().growth_bytes(growth_bytes as u64);
        Ok(allocator.add_symmetric_pool(pool.into(), source, options)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_position_of(larder: Held<Larder>, ptr: Token, out: Out<Position>) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, out.wanted("out")?);
        let addr = Addr(ptr.number());
        let (_, found) = larder.at(addr, |allocator| allocator.position_of(addr))?;
        let (segment, generation) = (found.segment, found.generation);
        out.put(Position { segment, offset: found.offset_bytes, generation });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_sequence(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    calls: Out<u64>,
    hash: Out<u64>,
) -> Status {
    guard(|| {
        let state = larder.get("larder")?.device(device)?.sequence_of(pool.into())?;
        calls.put_if_wanted(state.calls);
        hash.put_if_wanted(state.hash);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_trim(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    segments: Out<u64>,
) -> Status {
    guard(|| {
        let gone = larder.get("larder")?.device(device)?.trim_pool(pool.into())?;
        segments.put_if_wanted(gone);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_pool_seal(
    larder: Held<Larder>,
    device: i32,
    pool: PoolName,
    ranks: usize,
    exchange: Option<extern "C" fn(Foreign, *const u8, *mut u8) -> bool>,
    data: Foreign,
    calls: Out<u64>,
) -> Status {
    guard(|| {
        let wrong = |words: &str| Problem::Argument(words.to_owned());
        let exchange = exchange.ok_or_else(|| wrong("`exchange` must not be NULL"))?;
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(Problem::Argument(format!(
                "a pool has 1 to {RANKS_MAX} ranks, not {ranks}"
            )));
        }
        let allocator = larder.get("larder")?.device(device)?;
        let sealed = allocator.seal_pool(pool.into(), &mut |said: &[u8]| {
            let mut heard = vec![0; ranks * SEAL_BYTES];
            if !exchange(data, said.as_ptr(), heard.as_mut_ptr()) {
                return Err("the exchange failed".into());
            }
            Ok(heard.chunks_exact(SEAL_BYTES).map(<[u8]>::to_vec).collect())
        })?;
        calls.put_if_wanted(sealed);
        Ok(())
    })
}
