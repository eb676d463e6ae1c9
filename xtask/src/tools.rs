//! Tools of others, installed under target/tools by version and checksum (xtask/tools.txt).
//!
//! cargo-deny is not among them: nobody packs a prebuilt one of today, to build it takes longer
//! than all else, and its list of advisories lies where not every machine reaches.
//! `.github/workflows/deny.yml` runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::file;
use crate::programs::target_folder;

/// Every link between the pages of the repository leads to a file and to a heading that exist.
pub(crate) fn check_links(root: &Path) -> Result<(), String> {
    let mut lychee = Command::new(installed(root, "lychee")?);
    lychee.args(["--offline", "--include-fragments", "--no-progress", "--quiet"]);
    lychee.args(["--exclude-path", "(^|/)(target|node_modules|.venv)/", "./**/*.md"]);
    command::run(lychee.current_dir(root))
}

/// Python is as ruff.toml has it, and the C++ of torch/ and of the stand-in for the driver is as
/// .clang-format has it.
pub(crate) fn check_format(root: &Path) -> Result<(), String> {
    let mut ruff = Command::new(installed(root, "ruff")?);
    ruff.args(["format", "--check", "--quiet", "--no-cache", "python", "torch", "workloads"]);
    command::run(ruff.current_dir(root))?;
    let mut files = Command::new("git");
    files.args(["-c", "safe.directory=*", "ls-files", "--"]);
    for folder in ["torch", "crates/larder-proof/stand_in"] {
        files.args(["cpp", "hpp", "h"].map(|ending| format!("{folder}/*.{ending}")));
    }
    let files = command::output(files.current_dir(root))?;
    let mut format = Command::new(installed(root, "clang-format")?);
    format.args(["--dry-run", "-Werror"]).args(files.lines());
    command::run(format.current_dir(root))
}

/// Where a tool lies. All are installed together, unless they are there.
fn installed(root: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = target_folder(root).join("tools");
    let list = root.join("xtask/tools.txt");
    let (complete, wanted) = (folder.join("complete"), file::read(&list)?);
    let tool = folder.join("bin").join(name);
    if tool.is_file() && file::read(&complete).is_ok_and(|text| text == wanted) {
        return Ok(tool);
    }
    command::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
        .args(["--retries=1", "--timeout=20", "--no-deps", "--only-binary=:all:"])
        .args(["--require-hashes", "--requirement"]);
    command::output(pip.arg(&list)).map_err(|sentence| {
        format!("`{name}` is not in {}, and pip cannot fetch it: {sentence}", folder.display())
    })?;
    file::write(&complete, wanted)?;
    Ok(tool)
}
