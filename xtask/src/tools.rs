//! Tools of others, installed under target/tools by version and checksum (xtask/tools.txt).
//!
//! cargo-deny and cargo-hack are not among them: nobody packs prebuilt ones of today, and to build
//! them takes minutes (CONTRIBUTING.md). `.github/workflows/deny.yml` runs cargo-deny.

use std::path::PathBuf;

use xshell::cmd;

use crate::command::{output, run};
use crate::file;
use crate::python::Environment;
use crate::repository::Repository;

/// The tools, with their checksums.
const LIST: &str = "xtask/tools.txt";

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
    let environment = Environment { repo, folder: repo.target.join("tools") };
    let list = file::read(&repo.root.join(LIST))?;
    let words = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", LIST];
    environment.install(&list, &words.map(str::to_owned))?;
    Ok(environment.folder.join("venv/bin").join(name))
}
