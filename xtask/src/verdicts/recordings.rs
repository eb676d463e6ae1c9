//! Recordings of each version: PyTorch runs what a program did, with its history on, and a replay
//! of the snapshot under `--policy torch` comes to the same figures, with memory enough and with
//! too little.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Stage;
use crate::command::{number, output};
use crate::programs::{Programs, recordings};

/// The figures that must be equal.
const FIGURES: [&str; 4] =
    ["reserved_bytes.all.peak", "active_bytes.all.peak", "num_ooms", "num_alloc_retries"];

/// The part of what was reserved that is left the second time.
const SHORT: f64 = 0.97;

type Figures = [u64; FIGURES.len()];

/// Compares all recorded programs; how many runs were equal, and what was not.
pub(super) fn compare(
    stage: &Stage<'_>,
    programs: &Programs,
) -> Result<(usize, Vec<String>), String> {
    let folder = &stage.environment.folder;
    let path = |name: &str| folder.join(name);
    let (script, addresses) = (path("program.ops"), path("program.addresses"));
    let (snapshot, other) = (path("program.pickle"), path("short.pickle"));
    let (mut equal, mut different) = (0, Vec::new());
    let mut files = recordings(stage.root);
    files.retain(|file| file.extension().is_none_or(|extension| extension != "ops"));
    // Those beside the repository may be among those in it.
    files.sort_by_key(|file| file.file_name().map(ToOwned::to_owned));
    files.dedup_by_key(|file| file.file_name().map(ToOwned::to_owned));
    for file in files {
        eprintln!("==> {}, recorded and replayed", file.display());
        programs.write_trace(&file, &script, &addresses)?;
        let whole = record(stage, &script, &snapshot, super::MEMORY_BYTES)?;
        let short_bytes = (whole[0] as f64 * SHORT) as u64;
        let short = record(stage, &script, &other, short_bytes)?;
        for (memory_bytes, theirs) in [(super::MEMORY_BYTES, whole), (short_bytes, short)] {
            let ours = replay(programs, &snapshot, memory_bytes)?;
            if ours == theirs {
                equal += 1;
            } else {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                different.push(format!(
                    "{name} with {memory_bytes} bytes: {FIGURES:?} are {theirs:?}, replayed \
                     {ours:?}"
                ));
            }
        }
    }
    Ok((equal, different))
}

/// Runs a script on PyTorch's allocator and writes its snapshot.
fn record(
    stage: &Stage<'_>,
    script: &Path,
    out: &Path,
    memory_bytes: u64,
) -> Result<Figures, String> {
    let mut python = stage.on_stand_in(memory_bytes);
    python.arg(stage.root.join("torch/record.py")).arg(script).arg(out);
    // Nobody's settings but PyTorch's own.
    python.env_remove("PYTORCH_CUDA_ALLOC_CONF").env_remove("PYTORCH_ALLOC_CONF");
    figures(&mut python)
}

fn replay(programs: &Programs, snapshot: &Path, memory_bytes: u64) -> Result<Figures, String> {
    let mut larder = Command::new(&programs.larder);
    larder.arg("replay").arg(snapshot).args(["--policy", "torch", "--json", "--memory"]);
    figures(larder.arg(format!("{memory_bytes}B")))
}

/// The figures in the object that a program prints.
fn figures(command: &mut Command) -> Result<Figures, String> {
    let printed = output(command)?;
    let mut figures = [0; FIGURES.len()];
    for (figure, name) in figures.iter_mut().zip(FIGURES) {
        let found = number(&printed, name).map(|number| number as u64);
        // One that neither side tells is not equal on both.
        *figure = found.ok_or_else(|| format!("{command:?} tells no {name}"))?;
    }
    Ok(figures)
}

/// What is left of a run.
pub(super) fn clear(stage: &Stage<'_>) {
    for name in ["program.ops", "program.addresses", "program.pickle", "short.pickle"] {
        let _ = fs::remove_file(stage.environment.folder.join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_must_all_be_told() {
        let told = r#"{"active_bytes.all.peak": 2, "num_alloc_retries": 4,
            "num_ooms": 3, "reserved_bytes.all.peak": 1}"#;
        assert_eq!(figures(Command::new("echo").arg(told)), Ok([1, 2, 3, 4]));
        let missing = figures(Command::new("echo").arg("{\"num_ooms\":3}")).unwrap_err();
        assert!(missing.ends_with("tells no reserved_bytes.all.peak"), "{missing}");
    }
}
