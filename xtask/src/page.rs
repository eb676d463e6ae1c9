//! The page of `larder report`: built from its sources, compared with what is shipped, and used in
//! a real browser.

use std::path::{Path, PathBuf};

use clap::Args;
use xshell::{Cmd, Shell, cmd};

use crate::repository::Repository;
use crate::{command, file};

/// Where its sources are, and what is shipped of it.
const FOLDER: &str = "crates/larder-report/page";
const SHIPPED: &str = "dist/page.html";
/// The browser, as Debian packs it.
const CHROMIUM: &str = "/usr/bin/chromium";

/// What is done about the page. Without an option it is compared with its sources, and used.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Page {
    /// Instead, build the page that is shipped anew; for whoever changed its sources.
    #[arg(long = "build")]
    is_built: bool,
    /// Instead, measure how long pages of recordings of up to ten million events take to show, and
    /// how they move, and write a section of docs/benchmarks.md; it takes minutes.
    #[arg(long = "measure", conflicts_with = "is_built")]
    pub(crate) is_measured: bool,
}

pub(crate) fn run(repo: &Repository, page: Page) -> Result<(), String> {
    let workshop = Workshop::open(repo)?;
    if page.is_built {
        return workshop.build(Path::new(SHIPPED));
    }
    // What is shipped is what the sources make.
    let fresh = workshop.scratch.join("fresh.html");
    workshop.build(&fresh)?;
    if file::read(&fresh)? != file::read(&repo.root.join(FOLDER).join(SHIPPED))? {
        return Err(format!(
            "{FOLDER}/{SHIPPED} is not what its sources make; `cargo xtask page --build` builds \
             it anew"
        ));
    }
    let test = workshop.in_browser()?.args(["--test", "--test-reporter=spec"]);
    command::run(test.arg("tests/browser.test.mjs"))
}

/// The folder of the page's sources, with the tools in it that its lockfile names.
pub(crate) struct Workshop<'a> {
    repo: &'a Repository,
    /// In the folder.
    shell: Shell,
    pub(crate) scratch: PathBuf,
}

impl<'a> Workshop<'a> {
    /// Fetches the tools unless they are there.
    pub(crate) fn open(repo: &'a Repository) -> Result<Self, String> {
        let (shell, folder) = (repo.shell.clone(), repo.root.join(FOLDER));
        shell.change_dir(&folder);
        let wanted = file::read(&folder.join("package-lock.json"))?;
        file::unless_complete(&folder.join("node_modules/complete"), &wanted, || {
            let npm = cmd!(shell, "npm ci --no-audit --no-fund --loglevel=error");
            command::run(npm.ignore_stdout()).map_err(|sentence| {
                format!("{sentence}; the page's tools need Node 20 or newer, npm and its registry")
            })
        })?;
        let scratch = repo.target.join("page");
        file::create(&scratch)?;
        Ok(Self { repo, shell, scratch })
    }

    fn build(&self, out: &Path) -> Result<(), String> {
        command::run(cmd!(self.shell, "node node_modules/typescript/bin/tsc --noEmit"))?;
        command::run(cmd!(self.shell, "node build.mjs {out}"))
    }

    /// Node, told where the program and the browser are.
    pub(crate) fn in_browser(&self) -> Result<Cmd<'_>, String> {
        install_chromium(&self.shell)?;
        let node = self.shell.cmd("node").env("LARDER", self.repo.larder()?);
        Ok(node.env("SCRATCH", &self.scratch).env("CHROMIUM", CHROMIUM))
    }
}

/// Installs the browser where it is missing. Without it the page is not tested, which is a failure.
fn install_chromium(shell: &Shell) -> Result<(), String> {
    if Path::new(CHROMIUM).is_file() {
        return Ok(());
    }
    eprintln!("==> {CHROMIUM} is missing: apt-get install chromium");
    let _nobody_asks = shell.push_env("DEBIAN_FRONTEND", "noninteractive");
    let words = ["--no-install-recommends", "chromium"];
    command::run(cmd!(shell, "apt-get update -qq").ignore_stdout())
        .and_then(|()| {
            command::run(cmd!(shell, "apt-get install -y -qq {words...}").ignore_stdout())
        })
        .map_err(|sentence| {
            format!(
                "the page is tested in Chromium, which is not here and cannot be installed: \
                 {sentence}"
            )
        })
}
