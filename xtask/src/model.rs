//! The lock, checked by model.

use std::path::Path;
use std::process::Command;

use crate::command;
use crate::programs::target_folder;

/// Runs the lock's model. It is built apart: loom puts its own atomics and threads in place of the
/// standard library's.
pub(crate) fn run(root: &Path, cargo: &Path) -> Result<(), String> {
    let mut test = Command::new(cargo);
    test.args(["test", "--quiet", "-p", "larder-lock", "--lib", "--test", "model"])
        .current_dir(root);
    test.env("CARGO_TARGET_DIR", target_folder(root).join("loom"));
    command::run(test.env("RUSTFLAGS", "--cfg loom"))
}
