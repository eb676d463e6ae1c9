//! A full card: out of memory in clear words, and then all is well again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::device::Device;
use larder_core::error::Error;
use larder_core::types::{Bytes, GIB, MIB};

use crate::rig::{Explain, Rig, id_of};

/// How often the card is filled.
const ROUNDS: usize = 2;

pub(crate) fn run(rig: &Rig, short: bool) -> Result<String, String> {
    let mut figures = Vec::new();
    for settings in ["expandable_segments:False", "expandable_segments:True", "policy:tight"] {
        // In short, blocks are as large as makes the card full soon.
        let total_bytes = rig.device.properties().total_bytes;
        let block_bytes = if short { total_bytes / 32 / (2 * MIB) * (2 * MIB) } else { GIB };
        let held = fill_and_recover(rig, settings, block_bytes).or_say(settings)?;
        figures.push(Bytes(held).to_string());
    }
    let processes = rig.device.processes().len();
    let [plain, expandable, tight] = [&figures[0], &figures[1], &figures[2]];
    Ok(format!(
        "full at {plain} plain, {expandable} expandable, {tight} tight; {processes} processes known"
    ))
}

fn fill_and_recover(rig: &Rig, settings: &str, block_bytes: u64) -> Result<u64, String> {
    let [stream, other] = [rig.stream()?, rig.stream()?];
    let allocator = rig.allocator(settings)?;
    let observed = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&observed);
    allocator.on_out_of_memory(move |_| _ = counter.fetch_add(1, Ordering::Relaxed));
    let mut most = 0;
    for _ in 0..ROUNDS {
        let mut blocks = Vec::new();
        let report = loop {
            match allocator.malloc(block_bytes, id_of(&stream)) {
                Ok(addr) => blocks.push(addr),
                Err(Error::OutOfMemory(report)) => break report,
                Err(error) => return Err(error.to_string()),
            }
            if blocks.len() > 100_000 {
                return Err("the card does not run out of memory".to_owned());
            }
        };
        eprintln!("{report}");
        if report.free_bytes > 2 * block_bytes || !report.to_string().contains("Tried to allocate")
        {
            return Err(format!("the report makes no sense: {report}"));
        }
        // What is there works, to its first and last byte, on a full card.
        let seed = rig.seed();
        for &addr in [blocks.first(), blocks.last()].into_iter().flatten() {
            rig.fill(&stream, addr, block_bytes, seed)?;
            rig.verify(&stream, addr, block_bytes, seed)?;
        }
        rig.expect_none_wrong("a full card")?;
        most = most.max(allocator.stats().reserved_bytes.all.current as u64);
        // One block back is one block again, for the same stream.
        let last = blocks.pop().ok_or("nothing fitted")?;
        allocator.free(last).or_say("free")?;
        blocks.push(allocator.malloc(block_bytes, id_of(&stream)).or_say("what was just freed")?);
        for addr in blocks {
            allocator.free(addr).or_say("free")?;
        }
        // All is cached for one stream; another one needs it, and gets it.
        let large = allocator.malloc(4 * block_bytes, id_of(&other)).or_say("another stream")?;
        rig.fill(&other, large, 4 * block_bytes, seed)?;
        rig.verify(&other, large, 4 * block_bytes, seed)?;
        rig.expect_none_wrong("after recovery")?;
        allocator.free(large).or_say("free")?;
    }
    if observed.load(Ordering::Relaxed) != ROUNDS as u64 {
        return Err("the observers were not told of each failure once".to_owned());
    }
    allocator.check().or_say("a check")?;
    Ok(most)
}
