//! Any bytes as a snapshot in JSON: never a panic, and what is accepted is the same when it was
//! written and read again, as JSON and as a pickle, and can be shown as a trace and turned into
//! operations.
#![no_main]

use larder_sim::script::Script;
use larder_snapshot::Snapshot;
use larder_snapshot::perfetto;
use larder_snapshot::pickle::Limits;
use larder_study::recording::Recording;
use libfuzzer_sys::fuzz_target;

fn json(snapshot: &Snapshot) -> Vec<u8> {
    let mut json = Vec::new();
    snapshot.write_json(&mut json).expect("memory takes it");
    json
}

fuzz_target!(|data: &[u8]| {
    let Ok(snapshot) = Snapshot::read_json(data) else { return };
    let written = json(&snapshot);
    let again = Snapshot::read_json(&written[..]).expect("what was written can be read");
    assert_eq!(json(&again), written);

    let mut pickle = Vec::new();
    snapshot.write_pickle(&mut pickle).expect("memory takes it");
    let limits = Limits { length_bytes: 1 << 24, memory_bytes: 256 << 20 };
    Snapshot::read(&pickle[..], limits, |_| ()).expect("what was written can be read");

    perfetto::write(&snapshot, &mut Vec::new()).expect("memory takes it");
    for device in 0..snapshot.device_count().min(3) as u32 {
        if let Ok(recording) = Recording::from_snapshot(&snapshot, device) {
            let text: String = recording.ops.iter().map(|op| format!("{op}\n")).collect();
            assert_eq!(Script::parse(&text).as_ref(), Ok(&recording.ops));
        }
    }
});
