//! Programs one after the other in one process, with the cache emptied between: under the policy
//! tight each holds what it would hold alone, however much those before it used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use larder_core::types::GIB;
use larder_core::{Allocator, Config, Policy};
use larder_sim::script::Op;
use larder_study::replay::{Audience, Replay, Setup};
use larder_study::watch::Unwatched;
use larder_study::workload::Workload;

/// The recordings of the repository, and those beside it where there are some.
fn recordings() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in [root.join("workloads"), root.join("../shared/traces")] {
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            let is_known = files.iter().any(|file| file.file_name() == path.file_name());
            if path.to_string_lossy().ends_with(".pickle.gz") && !is_known {
                files.push(path);
            }
        }
    }
    assert!(files.len() >= 2, "the repository has recordings");
    files.sort();
    files
}

/// A program whose allocations are numbered from here on, and that leaves nothing: what is live at
/// its end is freed, and its pools are released. Returns the number of the next program's first.
fn whole(ops: &[Op], from: u64, all: &mut Vec<Op>) -> u64 {
    let mut live = Vec::new();
    let mut pool_uses: BTreeMap<u32, usize> = BTreeMap::new();
    let mut next = from;
    all.push(Op::ResetPeak);
    for &op in ops {
        match op {
            Op::PoolNew { pool } | Op::PoolBegin { pool, .. } => {
                *pool_uses.entry(pool).or_default() += 1;
            }
            Op::PoolRelease { pool } => *pool_uses.entry(pool).or_default() -= 1,
            _ => {}
        }
        all.push(match op {
            Op::Alloc { id, size_bytes, stream } => {
                let id = from + id;
                next = next.max(id + 1);
                live.push(id);
                Op::Alloc { id, size_bytes, stream }
            }
            Op::Free { id } => {
                live.retain(|&other| other != from + id);
                Op::Free { id: from + id }
            }
            Op::Record { id, stream } => Op::Record { id: from + id, stream },
            other => other,
        });
    }
    all.extend(live.into_iter().map(|id| Op::Free { id }));
    for (pool, uses) in pool_uses {
        all.extend((0..uses).map(|_| Op::PoolRelease { pool }));
    }
    next
}

/// What is held at the most while a program runs, over what it uses at the most.
#[derive(Default)]
struct Held {
    /// Where each program ends.
    ends: Vec<usize>,
    ratios: Vec<f64>,
}

impl Audience for Held {
    fn before(&mut self, allocator: &Allocator, index: usize) {
        if self.ends.contains(&index) {
            let stats = allocator.stats();
            let [held, used] =
                [stats.reserved_bytes, stats.active_bytes].map(|bytes| bytes.all.peak as f64);
            self.ratios.push(held / used);
        }
    }
}

/// The programs one after the other: what each held over what it used.
fn in_sequence(programs: &[&Workload]) -> Vec<f64> {
    let (mut all, mut held, mut from) = (Vec::new(), Held::default(), 0);
    for program in programs {
        from = whole(&program.ops, from, &mut all);
        held.ends.push(all.len());
        all.push(Op::Empty);
    }
    let setup = Setup {
        policy: Policy::tight(),
        config: Config::default(),
        memory_bytes: 139 * GIB,
        ..Setup::default()
    };
    Replay::new(&Workload::default(), &setup).run_on(&all, &mut held).expect("the programs run");
    held.ratios
}

#[test]
fn each_program_holds_what_it_would_hold_alone() {
    let names = recordings();
    let programs: Vec<Workload> = names
        .iter()
        .map(|file| Workload::load(file, 0, &Unwatched).expect("a recording"))
        .collect();
    let mut order: Vec<&Workload> = programs.iter().collect();
    // The largest first: it is what would count for all others.
    let allocated = |program: &Workload| program.recording.as_ref().map_or(0, |it| it.held_bytes);
    order.sort_by_key(|program| std::cmp::Reverse(allocated(program)));
    let ratios = in_sequence(&order);
    for (program, ratio) in order.iter().zip(&ratios) {
        let alone = in_sequence(&[program])[0];
        println!("{ratio:.4} in the sequence, {alone:.4} alone");
        assert!(*ratio <= 1.02, "{ratios:?}");
        assert!((ratio - alone).abs() < 0.01, "{ratios:?}, alone {alone}");
    }
}
