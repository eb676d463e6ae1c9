//! Any bytes as the name of another process's memory: never a panic, what is refused leaves nothing
//! behind, and what is opened can be closed as often as it was opened.
#![no_main]

use std::sync::Arc;

use larder_core::types::MIB;
use larder_core::{Addr, Allocator, Config, Error, Policy, StreamId};
use larder_sim::{SimDevice, SimOptions, Wire};
use libfuzzer_sys::fuzz_target;

fn process(wire: &Wire, settings: &str, policy: Policy) -> (Arc<SimDevice>, Allocator) {
    let options = SimOptions::default().memory_bytes(256 * MIB).wire(wire.clone());
    let device = Arc::new(SimDevice::new(options));
    let config = Config::parse(settings).expect("the settings are ours");
    (device.clone(), Allocator::new(device, config, policy))
}

/// Bytes that another process really wrote, changed here and there.
fn changed(mut real: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    let (places, rest) = changes.as_chunks::<3>();
    for &[at, how, byte] in places {
        let at = usize::from(at) % (real.len() + 1);
        match how % 4 {
            0 if at < real.len() => real[at] = byte,
            1 => real.insert(at, byte),
            2 if at < real.len() => _ = real.remove(at),
            _ => real.truncate(at.max(usize::from(byte))),
        }
    }
    real.extend(rest);
    real
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let wire = Wire::default();
    let expandable = kind & 1 != 0;
    let settings = if expandable { "expandable_segments:True,page_size_mb:2" } else { "" };
    let policy = if kind & 4 != 0 { Policy::tight() } else { Policy::larder() };
    let (_owner_device, owner) = process(&wire, settings, policy);
    let (device, other) = process(&wire, "", Policy::larder());
    let size_bytes = u64::from(kind >> 4) * MIB + 3000;
    // What is free lies in pieces, so that the tight policy may have to put it together.
    let pieces = [(); 8].map(|()| owner.malloc(3 * MIB, StreamId(0)).expect("there is memory"));
    for &piece in pieces.iter().step_by(2) {
        owner.free(piece).expect("it is live");
    }
    let block = owner.malloc(size_bytes, StreamId(0)).expect("there is memory");
    let real = owner.share(block).expect("it is live").bytes;
    let bytes = if kind & 2 != 0 { changed(real, rest) } else { rest.to_vec() };

    let before = (device.used_bytes(), device.page_count());
    match other.open_shared(&bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(addr) => {
            assert_ne!(addr, Addr(0));
            assert_eq!(other.open_shared(&bytes), Ok(addr));
            for _ in 0..2 {
                other.close_shared(addr).expect("it is open");
            }
            assert_eq!(other.close_shared(addr), Err(Error::NotOpened(addr)));
        }
    }
    assert_eq!((device.used_bytes(), device.page_count()), before);
    let calls = device.calls();
    assert_eq!(calls.reserve, calls.unreserve);
    owner.free(block).expect("it is still live");
    assert_eq!((owner.check(), other.check()), (Ok(()), Ok(())));
});
