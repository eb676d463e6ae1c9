//! The driver's own pool behind the same interface: `backend:cudaMallocAsync`.

use larder::{Allocator, Error};
use larder_core::types::{Addr, MIB};
use larder_sim::random::Random;

use crate::rig::{Explain, Rig};

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let steps = if short { 200 } else { 5000 };
    let allocator = Allocator::builder()
        .settings("backend:cudaMallocAsync")
        .or_say("settings")?
        .cuda_device(std::sync::Arc::clone(&rig.device))
        .or_say("an allocator")?;
    let streams =
        [allocator.new_stream().or_say("a stream")?, allocator.new_stream().or_say("a stream")?];
    let [first, second] = [&streams[0], &streams[1]].map(|stream| stream.cuda());
    let (first, second) = first.zip(second).ok_or("real streams")?;
    let mut random = Random::new(11);
    let mut live = Vec::new();
    for _ in 0..steps {
        if live.len() < 40 && random.chance(0.55) {
            let size_bytes = random.between(4, 16 * MIB);
            let block = allocator.alloc_block(size_bytes, &streams[0]).or_say("a block")?;
            let seed = rig.seed();
            rig.fill(first, Addr(block.addr()), size_bytes, seed)?;
            if random.chance(0.2) {
                second.join(first).or_say("one stream behind another")?;
                rig.delay(second, 50_000)?;
                rig.verify(second, Addr(block.addr()), size_bytes, seed)?;
                block.record_stream(&streams[1]).or_say("record_stream")?;
            }
            live.push((block, seed));
        } else if !live.is_empty() {
            let (block, seed) = live.swap_remove(random.below(live.len() as u64) as usize);
            rig.verify(first, Addr(block.addr()), block.size_bytes(), seed)?;
            block.free().or_say("free")?;
        }
    }
    drop(live);
    if let Some(error) = allocator.take_drop_error() {
        return Err(format!("a block was not freed: {error}"));
    }
    rig.expect_none_wrong("the driver's own pool")?;
    let peak = allocator.stats().reserved_bytes.all.peak;
    allocator.set_memory_fraction(0.001).or_say("a cap")?;
    let refused = allocator.alloc_block(64 << 30, &streams[0]);
    if refused.as_ref().err().and_then(Error::out_of_memory).is_none() {
        return Err(format!("a request above the cap gives {refused:?}"));
    }
    if allocator.snapshot() != Err(Error::NotWithAsync("tell its blocks")) {
        return Err("a snapshot of the driver's pool is not refused".to_owned());
    }
    allocator.empty_cache().or_say("emptying the cache")?;
    Ok(format!("{steps} steps, {} MiB reserved at the peak, 0 words wrong", peak as u64 / MIB))
}
