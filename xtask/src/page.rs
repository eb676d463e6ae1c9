//! The page of `larder report`: built from its sources, compared with what is shipped, and used in
//! a real browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::programs::{build, target_folder};
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

pub(crate) fn run(root: &Path, cargo: &Path, page: Page) -> Result<(), String> {
    let workshop = Workshop::open(root)?;
    if page.is_built {
        return workshop.build(&workshop.folder.join(SHIPPED));
    }
    workshop.check()?;
    workshop.test(root, cargo)
}

/// The folder of the page's sources, with the tools in it that its lockfile names.
pub(crate) struct Workshop {
    folder: PathBuf,
    pub(crate) target: PathBuf,
}

impl Workshop {
    /// Fetches the tools unless they are there.
    pub(crate) fn open(root: &Path) -> Result<Self, String> {
        let folder = root.join(FOLDER);
        let lock = folder.join("package-lock.json");
        let wanted = file::read(&lock)?;
        let complete = folder.join("node_modules/complete");
        if !fs::read_to_string(&complete).is_ok_and(|have| have == wanted) {
            let mut npm = Command::new("npm");
            npm.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&folder);
            command::run(npm.stdout(Stdio::null())).map_err(|sentence| {
                format!("{sentence}; the page's tools need Node 20 or newer, npm and its registry")
            })?;
            file::write(&complete, wanted)?;
        }
        let target = target_folder(root);
        file::create(&target.join("page"))?;
        Ok(Self { folder, target })
    }

    fn node(&self) -> Command {
        let mut node = Command::new("node");
        node.current_dir(&self.folder);
        node
    }

    fn build(&self, out: &Path) -> Result<(), String> {
        command::run(self.node().arg("node_modules/typescript/bin/tsc").arg("--noEmit"))?;
        command::run(self.node().arg("build.mjs").arg(out))
    }

    /// What is shipped is what the sources make.
    fn check(&self) -> Result<(), String> {
        let fresh = self.target.join("page/fresh.html");
        self.build(&fresh)?;
        if file::read(&fresh)? == file::read(&self.folder.join(SHIPPED))? {
            return Ok(());
        }
        Err(format!(
            "{FOLDER}/{SHIPPED} is not what its sources make; `cargo xtask page --build` builds \
             it anew"
        ))
    }

    /// Builds the program and uses its pages in the browser.
    fn test(&self, root: &Path, cargo: &Path) -> Result<(), String> {
        build(root, cargo, &self.target, &["-p", "larder-cli", "--bin", "larder"])?;
        command::run(
            self.in_browser()?
                .args(["--test", "--test-reporter=spec"])
                .arg("tests/browser.test.mjs"),
        )
    }

    /// Node, told where the program and the browser are.
    pub(crate) fn in_browser(&self) -> Result<Command, String> {
        install_chromium()?;
        let mut node = self.node();
        node.env("LARDER", self.target.join("release/larder"));
        node.env("SCRATCH", self.target.join("page"));
        node.env("CHROMIUM", CHROMIUM);
        Ok(node)
    }
}

/// Installs the browser where it is missing. Without it the page is not tested, which is a failure.
fn install_chromium() -> Result<(), String> {
    if Path::new(CHROMIUM).is_file() {
        return Ok(());
    }
    eprintln!("==> {CHROMIUM} is missing: apt-get install chromium");
    let quiet = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        command::run(&mut apt)
    };
    let installed = quiet(&["update", "-qq"])
        .and_then(|()| quiet(&["install", "-y", "-qq", "--no-install-recommends", "chromium"]));
    installed.map_err(|sentence| {
        format!(
            "the page is tested in Chromium, which is not here and cannot be installed: {sentence}"
        )
    })
}
