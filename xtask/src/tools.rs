//! Tools of others, installed under target/tools by version and checksum (xtask/tools.txt).
//!
//! cargo-deny is not among them: nobody packs a prebuilt one of today, to build it takes longer
//! than all else, and its list of advisories lies where not every machine reaches.
//! `.github/workflows/deny.yml` runs it.

use std::path::PathBuf;

use xshell::cmd;

use crate::command::{output, run};
use crate::file;
use crate::python::QUIET;
use crate::repository::Repository;

/// Every link between the pages of the repository leads to a file and to a heading that exist.
pub(crate) fn check_links(repo: &Repository) -> Result<(), String> {
    let lychee = installed(repo, "lychee")?;
    let except = "(^|/)(target|node_modules|.venv)/";
    run(cmd!(
        repo.shell,
        "{lychee} --offline --include-fragments --no-progress --quiet --exclude-path {except}
        ./**/*.md"
    ))
}

/// Python is as ruff.toml has it, and the C++ of torch/ and of the stand-in for the driver is as
/// .clang-format has it.
pub(crate) fn check_format(repo: &Repository) -> Result<(), String> {
    let ruff = installed(repo, "ruff")?;
    run(cmd!(repo.shell, "{ruff} format --check --quiet --no-cache python torch workloads"))?;
    let folders = ["torch", "crates/larder-proof/stand_in"];
    let endings = ["cpp", "hpp", "h"];
    let kinds = folders.iter().flat_map(|folder| endings.map(|end| format!("{folder}/*.{end}")));
    let files = output(cmd!(repo.shell, "git -c safe.directory=* ls-files -- {kinds...}"))?;
    let (format, files) = (installed(repo, "clang-format")?, files.lines());
    run(cmd!(repo.shell, "{format} --dry-run -Werror {files...}"))
}

/// Where a tool lies. All are installed together, unless they are there.
fn installed(repo: &Repository, name: &str) -> Result<PathBuf, String> {
    let folder = repo.target.join("tools");
    let list = repo.root.join("xtask/tools.txt");
    let (complete, wanted) = (folder.join("complete"), file::read(&list)?);
    let tool = folder.join("bin").join(name);
    if tool.is_file() && file::read(&complete).is_ok_and(|text| text == wanted) {
        return Ok(tool);
    }
    run(cmd!(repo.shell, "python3 -m venv --clear {folder}"))?;
    output(cmd!(
        repo.shell,
        "{folder}/bin/python -m pip install {QUIET...} --no-deps --only-binary=:all:
        --require-hashes --requirement {list}"
    ))
    .map_err(|sentence| {
        format!("`{name}` is not in {}, and pip cannot fetch it: {sentence}", folder.display())
    })?;
    file::write(&complete, wanted)?;
    Ok(tool)
}
