//! A wheel tried under PyTorch itself, of each version, on a stand-in for the GPU, where nothing
//! can be compiled.

use std::fs;
use std::path::Path;

use crate::command;
use crate::file;
use crate::python::Environment;
use crate::torch::Torch;
use crate::verdicts;

/// The memory of the stand-in. What is not written to costs nothing.
const MEMORY_BYTES: u64 = 8 << 30;
/// How often each start is timed, which is told; a machine that does other work proves nothing by
/// it.
const TIMES: &str = "3";

/// Tries the wheel with these versions, one after the other: an environment has five gigabytes.
pub(super) fn run(
    root: &Path,
    target: &Path,
    wheel: &Path,
    versions: &[Torch],
) -> Result<(), String> {
    let stand_in = verdicts::build_stand_in(root, target, &target.join("wheel/stand-in"))?;
    for torch in versions {
        let folder = target.join(format!("wheel/torch-{torch}"));
        eprintln!("==> PyTorch {torch} in {}", folder.display());
        let environment = Environment { folder: folder.clone(), target: target.to_owned() };
        environment.prepare(&[format!("torch=={torch}"), "numpy==2.4.6".to_owned()])?;
        let mut python = environment.python();
        python
            .arg(root.join("torch/card/install.py"))
            .arg(wheel)
            .args(["--times", TIMES, "--no-limit"])
            .env("LARDER_STAND_IN_MEMORY", MEMORY_BYTES.to_string())
            .env("LD_LIBRARY_PATH", &stand_in)
            .env("LD_PRELOAD", stand_in.join("libcudart.so.13"));
        command::run(&mut python)
            .map_err(|error| format!("{error}: the wheel under PyTorch {torch}"))?;
        fs::remove_dir_all(&folder).map_err(file::named(&folder))?;
    }
    Ok(())
}
