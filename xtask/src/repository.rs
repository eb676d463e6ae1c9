//! The repository: where it lies, where Cargo builds, and what is built and recorded in it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xshell::{Shell, cmd};

use crate::command::{output, run};

/// The repository.
pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    /// Where Cargo builds, and where runs may write.
    pub(crate) target: PathBuf,
    /// What it starts runs in the root, and builds into the target folder.
    pub(crate) shell: Shell,
}

impl Repository {
    /// The one of this crate. Cargo says at run time where the crate is; the place known to the
    /// compiler serves when the program is started by hand.
    pub(crate) fn here() -> Result<Self, String> {
        let manifest = env::var_os("CARGO_MANIFEST_DIR");
        let manifest = manifest.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().unwrap_or(Path::new(".")).to_owned();
        // Cargo takes the folder from where it was called; this program's commands run in the root.
        let target = env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| Ok(root.join("target")), std::path::absolute);
        let target = target.map_err(|error| format!("CARGO_TARGET_DIR: {error}"))?;
        let shell = Shell::new().map_err(|error| error.to_string())?;
        shell.change_dir(&root);
        shell.set_var("CARGO_TARGET_DIR", &target);
        Ok(Self { root, target, shell })
    }

    /// Builds something of the workspace, optimised.
    pub(crate) fn build(&self, what: &str) -> Result<(), String> {
        let (cargo, what) = (cargo(), what.split(' '));
        run(cmd!(self.shell, "{cargo} build --release --quiet {what...}"))
    }

    /// Builds the command `larder`.
    pub(crate) fn larder(&self) -> Result<PathBuf, String> {
        self.build("-p larder-cli --bin larder")?;
        Ok(self.target.join("release/larder"))
    }

    /// Builds an example of a crate.
    pub(crate) fn example(&self, of: &str, name: &str) -> Result<PathBuf, String> {
        self.build(&format!("-p {of} --example {name}"))?;
        Ok(self.target.join("release/examples").join(name))
    }

    /// The packages of a workspace, as Cargo describes them, and those of others that it needs if
    /// they are wanted too.
    pub(crate) fn packages(&self, manifest: &str, others: bool) -> Result<Vec<Value>, String> {
        let (cargo, manifest) = (cargo(), ["--manifest-path", manifest]);
        let depth = if others { None } else { Some("--no-deps") };
        let metadata = output(cmd!(
            self.shell,
            "{cargo} metadata --format-version=1 {depth...} {manifest...}"
        ))?;
        let all: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
        Ok(all["packages"].as_array().cloned().unwrap_or_default())
    }

    /// The recorded programs and scripts that come with the repository, and those beside it where
    /// there are some.
    pub(crate) fn recordings(&self) -> Vec<PathBuf> {
        recordings_in(&[self.root.join("workloads"), self.root.join("../shared/traces")])
    }
}

/// The very Cargo that started this program.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The recorded programs and scripts in folders.
pub(crate) fn recordings_in(folders: &[PathBuf]) -> Vec<PathBuf> {
    let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.to_string_lossy();
        [".ops", ".pickle.gz", ".pickle"].iter().any(|ending| name.ends_with(ending))
    });
    files.sort();
    files
}

/// Whether a file is a script, and no recording.
pub(crate) fn is_script(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "ops")
}

/// A file's name without its endings.
pub(crate) fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or("").to_owned()
}
