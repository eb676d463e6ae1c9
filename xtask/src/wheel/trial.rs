//! A wheel tried under PyTorch itself, of each version, on a stand-in for the GPU, where nothing
//! can be compiled.

use std::fs;
use std::path::Path;

use crate::python::Environment;
use crate::repository::Repository;
use crate::torch::Torch;
use crate::verdicts::{build_stand_in, on_stand_in};
use crate::{command, file};

/// The memory of the stand-in. What is not written to costs nothing.
const MEMORY_BYTES: u64 = 8 << 30;
/// How often each start is timed, which is told; a machine that does other work proves nothing by
/// it.
const TIMES: &str = "3";

/// Tries the wheel with these versions, one after the other: an environment has five gigabytes.
pub(super) fn run(repo: &Repository, wheel: &Path, versions: &[Torch]) -> Result<(), String> {
    let stand_in = repo.target.join("wheel/stand-in");
    build_stand_in(repo, &stand_in)?;
    for torch in versions {
        let folder = repo.target.join(format!("wheel/torch-{torch}"));
        eprintln!("==> PyTorch {torch} in {}", folder.display());
        let environment = Environment { repo, folder: folder.clone() };
        environment.prepare(&[format!("torch=={torch}"), "numpy==2.4.6".to_owned()])?;
        let python = on_stand_in(&environment, &stand_in, MEMORY_BYTES);
        let python = python.arg("torch/card/install.py").arg(wheel);
        command::run(python.args(["--times", TIMES, "--no-limit"]))
            .map_err(|error| format!("{error}: the wheel under PyTorch {torch}"))?;
        fs::remove_dir_all(&folder).map_err(file::named(&folder))?;
    }
    Ok(())
}
