//! Whether Larder is ready for machines and programs that are not ours: other systems, an older
//! Rust, programs with a CUDA of their own, the package registry.

use serde_json::Value;
use xshell::{Shell, cmd};

use crate::command::{output, run as run_command};
use crate::repository::{Repository, cargo};
use crate::{file, wheel};

/// The program of somebody who uses cudarc already.
const BESIDE: &str = "crates/larder/tests/beside_cudarc";
/// What a program that wants simulated GPUs only must not have to build.
const CUDA_ONLY: [&str; 4] = ["cudarc", "larder-cuda", "libloading", "nvml-wrapper"];
/// The systems without a CUDA driver on which everything else works.
const APPLE: [&str; 2] = ["aarch64-apple-darwin", "x86_64-apple-darwin"];

pub(crate) fn run(repo: &Repository, is_quick: bool) -> Result<(), String> {
    let packages = published(repo)?;
    let names: Vec<String> = packages.iter().map(|package| text(package, "name")).collect();
    let rust_version = packages.iter().map(|package| text(package, "rust_version")).max();
    let rust_version = rust_version.ok_or("no package is published")?;
    let apart = repo.shell.push_env("CARGO_TARGET_DIR", repo.target.join("world"));
    beside_cudarc(repo, is_quick)?;
    without_cuda(&repo.shell)?;
    package(&repo.shell, &names, is_quick)?;
    if is_quick {
        return Ok(());
    }
    // The Python package is for users too, though not for Rust's registry.
    let named = names.iter().map(String::as_str).chain(["larder-python"]);
    let named: Vec<&str> = named.flat_map(|package| ["-p", package]).collect();
    for target in APPLE {
        check_for_apple(&repo.shell, &named, target)?;
    }
    check_with_lowest_rust(&repo.shell, &named, &rust_version)?;
    drop(apart);
    install(repo)?;
    wheel::run(repo, &wheel::Options::default())?;
    println!(
        "beside cudarc, without CUDA, packaged, on macOS, with Rust {rust_version}, installed and \
         as a wheel: all went well"
    );
    Ok(())
}

/// A program that names a version of CUDA to cudarc builds beside `larder` and with it, whichever
/// version it names.
fn beside_cudarc(repo: &Repository, is_quick: bool) -> Result<(), String> {
    let (cargo, shell) = (cargo(), &repo.shell);
    // The versions that are here already; a program of its own would fetch them.
    let lock = repo.root.join(BESIDE).join("Cargo.lock");
    file::copy(&repo.root.join("Cargo.lock"), &lock)?;
    let _folder = shell.push_dir(BESIDE);
    let mut versions = cuda_versions(&repo.packages("Cargo.toml", true)?);
    let (Some(oldest), Some(newest)) = (versions.first().cloned(), versions.last().cloned()) else {
        return Err("cudarc has no features that name versions of CUDA any more".to_owned());
    };
    if is_quick {
        versions = vec![oldest.clone(), newest.clone()];
    }
    let with_us = versions.iter().map(|version| format!("together,cudarc/{version}"));
    // Without our feature, and with the version left to cudarc.
    for features in with_us.chain(["cudarc/cuda-12040".to_owned(), "together".to_owned()]) {
        let words = ["--no-default-features", "--features", &features];
        run_command(cmd!(shell, "{cargo} check --quiet {words...}"))
            .map_err(|error| format!("{BESIDE} with the features {features}: {error}"))?;
    }
    eprintln!("beside cudarc: {} versions, from {oldest} to {newest}", versions.len());
    Ok(())
}

/// A program that wants simulated GPUs only builds nothing of CUDA.
fn without_cuda(shell: &Shell) -> Result<(), String> {
    let (cargo, words) = (cargo(), ["-p", "larder", "--no-default-features", "--features=sim"]);
    run_command(cmd!(shell, "{cargo} check --quiet {words...}"))?;
    let tree = cmd!(shell, "{cargo} tree {words...} --edges=normal,build --prefix=none");
    match needless(&output(tree)?) {
        None => Ok(()),
        Some(name) => Err(format!("larder needs `{name}` though its feature cuda is off")),
    }
}

/// Each crate that users need can be packaged, and the packages build with each other.
fn package(shell: &Shell, published: &[String], is_quick: bool) -> Result<(), String> {
    let named = published.iter().flat_map(|package| ["-p", package]);
    let quick: &[&str] = if is_quick { &["--no-verify", "--offline"] } else { &[] };
    let cargo = cargo();
    run_command(cmd!(shell, "{cargo} package --quiet --allow-dirty {named...} {quick...}"))?;
    eprintln!("packaged: {}", published.join(", "));
    Ok(())
}

fn check_for_apple(shell: &Shell, named: &[&str], target: &str) -> Result<(), String> {
    let cargo = cargo();
    run_command(cmd!(shell, "rustup target add {target}"))?;
    run_command(cmd!(shell, "{cargo} check --quiet --locked --target {target} {named...}"))
        .map_err(|error| format!("for {target}: {error}"))?;
    eprintln!("it builds for {target}");
    Ok(())
}

fn check_with_lowest_rust(shell: &Shell, named: &[&str], version: &str) -> Result<(), String> {
    let toolchain = format!("{version}.0");
    if output(cmd!(shell, "rustup run {toolchain} rustc --version")).is_err() {
        let words = ["--profile=minimal", "--no-self-update"];
        run_command(cmd!(shell, "rustup toolchain install {toolchain} {words...}"))?;
    }
    let features = ["--features", "larder/cudarc"];
    run_command(cmd!(
        shell,
        "rustup run {toolchain} cargo check --quiet --locked {features...} {named...}"
    ))
    .map_err(|error| format!("with Rust {toolchain}: {error}"))?;
    eprintln!("it builds with Rust {toolchain}");
    Ok(())
}

/// `cargo install` gives the command.
fn install(repo: &Repository) -> Result<(), String> {
    let (cargo, folder) = (cargo(), repo.target.join("world/installed"));
    run_command(cmd!(
        repo.shell,
        "{cargo} install --quiet --locked --force --path crates/larder-cli --root {folder}"
    ))?;
    run_command(cmd!(repo.shell, "{folder}/bin/larder --version"))
}

/// The features of cudarc that name a version of CUDA, in order.
fn cuda_versions(packages: &[Value]) -> Vec<String> {
    let cudarc = packages.iter().find(|package| package["name"] == "cudarc");
    let features = cudarc.and_then(|package| package["features"].as_object());
    let names = features.into_iter().flat_map(|features| features.keys().cloned());
    let mut versions: Vec<String> = names
        .filter(|name| {
            let digits = name.strip_prefix("cuda-").unwrap_or_default();
            digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit())
        })
        .collect();
    versions.sort();
    versions
}

/// A crate in a tree of dependencies that is there for CUDA alone.
fn needless(tree: &str) -> Option<&'static str> {
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    CUDA_ONLY.into_iter().find(|name| names.contains(name))
}

/// The packages that go to the registry: all that do not say otherwise.
fn published(repo: &Repository) -> Result<Vec<Value>, String> {
    let mut packages = repo.packages("Cargo.toml", false)?;
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
        let packages = published(&Repository::here().unwrap()).unwrap();
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
    fn a_crate_for_cuda_alone_is_named() {
        assert_eq!(needless("larder v0.1.0\nlibc v0.2\n"), None);
        assert_eq!(needless("larder v0.1.0\nlibloading v0.9.0\n"), Some("libloading"));
    }
}
