//! Differences: what PyTorch's allocators get wrong, each shown by a script of a few lines on every version's own
//! library and on ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::docs::Page;
use crate::printed::field;
use crate::programs::{Programs, target_folder};
use crate::torch::{self, Torch};

/// Where the scripts are, and the page that tells of them.
const FOLDER: &str = "docs/differences";
const PAGE: &str = "docs/differences.md";
/// The table stands between these lines of the page.
const BEGIN: &str = "<!-- The table is written by `cargo xtask differences`. -->";
const END: &str = "<!-- Here the table ends. -->";

/// Something that goes wrong, and the figure that shows it.
struct Defect {
    /// The script's name.
    script: &'static str,
    /// What goes wrong, in a clause.
    what: &'static str,
    conf: &'static str,
    memory_mib: u64,
    /// The statistic that shows it, and what it is where nothing goes wrong.
    key: &'static str,
    right: i64,
    /// The first PyTorch that has it right; none if none has.
    fixed_in: Option<&'static str>,
}

const MIB: i64 = 1 << 20;
const EXPANDABLE: &str = "expandable_segments:True";
const RESERVED: &str = "reserved_bytes.all.current";
const PEAK: &str = "reserved_bytes.all.peak";

const DEFECTS: [Defect; 12] = [
    Defect {
        script: "pool-use-after-free",
        what: "a private pool with expandable segments is deleted while a block in it is live, and used",
        conf: EXPANDABLE,
        memory_mib: 400,
        key: RESERVED,
        right: 2 * MIB,
        fixed_in: None,
    },
    Defect {
        script: "dropped-use",
        what: "memory is free that another stream still uses, after a use under a capture",
        conf: "",
        memory_mib: 400,
        key: "active.all.current",
        right: 2,
        fixed_in: None,
    },
    Defect {
        script: "spurious-oom",
        what: "out of memory beside a free block that fits (PyTorch #189504)",
        conf: "",
        memory_mib: 20,
        key: "ooms",
        right: 0,
        fixed_in: None,
    },
    Defect {
        script: "growth-without-bound",
        what: "with a split limit, expandable segments grow without bound (PyTorch #123548)",
        conf: "expandable_segments:True,max_split_size_mb:20",
        memory_mib: 2000,
        key: PEAK,
        right: 200 * MIB,
        fixed_in: None,
    },
    Defect {
        script: "lending-open-pool",
        what: "a pool that lends and is open ends the program instead of lending",
        conf: "",
        memory_mib: 60,
        key: "ooms",
        right: 0,
        fixed_in: None,
    },
    Defect {
        script: "cap-passed",
        what: "expandable segments pass the memory fraction",
        conf: EXPANDABLE,
        memory_mib: 100,
        key: PEAK,
        right: 0,
        fixed_in: None,
    },
    Defect {
        script: "hopeless-request",
        what: "a request that is larger than the device throws the whole cache away",
        conf: "",
        memory_mib: 200,
        key: RESERVED,
        right: 80 * MIB,
        fixed_in: None,
    },
    Defect {
        script: "collection-without-cap",
        what: "the threshold of garbage collection does nothing without a memory fraction",
        conf: "garbage_collection_threshold:0.25",
        memory_mib: 200,
        key: RESERVED,
        right: 70 * MIB,
        fixed_in: None,
    },
    Defect {
        script: "no-split-leak",
        what: "a pool's mark that its blocks are not split outlives the pool",
        conf: "",
        memory_mib: 400,
        key: "allocated_bytes.all.current",
        right: 4 * MIB,
        fixed_in: Some("2.14"),
    },
    Defect {
        script: "fraction-cap",
        what: "a memory fraction allows a byte less than it says",
        conf: "",
        memory_mib: 400,
        key: "ooms",
        right: 0,
        fixed_in: Some("2.13"),
    },
    Defect {
        script: "pool-full-cache",
        what: "out of memory in a memory pool's scope, with the cache full",
        conf: "",
        memory_mib: 40,
        key: "ooms",
        right: 0,
        fixed_in: Some("2.13"),
    },
    Defect {
        script: "pool-recorded-free",
        what: "in a memory pool's scope, what other streams used does not come back",
        conf: "",
        memory_mib: 400,
        key: PEAK,
        right: 20 * MIB,
        fixed_in: Some("2.13"),
    },
];

/// What came of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Figure(i64),
    /// The allocator, or the whole process, gave up.
    GaveUp,
}

impl Defect {
    fn is_right(&self, shown: &Shown) -> bool {
        *shown == Shown::Figure(self.right)
    }

    /// What the page says is to be seen of a version.
    fn is_fixed_in(&self, torch: Torch) -> bool {
        let at = |minor: &str| torch::ALL.iter().position(|torch| torch.minor == minor);
        self.fixed_in.is_some_and(|minor| at(minor) <= at(torch.minor))
    }

    /// A figure as people read it.
    fn words(&self, shown: &Shown) -> String {
        match shown {
            Shown::GaveUp => "gives up".to_owned(),
            Shown::Figure(bytes) if self.key.contains("bytes") => format!("{} MiB", bytes / MIB),
            Shown::Figure(count) => count.to_string(),
        }
    }

