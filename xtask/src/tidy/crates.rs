//! The crate graph: which of our crates may depend on which, read from the manifests.

use super::Finding;
use super::tree::Tree;

/// What a crate may depend on when it is built for use. What only its tests need is its own affair.
struct Edges {
    package: &'static str,
    ours: &'static [&'static str],
    /// Whether crates of others are allowed too.
    others: bool,
}

const GRAPH: [Edges; 18] = [
    Edges { package: "larder-lock", ours: &[], others: true },
    Edges { package: "larder-core", ours: &["larder-lock"], others: false },
    Edges { package: "larder-sim", ours: &["larder-core"], others: true },
    Edges { package: "larder-testkit", ours: &["larder-core", "larder-sim"], others: true },
    Edges { package: "larder-cuda", ours: &["larder-core"], others: true },
    Edges {
        package: "larder-cudart",
        ours: &["larder-core", "larder-sim", "larder", "larder-c"],
        others: true,
    },
    Edges {
        package: "larder",
        ours: &["larder-core", "larder-sim", "larder-cuda", "larder-snapshot"],
        others: true,
    },
    Edges { package: "beside-cudarc", ours: &["larder"], others: true },
    Edges {
        package: "larder-c",
        ours: &["larder-core", "larder-sim", "larder-cuda", "larder-snapshot", "larder"],
        others: true,
    },
    Edges { package: "larder-tape", ours: &["larder-core"], others: true },
    Edges { package: "larder-snapshot", ours: &["larder-core", "larder-tape"], others: true },
    Edges {
        package: "larder-study",
        ours: &["larder-core", "larder-sim", "larder-tape", "larder-snapshot"],
        others: true,
    },
    Edges {
        package: "larder-report",
        ours: &["larder-core", "larder-snapshot", "larder-study"],
        others: true,
    },
    Edges {
        package: "larder-cli",
        ours: &["larder-core", "larder-sim", "larder-study", "larder-report"],
        others: true,
    },
    Edges {
        package: "larder-fuzz",
        ours: &[
            "larder-core",
            "larder-sim",
            "larder-tape",
            "larder-snapshot",
            "larder-study",
            "larder",
            "larder-c",
        ],
        others: true,
    },
    Edges {
        package: "larder-proof",
        ours: &["larder-core", "larder-sim", "larder-testkit", "larder-cuda", "larder"],
        others: true,
    },
    Edges {
        package: "larder-python",
        ours: &[
            "larder-core",
            "larder-sim",
            "larder-snapshot",
            "larder-study",
            "larder-cli",
            "larder",
            "larder-c",
        ],
        others: true,
    },
    Edges { package: "xtask", ours: &[], others: true },
];

