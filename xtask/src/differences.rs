//! Differences: what PyTorch's allocators get wrong, each shown by a script of a few lines on every
//! version's own library and on ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use xshell::cmd;

use crate::command::{ended, number, said};
use crate::programs::Programs;
use crate::repository::Repository;
use crate::table::Table;
use crate::torch::{self, Torch};
use crate::{docs, file};

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

/// What came of a script: a figure, or nothing where the allocator or the whole process gave up.
type Shown = Option<i64>;

impl Defect {
    /// What the page says is to be seen of a version.
    fn is_fixed_in(&self, torch: Torch) -> bool {
        let at = |minor: &str| torch::ALL.iter().position(|torch| torch.minor == minor);
        at(&self.fixed_in).is_some_and(|first| Some(first) <= at(torch.minor))
    }

    /// A figure as people read it, bold where it is not right.
    fn cell(&self, shown: Shown) -> String {
        let words = match shown {
            None => "gives up".to_owned(),
            Some(bytes) if self.key.contains("bytes") => format!("{} MiB", bytes / (1 << 20)),
            Some(count) => count.to_string(),
        };
        if shown == Some(self.right) { words } else { format!("**{words}**") }
    }

    fn by_peer(&self, repo: &Repository, judge: &Path) -> Result<Shown, String> {
        let script = &self.script;
        let memory_bytes = self.memory_mib << 20;
        let replay = cmd!(repo.shell, "{judge} replay {FOLDER}/{script}.ops")
            .env("PYTORCH_CUDA_ALLOC_CONF", &self.conf)
            .env("LARDER_SIM_MEMORY", memory_bytes.to_string());
        self.shown(replay.env_remove("LARDER_SIM_ADDRESSES"))
    }

    fn by_ours(&self, repo: &Repository, larder: &Path) -> Result<Shown, String> {
        let Self { script, conf, .. } = self;
        let memory = format!("{}MiB", self.memory_mib);
        self.shown(cmd!(
            repo.shell,
            "{larder} replay {FOLDER}/{script}.ops --json --conf {conf} --memory {memory}"
        ))
    }

    fn shown(&self, command: impl Into<Command>) -> Result<Shown, String> {
        let Self { script, key, .. } = self;
        let output = ended(&mut command.into())?;
        match output.status.code() {
            Some(0) => match number(&String::from_utf8_lossy(&output.stdout), key) {
                Some(figure) => Ok(Some(figure as i64)),
                None => Err(format!("{script}: there is no `{key}` in what was printed")),
            },
            Some(3) | None => Ok(None),
            Some(_) => Err(format!("{script}: {}", said(&output))),
        }
    }
}

/// Runs every script on every version and on ours, writes the table, and fails if something is not
/// as the page says.
pub(crate) fn run(repo: &Repository) -> Result<(), String> {
    let mut judges = Vec::new();
    let mut larder = PathBuf::new();
    for torch in torch::ALL {
        eprintln!("==> the judge of PyTorch {torch}");
        let programs = Programs::build(repo, torch)?;
        judges.push((torch, programs.judge));
        larder = programs.larder;
    }
    let defects = defects(&repo.root)?;
    let versions = torch::ALL.map(|torch| torch.minor).join(" | ");
    let headings = format!("what goes wrong | memory | settings | figure | {versions} | Larder");
    let (mut table, mut wrong) = (Table::new(&headings, 4), Vec::new());
    for defect in &defects {
        let Defect { script, memory_mib, conf, key, right, what, .. } = defect;
        let conf = if conf.is_empty() { String::new() } else { format!("`{conf}`") };
        let what = format!("[{what}](differences/{script}.ops)");
        let mut cells = vec![what, format!("{memory_mib} MiB"), conf, format!("`{key}`")];
        for (torch, judge) in &judges {
            let shown = defect.by_peer(repo, judge)?;
            if (shown == Some(*right)) != defect.is_fixed_in(*torch) {
                wrong.push(format!("{script} on PyTorch {torch}: {}", defect.cell(shown)));
            }
            cells.push(defect.cell(shown));
        }
        let ours = defect.by_ours(repo, &larder)?;
        if ours != Some(*right) {
            wrong.push(format!("{script} on Larder: {}, not {right}", defect.cell(ours)));
        }
        cells.push(defect.cell(ours));
        table.push(&cells);
    }
    let table = table.markdown();
    print!("{table}");
    if !wrong.is_empty() {
        return Err(format!("not as {PAGE} says: {}", wrong.join("; ")));
    }
    docs::write(repo, PAGE, "differences", &table)?;
    println!("{} scripts on {} PyTorchs and on Larder", defects.len(), judges.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_there_and_every_version_has_its_verdict() {
        let root = Repository::here().unwrap().root;
        let defects = defects(&root).unwrap();
        for Defect { script, .. } in &defects {
            assert!(root.join(FOLDER).join(format!("{script}.ops")).is_file(), "{script}");
        }
        let mended = defects.iter().find(|defect| defect.fixed_in == "2.13").unwrap();
        let verdicts = torch::ALL.map(|torch| mended.is_fixed_in(torch));
        assert_eq!(verdicts, [false, false, true, true, true]);
        assert!(!defects[0].is_fixed_in(torch::NEWEST));
    }
}