    fn script(&self, root: &Path) -> PathBuf {
        root.join(FOLDER).join(format!("{}.ops", self.script))
    }

    fn by_peer(&self, root: &Path, judge: &Path) -> Result<Shown, String> {
        let memory_bytes = self.memory_mib << 20;
        let mut command = Command::new(judge);
        command
            .arg("replay")
            .arg(self.script(root))
            .env("PYTORCH_CUDA_ALLOC_CONF", self.conf)
            .env("LARDER_SIM_MEMORY", memory_bytes.to_string())
            .env_remove("LARDER_SIM_ADDRESSES");
        self.shown(&mut command)
    }

    fn by_ours(&self, root: &Path, larder: &Path) -> Result<Shown, String> {
        let mut command = Command::new(larder);
        command.arg("replay").arg(self.script(root)).args(["--json", "--conf", self.conf]);
        self.shown(command.args(["--memory", &format!("{}MiB", self.memory_mib)]))
    }

    fn shown(&self, command: &mut Command) -> Result<Shown, String> {
        let output = command.output().map_err(|error| format!("{}: {error}", self.script))?;
        match output.status.code() {
            Some(0) => {
                let printed = String::from_utf8_lossy(&output.stdout);
                figure(&printed, self.key).map(Shown::Figure).ok_or_else(|| {
                    format!("{}: there is no `{}` in what was printed", self.script, self.key)
                })
            }
            Some(3) | None => Ok(Shown::GaveUp),
            Some(_) => {
                Err(format!("{}: {}", self.script, String::from_utf8_lossy(&output.stderr).trim()))
            }
        }
    }
}

/// The number under a key of a flat JSON object.
fn figure(printed: &str, key: &str) -> Option<i64> {
    field(printed, key)?.parse().ok()
}

/// Runs every script on every version and on ours, writes the table, and fails if something is not as the page says.
pub(crate) fn run(root: &Path, cargo: &Path) -> Result<(), String> {
    let target = target_folder(root);
    let mut judges = Vec::new();
    let mut larder = PathBuf::new();
    for torch in torch::ALL {
        eprintln!("==> the judge of PyTorch {torch}");
        let programs = Programs::build_with(root, cargo, &target, torch)?;
        judges.push((torch, programs.judge));
        larder = programs.larder;
    }
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for defect in &DEFECTS {
        let mut cells = Vec::new();
        for (torch, judge) in &judges {
            let shown = defect.by_peer(root, judge)?;
            if defect.is_right(&shown) != defect.is_fixed_in(*torch) {
                wrong.push(format!("{} on PyTorch {torch}: {shown:?}", defect.script));
            }
            cells.push((defect.is_right(&shown), defect.words(&shown)));
        }
        let ours = defect.by_ours(root, &larder)?;
        if !defect.is_right(&ours) {
            wrong.push(format!("{} on Larder: {ours:?}, not {}", defect.script, defect.right));
        }
        cells.push((defect.is_right(&ours), defect.words(&ours)));
        rows.push(row(defect, &cells));
    }
    let table = table(&rows);
    print!("{table}");
    if !wrong.is_empty() {
        return Err(format!("not as {PAGE} says: {}", wrong.join("; ")));
    }
    Page { path: PAGE, begin: BEGIN, end: END }.write(root, &table)?;
    println!("{} scripts on {} PyTorchs and on Larder", DEFECTS.len(), judges.len());
    Ok(())
}

fn row(defect: &Defect, cells: &[(bool, String)]) -> String {
    let what = format!("[{}](differences/{}.ops)", defect.what, defect.script);
    let cells = cells.iter().map(
        |(is_right, words)| {
            if *is_right { words.clone() } else { format!("**{words}**") }
        },
    );
    let conf = if defect.conf.is_empty() { String::new() } else { format!("`{}`", defect.conf) };
    let cells: Vec<String> = cells.collect();
    let (memory, key) = (defect.memory_mib, defect.key);
    format!("| {what} | {memory} MiB | {conf} | `{key}` | {} |", cells.join(" | "))
}

fn table(rows: &[String]) -> String {
    let versions: Vec<&str> = torch::ALL.iter().map(|torch| torch.minor).collect();
    let head = format!(
        "| what goes wrong | memory | settings | figure | {} | Larder |",
        versions.join(" | ")
    );
    let line = format!("|---|---|---|---|{}", "---:|".repeat(versions.len() + 1));
    format!("{head}\n{line}\n{}\n", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_by_their_whole_keys() {
        let printed = r#"{"a.ooms":3,"ooms":-1,"num_ooms":2}"#;
        assert_eq!(figure(printed, "ooms"), Some(-1));
        assert_eq!(figure(printed, "num_ooms"), Some(2));
        assert_eq!(figure(printed, "oom"), None);
    }

    #[test]
    fn every_script_is_there_and_every_version_has_its_verdict() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for defect in &DEFECTS {
            assert!(defect.script(root).is_file(), "{}", defect.script);
        }
        let mended = DEFECTS.iter().find(|defect| defect.fixed_in == Some("2.13")).unwrap();
        let verdicts = torch::ALL.map(|torch| mended.is_fixed_in(torch));
        assert_eq!(verdicts, [false, false, true, true, true]);
    }
}