/// Every dependency that is not an edge of the graph, and every package that is not in it.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts().filter(|(file, _)| file.name() == "Cargo.toml") {
        let manifest = Manifest::parse(text);
        let Some((line, package)) = manifest.package else { continue };
        let Some(edges) = GRAPH.iter().find(|edges| edges.package == package) else {
            let message = format!(
                "package `{package}` is not in the crate graph: say in xtask/src/tidy/crates.rs \
                 what it may depend on"
            );
            findings.push(Finding::new(&file.path, line, message));
            continue;
        };
        for (line, dependency) in manifest.dependencies {
            if let Some(message) = edges.objection(&dependency) {
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

impl Edges {
    fn objection(&self, dependency: &str) -> Option<String> {
        let package = self.package;
        let is_ours = GRAPH.iter().any(|edges| edges.package == dependency);
        if is_ours && !self.ours.contains(&dependency) {
            let allowed =
                if self.ours.is_empty() { "none".to_owned() } else { self.ours.join(", ") };
            return Some(format!(
                "`{package}` may not depend on `{dependency}` (of ours it may use: {allowed}): \
                 move the code to the crate that owns it"
            ));
        }
        if !is_ours && !self.others {
            return Some(format!(
                "`{package}` has no dependencies, so `{dependency}` must go: \
                 write what is needed, or put it into a crate above"
            ));
        }
        None
    }
}

/// The little of a manifest that the graph needs.
#[derive(Debug, Default)]
struct Manifest {
    package: Option<(usize, String)>,
    dependencies: Vec<(usize, String)>,
}

/// The table that a line of a manifest stands in.
enum Table {
    Package,
    /// A table of dependencies, one to a line.
    Dependencies,
    /// The table of one dependency, already noted under the name in its heading.
    Dependency,
    Other,
}

impl Manifest {
    fn parse(text: &str) -> Self {
        let mut manifest = Self::default();
        let mut table = Table::Other;
        // Brackets that an array or an inline table leaves open reach over the following lines.
        let mut open = 0_usize;
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            let number = index + 1;
            if open == 0 && line.starts_with('[') {
                table = manifest.enter(number, line);
                continue;
            }
            if open == 0 && !line.is_empty() {
                manifest.note(number, line, &table);
            }
            open += line.matches(['[', '{']).count();
            open = open.saturating_sub(line.matches([']', '}']).count());
        }
        manifest
    }

    /// Reads a heading: `[dependencies]`, `[target.'…'.dependencies]`, `[dependencies.name]`.
    fn enter(&mut self, number: usize, heading: &str) -> Table {
        let name = heading.trim_matches(['[', ']']).trim();
        if name == "package" {
            return Table::Package;
        }
        let is_shipped = |part: &str| matches!(part, "dependencies" | "build-dependencies");
        let (before, last) = name.rsplit_once('.').unwrap_or(("", name));
        // The workspace's table is a list of versions to choose from, not a dependency.
        if before == "workspace" {
            Table::Other
        } else if is_shipped(last) {
            Table::Dependencies
        } else if before != "workspace.dependencies"
            && is_shipped(before.rsplit('.').next().unwrap_or(before))
        {
            self.dependencies.push((number, last.trim_matches('"').to_owned()));
            Table::Dependency
        } else {
            Table::Other
        }
    }

    /// Reads `key = value` in `table`.
    fn note(&mut self, number: usize, line: &str, table: &Table) {
        let Some((key, value)) = line.split_once('=') else { return };
        let value = value.trim();
        match table {
            Table::Package if key.trim() == "name" => {
                self.package = Some((number, value.trim_matches('"').to_owned()));
            }
            Table::Dependencies => {
                let name = key.split('.').next().unwrap_or(key).trim().trim_matches('"');
                let name = renamed(value).unwrap_or(name);
                self.dependencies.push((number, name.to_owned()));
            }
            Table::Dependency if key.trim() == "package" => {
                self.dependencies.push((number, value.trim_matches('"').to_owned()));
            }
            _ => {}
        }
    }
}

/// The true name of a dependency that is imported under another: `{ package = "name", … }`.
fn renamed(value: &str) -> Option<&str> {
    let (_, rest) = value.split_once("package")?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(package: &str, tables: &str) -> Vec<usize> {
        let text = format!("[package]\nname = \"{package}\"\n{tables}");
        let tree = Tree::of(&[("crates/any/Cargo.toml", &text)]);
        check(&tree).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn edges_of_the_graph_pass() {
        assert!(lines("larder-core", "[dependencies]\n\n[lints]\nworkspace = true\n").is_empty());
        assert!(lines("larder-sim", "[dependencies]\nlarder-core.workspace = true\n").is_empty());
        let cli = "[dependencies]\nflate2 = \"1\"\nlarder-study = { path = \"../larder-study\" }\n";
        assert!(lines("larder-cli", cli).is_empty());
    }

    #[test]
    fn other_edges_between_our_crates_fail() {
        assert_eq!(lines("larder-core", "[dependencies]\nlarder-sim.workspace = true\n"), [4]);
        assert_eq!(lines("larder-sim", "[dependencies]\nlarder-cuda = \"0.1\"\n"), [4]);
        assert_eq!(lines("larder-cli", "[dependencies.larder-cuda]\npath = \"x\"\n"), [3]);
        assert_eq!(lines("xtask", "[build-dependencies]\n\"larder-core\" = \"0.1\"\n"), [4]);
    }

    #[test]
    fn the_core_depends_on_nobody() {
        assert_eq!(lines("larder-core", "[dependencies]\nlibc = \"0.2\"\n"), [4]);
        let target = "[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n";
        assert_eq!(lines("larder-core", target), [4]);
    }

    #[test]
    fn another_name_does_not_hide_a_dependency() {
        let inline = "[dependencies]\ncuda = { version = \"0.1\", package = \"larder-cuda\" }\n";
        assert_eq!(lines("larder-sim", inline), [4]);
        let table = "[dependencies.cuda]\nversion = \"0.1\"\npackage = \"larder-cuda\"\n";
        assert_eq!(lines("larder-sim", table), [5]);
    }

    #[test]
    fn tests_may_need_more() {
        let dev = "[dev-dependencies]\nlarder-sim.workspace = true\n";
        assert!(lines("larder-cuda", dev).is_empty());
    }

    #[test]
    fn values_over_several_lines_are_not_dependencies() {
        let text =
            "[dependencies]\nserde = { version = \"1\", features = [\n  \"larder = x\",\n] }\n";
        assert!(lines("larder-cli", text).is_empty());
        let text = "[dependencies]\nserde = [\n]\nxtask = \"1\"\n";
        assert_eq!(lines("larder-cli", text), [6]);
    }

    #[test]
    fn the_list_of_the_workspace_is_no_dependency() {
        let text = "[workspace.dependencies]\nlarder-sim = { path = \"x\" }\n";
        assert!(lines("larder-core", text).is_empty());
    }

    #[test]
    fn a_package_that_nobody_placed_fails() {
        assert_eq!(lines("larder-new", ""), [2]);
    }
}
