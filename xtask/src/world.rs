//! Whether Larder is ready for machines and programs that are not ours: other systems, an older
//! Rust, programs with a CUDA of their own, the package registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command;
use crate::programs::target_folder;
use crate::tidy::crates::packages;
use crate::wheel;

/// The program of somebody who uses cudarc already.
const BESIDE: &str = "crates/larder/tests/beside_cudarc";
/// What a program that wants simulated GPUs only must not have to build.
const CUDA_ONLY: [&str; 4] = ["cudarc", "larder-cuda", "libloading", "nvml-wrapper"];
/// The systems without a CUDA driver on which everything else works.
const APPLE: [&str; 2] = ["aarch64-apple-darwin", "x86_64-apple-darwin"];
/// The Python package, which is for users though not for Rust's registry.
const PYTHON: &str = "larder-python";
/// The crate that has the command.
const COMMAND: &str = "crates/larder-cli";

/// Where things are.
struct Place<'a> {
    root: &'a Path,
    cargo: &'a Path,
    target: PathBuf,
}

pub(crate) fn run(root: &Path, cargo: &Path, is_quick: bool) -> Result<(), String> {
    let place = Place { root, cargo, target: target_folder(root) };
    let packages = published(root)?;
    let published: Vec<String> = packages.iter().map(|package| text(package, "name")).collect();
    let rust_version = packages.iter().map(|package| text(package, "rust_version")).max();
    let rust_version = rust_version.ok_or("no package is published")?;
    place.beside_cudarc(is_quick)?;
    place.without_cuda()?;
    place.package(&published, is_quick)?;
    if is_quick {
        return Ok(());
    }
    let mut wanted = published.clone();
    wanted.push(PYTHON.to_owned());
    for target in APPLE {
        place.check_for_apple(&wanted, target)?;
    }
    place.check_with_lowest_rust(&wanted, &rust_version)?;
    place.install()?;
    wheel::run(root, &wheel::Options::default())?;
    println!(
        "beside cudarc, without CUDA, packaged, on macOS, with Rust {rust_version}, installed and \
         as a \
         wheel: all went well"
    );
    Ok(())
}

impl Place<'_> {
    fn cargo(&self) -> Command {
        let mut command = Command::new(self.cargo);
        command.current_dir(self.root).env("CARGO_TARGET_DIR", self.target.join("world"));
        command
    }

    /// A program that names a version of CUDA to cudarc builds beside `larder` and with it,
    /// whichever version it names.
    fn beside_cudarc(&self, is_quick: bool) -> Result<(), String> {
        let folder = self.root.join(BESIDE);
        // The versions that are here already; a program of its own would fetch them.
        fs::copy(self.root.join("Cargo.lock"), folder.join("Cargo.lock"))
            .map_err(|error| format!("{BESIDE}: {error}"))?;
        let mut metadata = self.cargo();
        metadata.args(["metadata", "--format-version=1"]).current_dir(&folder);
        let mut versions = cuda_versions(&command::output(&mut metadata)?);
        let (Some(oldest), Some(newest)) = (versions.first().cloned(), versions.last().cloned())
        else {
            return Err("cudarc has no features that name versions of CUDA any more".to_owned());
        };
        if is_quick {
            versions = vec![oldest.clone(), newest.clone()];
        }
        let check = |features: &str| {
            let mut check = self.cargo();
            check.args(["check", "--quiet", "--no-default-features", "--features", features]);
            command::run(check.current_dir(&folder))
                .map_err(|error| format!("{BESIDE} with the features {features}: {error}"))
        };
        for version in &versions {
            check(&format!("together,cudarc/{version}"))?;
        }
        // Without our feature, and with the version left to cudarc.
        check("cudarc/cuda-12040")?;
        check("together")?;
        eprintln!("beside cudarc: {} versions, from {oldest} to {newest}", versions.len());
        Ok(())
    }

    /// A program that wants simulated GPUs only builds nothing of CUDA.
    fn without_cuda(&self) -> Result<(), String> {
        let arguments = ["-p", "larder", "--no-default-features", "--features=sim"];
        command::run(self.cargo().args(["check", "--quiet"]).args(arguments))?;
        let mut tree = self.cargo();
        tree.arg("tree").args(arguments).args(["--edges=normal,build", "--prefix=none"]);
        match needless(&command::output(&mut tree)?) {
            None => Ok(()),
            Some(name) => Err(format!("larder needs `{name}` though its feature cuda is off")),
        }
    }

    /// Each crate that users need can be packaged, and the packages build with each other.
    fn package(&self, published: &[String], is_quick: bool) -> Result<(), String> {
        let mut package = self.cargo();
        package.args(["package", "--quiet", "--allow-dirty"]).args(named(published));
        if is_quick {
            package.args(["--no-verify", "--offline"]);
        }
        command::run(&mut package)?;
        eprintln!("packaged: {}", published.join(", "));
        Ok(())
    }

    fn check_for_apple(&self, wanted: &[String], target: &str) -> Result<(), String> {
        command::run(
            Command::new("rustup").args(["target", "add", target]).current_dir(self.root),
        )?;
        let mut check = self.cargo();
        check.args(["check", "--quiet", "--locked", "--target", target]).args(named(wanted));
        command::run(&mut check).map_err(|error| format!("for {target}: {error}"))?;
        eprintln!("it builds for {target}");
        Ok(())
    }

    fn check_with_lowest_rust(&self, wanted: &[String], version: &str) -> Result<(), String> {
        let toolchain = format!("{version}.0");
        let mut has = Command::new("rustup");
        has.args(["run", &toolchain, "rustc", "--version"]);
        if command::output(&mut has).is_err() {
            let fetch = ["toolchain", "install", &toolchain, "--profile=minimal"];
            command::run(Command::new("rustup").args(fetch).arg("--no-self-update"))?;
        }
        let mut check = Command::new("rustup");
        check
            .args(["run", &toolchain, "cargo", "check", "--quiet", "--locked"])
            .args(["--features", "larder/cudarc"])
            .args(named(wanted))
            .current_dir(self.root)
            .env("CARGO_TARGET_DIR", self.target.join("world"));
        command::run(&mut check).map_err(|error| format!("with Rust {toolchain}: {error}"))?;
        eprintln!("it builds with Rust {toolchain}");
        Ok(())
    }

    /// `cargo install` gives the command.
    fn install(&self) -> Result<(), String> {
        let folder = self.target.join("world/installed");
        let mut install = Command::new(self.cargo);
        install
            .args(["install", "--quiet", "--locked", "--force", "--path", COMMAND, "--root"])
            .arg(&folder)
            .current_dir(self.root)
            .env("CARGO_TARGET_DIR", &self.target);
        command::run(&mut install)?;
        command::run(Command::new(folder.join("bin/larder")).arg("--version"))
    }
}

