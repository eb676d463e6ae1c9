//! Any bytes as a tape: never a panic, never more than what the bytes say, and what is accepted
//! can be written as JSON, read back, and turned into operations.
#![no_main]

use larder_sim::script::Script;
use larder_snapshot::{Epoch, Snapshot};
use larder_study::recording::Recording;
use larder_tape::{MAGIC, Tape};
use libfuzzer_sys::fuzz_target;

const RECORD_BYTES: usize = 64;

/// The records of a tape around the bytes: every record has its number, and the first bytes are a
/// tape's, so that more than the first check is reached.
fn mended(data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    for (number, record) in data.chunks_exact(RECORD_BYTES).enumerate() {
        let at = bytes.len();
        bytes.extend(record);
        bytes[at + 4..at + 8].copy_from_slice(&(number as u32).to_le_bytes());
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    // A tape begins with a letter; anything else asks for the other way.
    let bytes = if first == MAGIC[0] { data.to_vec() } else { mended(rest) };
    let Ok(tape) = Tape::read(&bytes[..]) else { return };
    let texts_bytes: usize = tape.texts.iter().map(String::len).sum();
    let frames: usize = tape.stacks.iter().map(Vec::len).sum();
    assert!(tape.events.len() * RECORD_BYTES <= bytes.len());
    assert!(texts_bytes <= bytes.len() && frames * 4 <= bytes.len());

    let snapshot = Snapshot::of_tape(&tape, Epoch::default());
    let mut json = Vec::new();
    snapshot.write_json(&mut json).expect("memory takes it");
    let again = Snapshot::read_json(&json[..]).expect("what was written can be read");
    let mut twice = Vec::new();
    again.write_json(&mut twice).expect("memory takes it");
    assert_eq!(json, twice);
    for device in 0..snapshot.device_count().min(3) as u32 {
        if let Ok(recording) = Recording::from_snapshot(&snapshot, device) {
            let text: String = recording.ops.iter().map(|op| format!("{op}\n")).collect();
            assert_eq!(Script::parse(&text).as_ref(), Ok(&recording.ops));
        }
    }
});
