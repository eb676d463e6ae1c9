//! The order of streams: what is still read is not handed out, and what may be handed out is.

use std::sync::Arc;

use larder_core::Allocator;
use larder_core::types::{Addr, MIB};

use crate::rig::{Explain, Gate, Rig, id_of};

const BLOCK_BYTES: u64 = 12 * MIB;

/// A kernel reads a block on another stream long after it was freed, while its own stream allocates
/// and writes as much as it likes.
pub(crate) fn late_reader(rig: &Rig, short: bool) -> Result<String, String> {
    let (rounds, delay_ns) = if short { (1, 5_000_000) } else { (8, 100_000_000) };
    let (owner, reader) = (rig.stream()?, rig.stream()?);
    let mut gate = Gate::new(rig)?;
    let mut reads = 0;
    for settings in [
        "expandable_segments:False",
        "expandable_segments:True",
        "expandable_segments:True,page_size_mb:2",
        "policy:tight",
    ] {
        let allocator = rig.allocator(settings)?;
        for _ in 0..rounds {
            let addr = take(&allocator, &owner)?;
            // One more in the cache: the driver may not give memory while a kernel spins.
            let spare = take(&allocator, &owner)?;
            allocator.free(spare).or_say("free")?;
            let seed = rig.seed();
            rig.fill(&owner, addr, BLOCK_BYTES, seed)?;
            reader.join(&owner).or_say("one stream behind another")?;
            gate.hold(&reader)?;
            rig.delay(&reader, delay_ns)?;
            rig.verify(&reader, addr, BLOCK_BYTES, seed)?;
            allocator.record_stream(addr, id_of(&reader)).or_say("record_stream")?;
            allocator.free(addr).or_say("free")?;
            // The freed block is wanted again at once, by its own stream, many times over.
            for _ in 0..20 {
                let other = take(&allocator, &owner)?;
                if other == addr {
                    return Err("a block was handed out while another stream reads it".to_owned());
                }
                rig.fill(&owner, other, BLOCK_BYTES, rig.seed())?;
                allocator.free(other).or_say("free")?;
            }
            gate.open();
            // While the reader is at it, too; at some time in here the block may come back.
            for _ in 0..20 {
                let other = take(&allocator, &owner)?;
                rig.fill(&owner, other, BLOCK_BYTES, rig.seed())?;
                allocator.free(other).or_say("free")?;
            }
            rig.expect_none_wrong("a late reader")?;
            reads += 1;
        }
        allocator.check().or_say("a check")?;
    }
    Ok(format!("{reads} reads, each {} ms after the free, 0 words wrong", delay_ns / 1_000_000))
}

/// Blocks are handed out again exactly when they may be.
pub(crate) fn reuse(rig: &Rig, short: bool) -> Result<String, String> {
    let rounds = if short { 2 } else { 50 };
    let (owner, other) = (rig.stream()?, rig.stream()?);
    let mut gate = Gate::new(rig)?;
    for settings in ["expandable_segments:False", "expandable_segments:True"] {
        let allocator = rig.allocator(settings)?;
        for _ in 0..rounds {
            let addr = take(&allocator, &owner)?;
            allocator.free(addr).or_say("free")?;
            must(take(&allocator, &owner)? == addr, "its own stream gets a block back at once")?;
            must(take(&allocator, &other)? != addr, "another stream does not get it")?;
            // One more in the cache: the driver may not give memory while a kernel spins.
            let spare = take(&allocator, &owner)?;
            allocator.free(spare).or_say("free")?;
            allocator.record_stream(addr, id_of(&other)).or_say("record_stream")?;
            gate.hold(&other)?;
            allocator.free(addr).or_say("free")?;
            let meanwhile = take(&allocator, &owner)?;
            must(meanwhile != addr, "a block that another stream holds is not handed out")?;
            gate.open();
            other.synchronize().or_say("waiting for a stream")?;
            must(take(&allocator, &owner)? == addr, "once that stream is done, it is")?;
            // All that is live goes back, so that the next round begins as this one did.
            for block in allocator.snapshot().iter().flat_map(|segment| &segment.blocks) {
                // What is not live is refused, which is what we want of it.
                let _ = allocator.free(block.span.addr);
            }
        }
        allocator.check().or_say("a check")?;
    }
    Ok(format!("{} rounds", 2 * rounds))
}

/// Buffers in launches on streams of others: everybody waits for everybody he must, also whoever
/// gets the memory next.
pub(crate) fn buffers(rig: &Rig, short: bool) -> Result<String, String> {
    let rounds = if short { 2 } else { 50 };
    let allocator = larder::Allocator::builder().cuda_device(Arc::clone(&rig.device));
    let allocator = allocator.or_say("an allocator")?;
    let stream = || allocator.new_stream().or_say("a stream");
    let (owner, writer, reader) = (stream()?, stream()?, stream()?);
    let of = |stream: &larder::Stream| stream.cuda().cloned().ok_or("a real stream");
    let (on_owner, on_writer, on_reader) = (of(&owner)?, of(&writer)?, of(&reader)?);
    strangers(&allocator)?;
    let mut gate = Gate::new(rig)?;
    let len = (BLOCK_BYTES / 4) as usize;
    for _ in 0..rounds {
        let mut buffer = allocator.alloc::<u32>(len, &owner).or_say("a buffer")?;
        let seed = rig.seed();
        // Whoever reads waits for whoever writes, which waits for the gate.
        gate.hold(&on_writer)?;
        rig.fill_buffer(&on_writer, &mut buffer, seed)?;
        rig.verify_buffer(&on_reader, &buffer, seed)?;
        let place = buffer.addr();
        drop(buffer);
        // Its memory again, at once; but what is done there comes after all that.
        let mut next = allocator.alloc::<u32>(len, &owner).or_say("a buffer")?;
        must(next.addr() == place, "its own stream gets a buffer back at once")?;
        rig.fill_buffer(&on_owner, &mut next, rig.seed())?;
        gate.open();
        rig.expect_none_wrong("a buffer on streams of others")?;
    }
    Ok(format!("{rounds} rounds"))
}

/// The default streams of all GPUs have the same number, and those of others are refused all the
/// same.
fn strangers(allocator: &larder::Allocator) -> Result<(), String> {
    let simulated = larder::Allocator::simulated(0).or_say("a simulated GPU")?;
    let (own, foreign) = (allocator.default_stream(), simulated.default_stream());
    must(own.id() == foreign.id(), "default streams have one number")?;
    drop(allocator.alloc::<u32>(1, own).or_say("a buffer")?);
    let refused = allocator.alloc::<u32>(1, foreign);
    must(matches!(refused, Err(larder::Error::ForeignStream)), "a stranger's stream is refused")
}

fn take(allocator: &Allocator, stream: &cudarc::driver::CudaStream) -> Result<Addr, String> {
    allocator.malloc(BLOCK_BYTES, id_of(stream)).or_say("a block")
}

fn must(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("it does not hold that {what}")) }
}