/// `-p` for each package.
fn named(packages: &[String]) -> impl Iterator<Item = &str> {
    packages.iter().flat_map(|package| ["-p", package])
}

/// The features of cudarc that name a version of CUDA, in order.
fn cuda_versions(metadata: &str) -> Vec<String> {
    let texts = metadata.split('"').filter(|text| {
        let digits = text.strip_prefix("cuda-");
        digits.is_some_and(|digits| digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
    });
    let mut versions: Vec<String> = texts.map(str::to_owned).collect();
    versions.sort();
    versions.dedup();
    versions
}

/// A crate in a tree of dependencies that is there for CUDA alone.
fn needless(tree: &str) -> Option<&'static str> {
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    CUDA_ONLY.into_iter().find(|name| names.contains(name))
}

/// The packages that go to the registry: all that do not say otherwise.
fn published(root: &Path) -> Result<Vec<Value>, String> {
    let mut packages = packages(&root.join("Cargo.toml"))?;
    // `publish` is null where nothing is said, and an empty list where it is false.
    packages.retain(|package| package["publish"].is_null());
    Ok(packages)
}

fn text(package: &Value, key: &str) -> String {
    package[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_crate_says_what_the_registry_asks_for() {
        let packages = published(&crate::repository_root()).unwrap();
        let names: Vec<String> = packages.iter().map(|package| text(package, "name")).collect();
        let has = |name: &str| names.iter().any(|other| other == name);
        assert!(has("larder") && has("larder-core") && !has("larder-proof") && !has("xtask"));
        for package in &packages {
            let name = text(package, "name");
            assert!(text(package, "description").len() > 20, "{name}");
            for key in ["readme", "keywords", "categories", "license", "rust_version"] {
                let value = &package[key];
                assert!(!value.is_null() && *value != Value::Array(Vec::new()), "{name}: {key}");
            }
        }
    }

    #[test]
    fn versions_are_found_once_each_and_in_order() {
        let text =
            r#"{"features":{"cuda-13000":[],"cuda-11040":[],"cuda-version-from":["cuda-13000"]}}"#;
        assert_eq!(cuda_versions(text), ["cuda-11040", "cuda-13000"]);
        assert!(cuda_versions("cuda-130000").is_empty());
    }

    #[test]
    fn a_crate_for_cuda_alone_is_named() {
        assert_eq!(needless("larder v0.1.0\nlibc v0.2\n"), None);
        assert_eq!(needless("larder v0.1.0\nlibloading v0.9.0\n"), Some("libloading"));
    }
}
