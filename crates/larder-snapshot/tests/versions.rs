//! Versions: snapshots of each PyTorch, with the keys that came with it, are told apart and go
//! through our hands whole.

use larder_core::TorchVersion;
use larder_snapshot::pickle::Limits;
use larder_snapshot::{Action, Snapshot};
use serde_json::{Value, json};

/// A snapshot of a version, with the keys that it has.
fn written_by(version: TorchVersion) -> Value {
    let mut settings = json!({"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1});
    let mut entry = json!({
        "action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1,
        "compile_context": "N/A", "user_metadata": "",
    });
    let mut whole = json!({"segments": [], "external_annotations": []});
    if version >= TorchVersion::V2_12 {
        entry["pool_id"] = json!([0, 7]);
    }
    if version >= TorchVersion::V2_13 {
        settings["max_round_threshold"] = json!(-1);
        settings["max_cached_size"] = json!(-1);
    }
    let mut trace = vec![entry.clone()];
    if version >= TorchVersion::V2_14 {
        entry["action"] = json!("annotate");
        entry["user_metadata"] = json!("the weights");
        trace.push(entry.clone());
        // Written as the device's are, and with fewer keys.
        let frames = json!([{"name": "pin", "filename": "data.py", "line": 3}]);
        whole["host_segments"] = json!([
            {"device": -1, "address": 64, "total_size": 512},
            {"device": -1, "address": 4096, "total_size": 512, "segment_pool_id": [0, 0],
             "blocks": [
                {"address": 4096, "size": 512, "requested_size": 9, "state": "active_allocated",
                 "frames": frames},
                {"address": 4608, "size": 512, "requested_size": 0, "state": "inactive",
                 "frames": [], "more": 1},
            ]},
        ]);
        whole["host_traces"] = json!([
            {"action": "alloc", "addr": 64, "size": 512},
            {"action": "segment_alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 7,
             "compile_context": "c",
             "user_metadata": "m", "pool_id": [0, 1], "frames": frames},
            {"action": "oom", "device_free": 4096, "size": 512, "stream": -2, "more": [1]},
        ]);
    }
    if version >= TorchVersion::V2_15 {
        entry["action"] = json!("free_requested");
        entry["internal_metadata"] = json!("mallocWithAddress");
        trace.push(entry);
    }
    whole["device_traces"] = json!([trace]);
    whole["allocator_settings"] = settings;
    whole
}

fn read(value: &Value) -> Snapshot {
    Snapshot::read_json(value.to_string().as_bytes()).expect("a snapshot")
}

fn json_of(snapshot: &Snapshot) -> Value {
    let mut text = Vec::new();
    snapshot.write_json(&mut text).expect("memory can be written to");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn the_keys_tell_who_made_it() {
    for version in TorchVersion::ALL {
        // What 2.14 writes is what 2.15 writes.
        let told = if version == TorchVersion::V2_14 { TorchVersion::V2_15 } else { version };
        assert_eq!(read(&written_by(version)).torch_version(), Some(told), "{version}");
    }
    let mut later = written_by(TorchVersion::V2_11);
    later["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = json!("throw_on_cudamalloc_oom:True");
    assert_eq!(read(&later).torch_version(), Some(TorchVersion::V2_12), "by its settings");
    let mut bare = written_by(TorchVersion::V2_13);
    bare.as_object_mut().unwrap().remove("allocator_settings");
    assert_eq!(read(&bare).torch_version(), None);
}

#[test]
fn our_own_say_whose_decisions_they_are() {
    for (policy, told) in [("torch-2.13", Some(TorchVersion::V2_13)), ("larder", None)] {
        let mut own = written_by(TorchVersion::V2_15);
        own["allocator_settings"]["larder_policy"] = json!(policy);
        assert_eq!(read(&own).torch_version(), told);
    }
}

#[test]
fn all_keys_are_kept() {
    for version in TorchVersion::ALL {
        let value = written_by(version);
        let snapshot = read(&value);
        assert_eq!(json_of(&snapshot), value, "{version}");
        let mut pickle = Vec::new();
        snapshot.write_pickle(&mut pickle).expect("memory can be written to");
        let again = Snapshot::read(&pickle[..], Limits::default(), |_| {}).expect("our own pickle");
        assert_eq!(json_of(&again), value, "{version}, as a pickle");
    }
    let newest = read(&written_by(TorchVersion::V2_15));
    let actions: Vec<Action> = newest.trace(0).unwrap().iter().map(|entry| entry.action).collect();
    assert_eq!(actions, [Action::Alloc, Action::Annotate, Action::FreeRequested]);
    assert!(newest.more_of_entry(0, 2).unwrap().contains("mallocWithAddress"));
}
