//! What is run: scripts, those of recordings among them, and a script of random sizes.

use std::fs;
use std::path::{Path, PathBuf};

use larder_sim::random::Random;

pub(super) const HOT_BLOCK: &str = "hot block";
pub(super) const RANDOM_SIZES: &str = "random sizes";
pub(super) const VARLEN: &str = "gpt2_varlen";

/// How many blocks of the random script are live once it is under way.
const LIVE: u64 = 600;
/// How often the random script frees one of them and allocates another.
const TURNS: u64 = 20_000;

/// Something to run.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) script: PathBuf,
}

impl Workload {
    /// The numbers of threads with which it is measured: two only where the answer is another one.
    pub(super) fn threads(&self) -> &'static [u64] {
        match self.name.as_str() {
            HOT_BLOCK | RANDOM_SIZES | VARLEN => &[1, 2],
            _ => &[1],
        }
    }

    /// What its row is called.
    pub(super) fn row(&self, threads: u64) -> String {
        match threads {
            1 => self.name.clone(),
            _ => format!("{}, {threads} threads", self.name),
        }
    }
}

/// What is run: a script of random sizes, which is written into the scratch folder, and the scripts
/// in a folder, those of recordings last.
pub(super) fn collect(scripts: &Path, scratch: &Path) -> Result<Vec<Workload>, String> {
    let random = scratch.join("random_sizes.ops");
    write(&random, random_sizes(1))?;
    let entries = fs::read_dir(scripts);
    let entries = entries.map_err(|error| format!("{}: {error}", scripts.display()))?;
    let mut workloads = vec![Workload { name: RANDOM_SIZES.to_owned(), script: random }];
    for script in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = script.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        workloads.push(Workload { name, script });
    }
    let is_recorded = |name: &str| ![HOT_BLOCK, RANDOM_SIZES].contains(&name);
    workloads.sort_by_key(|workload| (is_recorded(&workload.name), workload.name.clone()));
    Ok(workloads)
}

pub(super) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A script in which 600 blocks are live and one after the other makes room for a new one.
fn random_sizes(seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut live: Vec<u64> = (0..LIVE).collect();
    let mut text: String = (0..LIVE).map(|id| alloc(id, size_bytes(&mut random))).collect();
    for id in LIVE..LIVE + TURNS {
        let place = &mut live[random.below(LIVE) as usize];
        text.push_str(&free(*place));
        text.push_str(&alloc(id, size_bytes(&mut random)));
        *place = id;
    }
    text
}

pub(super) fn alloc(id: u64, size_bytes: u64) -> String {
    format!("alloc {id} {size_bytes} 0\n")
}

pub(super) fn free(id: u64) -> String {
    format!("free {id}\n")
}

/// From 256 bytes to 64 MiB, each power of two as likely as the next: most are small, and most
/// bytes are in large ones.
fn size_bytes(random: &mut Random) -> u64 {
    let floor = 1 << (8 + random.below(18));
    floor + random.below(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_script_keeps_600_blocks_live() {
        let script = random_sizes(1);
        assert_eq!(script, random_sizes(1));
        assert_ne!(script, random_sizes(2));
        let (mut live, mut small) = (std::collections::HashSet::new(), 0);
        for line in script.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["alloc", id, size, "0"] => {
                    let size: u64 = size.parse().unwrap();
                    assert!((256..64 << 20).contains(&size) && live.insert(id));
                    small += u64::from(size <= 1 << 20);
                }
                ["free", id] => assert!(live.remove(id) && live.len() as u64 + 1 == LIVE),
                _ => panic!("{line}"),
            }
        }
        assert_eq!(live.len() as u64, LIVE);
        assert!((TURNS / 2..TURNS * 9 / 10).contains(&small));
    }
}
