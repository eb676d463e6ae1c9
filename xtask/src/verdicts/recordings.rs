//! Recordings of each version: PyTorch runs what a program did, with its history on, and a replay
//! of the snapshot under `--policy torch` comes to the same figures, with memory enough and with
//! too little.

use std::fs;
use std::path::Path;
use std::process::Command;

use xshell::cmd;

use super::Stage;
use crate::command::{number, output};
use crate::programs::Programs;
use crate::repository::is_script;

/// The figures that must be equal.
const FIGURES: [&str; 4] =
    ["reserved_bytes.all.peak", "active_bytes.all.peak", "num_ooms", "num_alloc_retries"];

/// The part of what was reserved that is left the second time.
const SHORT: f64 = 0.97;

type Figures = [u64; FIGURES.len()];

/// Compares all recorded programs; how many runs were equal, and what was not.
pub(super) fn compare(
    stage: &Stage<'_>,
    programs: &Programs<'_>,
) -> Result<(usize, Vec<String>), String> {
    let path = |name: &str| stage.environment.folder.join(name);
    let (script, addresses) = (path("program.ops"), path("program.addresses"));
    let (snapshot, other) = (path("program.pickle"), path("short.pickle"));
    let (mut equal, mut different) = (0, Vec::new());
    let mut files = stage.environment.repo.recordings();
    files.retain(|file| !is_script(file));
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
            let (larder, memory) = (&programs.larder, format!("{memory_bytes}B"));
            let words = ["--policy", "torch", "--json", "--memory", &memory];
            let shell = &stage.environment.repo.shell;
            let ours = figures(cmd!(shell, "{larder} replay {snapshot} {words...}"))?;
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
    for file in [script, addresses, snapshot, other] {
        let _ = fs::remove_file(file);
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
    let python = stage.on_stand_in(memory_bytes).args(["torch/record.py"]).args([script, out]);
    // Nobody's settings but PyTorch's own.
    figures(python.env_remove("PYTORCH_CUDA_ALLOC_CONF").env_remove("PYTORCH_ALLOC_CONF"))
}

/// The figures in the object that a program prints.
fn figures(command: impl Into<Command>) -> Result<Figures, String> {
    let printed = output(command)?;
    let mut figures = [0; FIGURES.len()];
    for (figure, name) in figures.iter_mut().zip(FIGURES) {
        let found = number(&printed, name).map(|number| number as u64);
        // One that neither side tells is not equal on both.
        *figure = found.ok_or_else(|| format!("{} tells no {name}", printed.trim()))?;
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_must_all_be_told() {
        let figures = |printed: &str| {
            let mut echo = Command::new("echo");
            echo.arg(printed);
            figures(echo)
        };
        let told = r#"{"active_bytes.all.peak": 2, "num_alloc_retries": 4,
            "num_ooms": 3, "reserved_bytes.all.peak": 1}"#;
        assert_eq!(figures(told), Ok([1, 2, 3, 4]));
        let missing = figures("{\"num_ooms\":3}").unwrap_err();
        assert!(missing.ends_with("tells no reserved_bytes.all.peak"), "{missing}");
    }
}
