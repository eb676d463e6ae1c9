//! Tuning: settings at least as good as the best that people set by hand, found in seconds.

use std::path::Path;
use std::time::{Duration, Instant};

use larder_core::types::MIB;
use larder_core::{Config, Policy};
use larder_study::replay::{Replay, Setup};
use larder_study::tune::tune;
use larder_study::watch::Unwatched;
use larder_study::workload::{Addresses, Workload};

/// Of each trace: what the better of the two settings that people try holds over what is in use, and the
/// smallest device that still runs it, over the same; as measured with PyTorch's own allocator.
const BEST_BY_HAND: [(&str, f64, f64); 6] = [
    ("gpt2_train", 1.048, 1.023),
    ("gpt2_varlen", 1.072, 1.008),
    ("resnet_varbatch", 1.017, 1.010),
    ("llama_generate", 1.075, 1.067),
    ("prefetch_streams", 1.180, 1.023),
    ("cuda_graphs", 1.081, 1.048),
];

fn stock() -> Setup {
    Setup { policy: Policy::torch_2_11(), addresses: Addresses::Lowest, ..Setup::default() }
}

/// Where the recording of this name is, if it is here: the repository has two of them.
fn recording(name: &str) -> Option<Workload> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders =
        [root.join("workloads"), root.join("shared/traces"), root.join("../shared/traces")];
    let paths = folders.map(|folder| folder.join(format!("{name}.pickle.gz")));
    let path = paths.into_iter().find(|path| path.exists())?;
    Some(Workload::load(&path, 0, &Unwatched).expect("a recording"))
}

#[test]
fn stock_pytorch_is_set_no_worse_than_by_hand() {
    let mut found = 0;
    for (name, held, card) in BEST_BY_HAND {
        let Some(workload) = recording(name) else { continue };
        found += 1;
        let start = Instant::now();
        let limit = Duration::from_secs(20);
        let tuned = tune(&workload, &stock(), &[Policy::torch_2_11()], limit, &Unwatched);
        let (tuned, took) = (tuned.expect("it runs"), start.elapsed());
        let best = &tuned.choices[0];
        // Ratios are given to three digits, and settings may change what is in use.
        let active = tuned.base.peak_active_bytes as f64;
        let ratio = best.peak_reserved_bytes as f64 / active;
        assert!(ratio <= held + 0.0006, "{name}: {best:?} holds {ratio:.4}, by hand {held}");
        let cards = tuned.choices.iter().filter_map(|choice| choice.card_bytes);
        let smallest = cards.min().expect("it was searched for") as f64 / active;
        // The search for the smallest memory goes to 8 MiB or 0.2 %.
        let fine = (8 * MIB) as f64 / active + 0.0026;
        assert!(smallest <= card + fine, "{name}: runs in {smallest:.4}, by hand {card}");
        println!(
            "{name}: {} holds {ratio:.4}, runs in {smallest:.4}, {} tried in {took:.1?}",
            best.conf, tuned.tried
        );
        // What is said is what a replay gives.
        let config = Config::parse(&best.conf).expect("settings");
        let replay = Replay::new(&workload, &Setup { config, ..stock() });
        let outcome = replay.run(&workload.ops, &mut ()).expect("it runs");
        assert_eq!(outcome.stats.reserved_bytes.all.peak as u64, best.peak_reserved_bytes);
    }
    assert!(found >= 2, "the repository has two recordings");
}

#[test]
fn on_a_card_that_is_too_small_for_the_default_it_finds_what_runs() {
    let workload = recording("gpt2_varlen").expect("it is in the repository");
    let setup = Setup { memory_bytes: 12_700 * MIB, ..stock() };
    let limit = Duration::from_secs(20);
    let tuned = tune(&workload, &setup, &[Policy::torch_2_11()], limit, &Unwatched);
    let tuned = tuned.expect("it can be replayed");
    assert!(tuned.base.ooms > 0, "it fails as it is");
    assert_eq!((tuned.choices[0].ooms, tuned.choices[0].retries), (0, 0), "{:?}", tuned.choices[0]);
    assert_eq!(tuned.choices.len(), 3);
}
