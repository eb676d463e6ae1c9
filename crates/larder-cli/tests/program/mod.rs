//! The program, run as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A file in the folder of this test run.
pub(crate) fn scratch(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, text).expect("the scratch folder can be written");
    path
}

pub(crate) fn larder(words: &[&str], file: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.args(&words[..1]).args(file).args(&words[1..]);
    command.output().expect("the program runs")
}

/// The snapshot of a script's run.
pub(crate) fn recorded(name: &str, script: &Path, more: &[&str]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let out = path.to_str().expect("a plain path");
    stdout(&larder(&[&["snapshot", "-o", out], more].concat(), Some(script)));
    path
}

pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub(crate) fn json(words: &[&str], file: &Path) -> Value {
    serde_json::from_str(&stdout(&larder(words, Some(file)))).expect("JSON")
}

/// A recording in JSON as stock PyTorch writes it, which says nothing of the card and of a cap.
#[allow(dead_code)] // Not every test has such a recording.
pub(crate) fn as_stock(name: &str, recording: &Path) -> PathBuf {
    let text = fs::read_to_string(recording).expect("a recording");
    let mut snapshot: Value = serde_json::from_str(&text).expect("JSON");
    let settings = snapshot["allocator_settings"].as_object_mut().expect("settings");
    settings.remove("larder_devices");
    scratch(name, &snapshot.to_string())
}
