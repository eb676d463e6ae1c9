//! Memory of NCCL's in a symmetric pool that is bound to a communicator: collectives on it give the
//! right numbers, and segments are registered exactly as long as they are there. NCCL refuses two
//! ranks on one GPU, so there is one.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{result, sys};
use larder::nccl::{Nccl, NcclSource, RegisterAs, nccl_source};
use larder_core::MemPool;
use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::types::{Addr, MIB};
use larder_sim::random::Random;

use crate::rig::{Explain, Rig, id_of};

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let rounds = if short { 2 } else { 20 };
    let nccl = Nccl::load().or_say("NCCL")?;
    let mut said = Vec::new();
    for how in [RegisterAs::Plain, RegisterAs::Window, RegisterAs::Both] {
        let comm = Comm::alone(rig)?;
        // SAFETY: the communicator is of this NCCL, and goes after the pool that has the source.
        let source = unsafe { nccl_source(&nccl, comm.0.cast::<c_void>(), how, Some(0)) };
        let source = Arc::new(source.or_say("NCCL's memory")?);
        let segments = reduce(rig, &comm, &source, rounds).or_say(&format!("as {how:?}"))?;
        said.push(format!("{how:?} {segments}"));
    }
    Ok(format!("all-reduce right; segments registered and deregistered: {}", said.join(", ")))
}

/// Blocks of many sizes are made, reduced and freed, and segments come and go with them. Says how
/// many there were.
fn reduce(rig: &Rig, comm: &Comm, source: &Arc<NcclSource>, rounds: u32) -> Result<u64, String> {
    let stream = rig.stream()?;
    let allocator = Arc::new(rig.allocator("")?);
    let pool = MemPool::symmetric(&allocator, source.clone(), SymmetricOptions::default());
    let pool = pool.or_say("a symmetric pool")?;
    let mut random = Random::new(5);
    let mut early = None;
    for _ in 0..rounds {
        let mut blocks = Vec::new();
        for _ in 0..8 {
            let size_bytes = 4 * random.between(1, 3 * MIB);
            let [from, to] = [(); 2].map(|()| {
                pool.scope(|| allocator.malloc(size_bytes, id_of(&stream))).and_then(|block| block)
            });
            let (from, to) = (from.or_say("a block")?, to.or_say("a block")?);
            let seed = rig.seed();
            rig.fill(&stream, from, size_bytes, seed)?;
            comm.all_reduce(&stream, from, to, size_bytes)?;
            rig.verify(&stream, to, size_bytes, seed)?;
            blocks.extend([from, to]);
        }
        pool.seal(|said| Ok(vec![said.to_vec()])).or_say("a seal")?;
        let registration = source.registration_of(blocks[0]).ok_or("a block is not registered")?;
        source.check(registration).or_say("a registration")?;
        expect_equal(source, &pool)?;
        for block in blocks {
            allocator.free(block).or_say("free")?;
        }
        // The segments go, with their registrations, when the GPU is done with them.
        rig.wrong_words()?;
        pool.trim().or_say("trimming")?;
        expect_equal(source, &pool)?;
        if source.check(registration).is_ok() {
            return Err("a registration outlived its segment".to_owned());
        }
        if source.check(*early.get_or_insert(registration)).is_ok() {
            return Err("a registration of an earlier generation is not refused".to_owned());
        }
    }
    rig.expect_none_wrong("what NCCL reduced")?;
    let made = pool.source_counts().map_or(0, |counts| counts.made);
    drop(pool);
    let counts = source.counts();
    if (counts.registered, counts.deregistered) != (made, made) {
        return Err(format!("{made} segments were made, and {counts:?}"));
    }
    allocator.check().or_say("a check")?;
    Ok(made)
}

/// As many registrations as segments that came, as many deregistrations as segments that went.
fn expect_equal(source: &NcclSource, pool: &MemPool) -> Result<(), String> {
    let segments = pool.source_counts().ok_or("a pool with no source")?;
    let counts = source.counts();
    if (counts.registered, counts.deregistered) == (segments.made, segments.given_back) {
        return Ok(());
    }
    Err(format!("{segments:?}, but {counts:?}"))
}

/// A communicator of one rank.
struct Comm(sys::ncclComm_t);

impl Comm {
    fn alone(rig: &Rig) -> Result<Comm, String> {
        rig.context().bind_to_thread().or_say("the context")?;
        let said = |error: result::NcclError| format!("NCCL: error {:?}", error.0);
        let id = result::get_uniqueid().map_err(said)?;
        let mut comm = std::ptr::null_mut();
        // SAFETY: the communicator may be written to.
        unsafe { result::comm_init_rank(&raw mut comm, 1, id, 0) }.map_err(said)?;
        Ok(Comm(comm))
    }

    fn all_reduce(
        &self,
        stream: &CudaStream,
        from: Addr,
        to: Addr,
        size_bytes: u64,
    ) -> Result<(), String> {
        let from = std::ptr::without_provenance(from.0 as usize);
        let to = std::ptr::without_provenance_mut(to.0 as usize);
        let (kind, sum) = (sys::ncclDataType_t::ncclUint32, sys::ncclRedOp_t::ncclSum);
        let (words, stream) = ((size_bytes / 4) as usize, stream.cu_stream().cast());
        // SAFETY: both blocks have so many words, and the stream is of the communicator's device.
        let done = unsafe { result::all_reduce(from, to, words, kind, sum, self.0, stream) };
        done.map(drop).map_err(|error| format!("reducing: NCCL error {:?}", error.0))
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: it was made here, and what was registered with it is gone. It says nothing that
        // could be mended.
        let _ = unsafe { result::comm_destroy(self.0) };
    }
}
