//! Differences: what PyTorch's allocators get wrong, each shown by a script of a few lines on every
//! version's own library and on ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::number;
use crate::docs;
use crate::file;
use crate::programs::{Programs, target_folder};
use crate::torch::{self, Torch};

/// Where the scripts are, the list of what they show, and the page that tells of them.
const FOLDER: &str = "docs/differences";
const LIST: &str = "docs/differences/defects.txt";
const PAGE: &str = "docs/differences.md";

/// Something that goes wrong, and the figure that shows it.
struct Defect {
    /// The script's name.
    script: String,
    memory_mib: u64,
    conf: String,
    /// The statistic that shows it, and what it is where nothing goes wrong.
    key: String,
    right: i64,
    /// The first PyTorch that has it right; empty if none has.
    fixed_in: String,
    /// What goes wrong, in a clause.
    what: String,
}

/// Reads the list.
fn defects(root: &Path) -> Result<Vec<Defect>, String> {
    let text = file::read(&root.join(LIST))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| read(line).ok_or_else(|| format!("{LIST} has no defect in `{line}`")))
        .collect()
}

fn read(line: &str) -> Option<Defect> {
    let cells: Vec<String> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
    let [script, memory, conf, key, right, fixed_in, what] = cells.try_into().ok()?;
    let (memory_mib, right) = (memory.parse().ok()?, right.parse().ok()?);
    Some(Defect { script, memory_mib, conf, key, right, fixed_in, what })
}

const MIB: i64 = 1 << 20;

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
        at(&self.fixed_in).is_some_and(|first| Some(first) <= at(torch.minor))
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
            .env("PYTORCH_CUDA_ALLOC_CONF", &self.conf)
            .env("LARDER_SIM_MEMORY", memory_bytes.to_string())
            .env_remove("LARDER_SIM_ADDRESSES");
        self.shown(&mut command)
    }

    fn by_ours(&self, root: &Path, larder: &Path) -> Result<Shown, String> {
        let mut command = Command::new(larder);
        command.arg("replay").arg(self.script(root)).args(["--json", "--conf", &self.conf]);
        self.shown(command.args(["--memory", &format!("{}MiB", self.memory_mib)]))
    }

    fn shown(&self, command: &mut Command) -> Result<Shown, String> {
        let output = command.output().map_err(|error| format!("{}: {error}", self.script))?;
        match output.status.code() {
            Some(0) => {
                let printed = String::from_utf8_lossy(&output.stdout);
                number(&printed, &self.key).map(|figure| Shown::Figure(figure as i64)).ok_or_else(
                    || format!("{}: there is no `{}` in what was printed", self.script, self.key),
                )
            }
            Some(3) | None => Ok(Shown::GaveUp),
            Some(_) => {
                Err(format!("{}: {}", self.script, String::from_utf8_lossy(&output.stderr).trim()))
            }
        }
    }
}

/// Runs every script on every version and on ours, writes the table, and fails if something is not
/// as the page says.
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
    let defects = defects(root)?;
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for defect in &defects {
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
    docs::write(root, PAGE, "differences", &table)?;
    println!("{} scripts on {} PyTorchs and on Larder", defects.len(), judges.len());
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
    let (memory, key) = (defect.memory_mib, &defect.key);
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
    fn every_script_is_there_and_every_version_has_its_verdict() {
        let root = crate::repository_root();
        let defects = defects(&root).unwrap();
        for defect in &defects {
            assert!(defect.script(&root).is_file(), "{}", defect.script);
        }
        let mended = defects.iter().find(|defect| defect.fixed_in == "2.13").unwrap();
        let verdicts = torch::ALL.map(|torch| mended.is_fixed_in(torch));
        assert_eq!(verdicts, [false, false, true, true, true]);
        assert!(!defects[0].is_fixed_in(torch::NEWEST));
    }
}
