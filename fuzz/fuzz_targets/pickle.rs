//! Any bytes as a pickle, as a snapshot, and as a recording: never a panic, never more memory than
//! a fixed multiple of the input, and what is accepted is a script that reads back the same.
#![no_main]

use larder_sim::script::Script;
use larder_snapshot::Snapshot;
use larder_snapshot::pickle::{self, KeepAll, Limits};
use larder_study::recording::Recording;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first bytes may ask for gzip, and then a small input can be a long one.
    let limits = Limits { length_bytes: 1 << 20, memory_bytes: 256 << 20 };
    if let Ok(read) = pickle::read(data, limits, KeepAll) {
        let fixed_bytes = 4 << 10;
        assert!(read.objects.memory_bytes() <= fixed_bytes + 64 * data.len() as u64);
    }
    let Ok(snapshot) = Snapshot::read(data, limits, |_| ()) else { return };
    for device in 0..snapshot.device_count().min(3) as u32 {
        for entry in snapshot.trace(device).unwrap_or_default() {
            let _ = snapshot.note(entry.note).user_metadata.map(|text| snapshot.text(text).len());
            let _ = entry.stack.map(|stack| snapshot.stack(stack).count());
        }
        if let Ok(recording) = Recording::from_snapshot(&snapshot, device) {
            let text: String = recording.ops.iter().map(|op| format!("{op}\n")).collect();
            assert_eq!(Script::parse(&text).as_ref(), Ok(&recording.ops));
        }
    }
});
