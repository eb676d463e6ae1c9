//! The crate graph: which of our crates may depend on which, as Cargo reads their manifests.

use std::path::Path;

use serde_json::Value;

use super::Finding;
use crate::repository::Repository;

/// Each package, and which of ours it may depend on when it is built for use. What only its tests
/// need is its own affair.
const GRAPH: [(&str, &str); 19] = [
    ("larder-lock", ""),
    ("larder-core", "larder-lock"),
    ("larder-sim", "larder-core"),
    ("larder-testkit", "larder-core larder-sim"),
    ("larder-cuda", "larder-core"),
    ("larder-tape", "larder-core"),
    ("larder-snapshot", "larder-core larder-tape"),
    ("larder", "larder-core larder-sim larder-cuda larder-snapshot"),
    ("larder-c", "larder-core larder-sim larder-cuda larder-snapshot larder"),
    ("larder-cudart", "larder-core larder-sim larder larder-c"),
    ("larder-dryrun", "larder-core larder-sim"),
    ("larder-study", "larder-core larder-sim larder-tape larder-snapshot"),
    ("larder-report", "larder-core larder-snapshot larder-study"),
    ("larder-cli", "larder-core larder-sim larder-study larder-report"),
    (
        "larder-python",
        "larder-core larder-sim larder-snapshot larder-study larder-cli larder larder-c",
    ),
    ("larder-proof", "larder-core larder-sim larder-testkit larder-cuda larder"),
    (
        "larder-fuzz",
        "larder-core larder-sim larder-tape larder-snapshot larder-study larder larder-c",
    ),
    ("beside-cudarc", "larder"),
    ("xtask", ""),
];

/// Who may depend on ours alone.
const WITHOUT_OTHERS: [&str; 1] = ["larder-core"];

/// The workspaces of the repository.
const WORKSPACES: [&str; 3] =
    ["Cargo.toml", "fuzz/Cargo.toml", "crates/larder/tests/beside_cudarc/Cargo.toml"];

/// Every dependency that is not an edge of the graph, and every package that is not in it.
pub(super) fn check(repo: &Repository) -> Result<Vec<Finding>, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut findings = Vec::new();
    for manifest in WORKSPACES {
        for package in repo.packages(manifest, false)? {
            let path = text(&package["manifest_path"]);
            let path = Path::new(&path).strip_prefix(&repo.root).unwrap_or(Path::new(&path));
            let built = package["dependencies"].as_array().into_iter().flatten();
            let built = built.filter(|dependency| dependency["kind"] != "dev");
            let names: Vec<String> = built.map(|dependency| text(&dependency["name"])).collect();
            for message in objections(&text(&package["name"]), &names) {
                findings.push(Finding::new(&path.display().to_string(), 1, message));
            }
        }
    }
    Ok(findings)
}

fn objections(package: &str, dependencies: &[String]) -> Vec<String> {
    let Some((_, ours)) = GRAPH.iter().find(|(name, _)| *name == package) else {
        return vec![format!(
            "package `{package}` is not in the crate graph: say in xtask/src/tidy/crates.rs \
             what it may depend on"
        )];
    };
    let refused = dependencies.iter().filter(|dependency| {
        let is_ours = GRAPH.iter().any(|(name, _)| name == dependency);
        let may = if is_ours {
            ours.split(' ').any(|name| name == *dependency)
        } else {
            !WITHOUT_OTHERS.contains(&package)
        };
        !may
    });
    let message = |dependency| {
        format!(
            "`{package}` may not depend on `{dependency}` (of ours it may use: {ours}): \
             move the code to the crate that owns it, or into one above"
        )
    };
    refused.map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_that_are_not_in_the_graph_fail() {
        let count = |package, dependencies: &[&str]| {
            let names: Vec<String> = dependencies.iter().map(|name| (*name).to_owned()).collect();
            objections(package, &names).len()
        };
        assert_eq!(count("larder-cli", &["flate2", "larder-study"]), 0);
        assert_eq!(count("larder-sim", &["larder-cuda", "larder-core"]), 1);
        assert_eq!(count("larder-core", &["libc", "larder-sim", "larder-lock"]), 2);
        assert_eq!(count("larder-new", &[]), 1);
    }
}
