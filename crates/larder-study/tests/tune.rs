//! Tuning: settings at least as good as the best that people set by hand, found in seconds.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_core::types::MIB;
use larder_core::{Config, Policy};
use larder_study::replay::{Replay, Setup};
use larder_study::tune::tune;
use larder_study::watch::Unwatched;
use larder_study::workload::{Addresses, Workload};

/// Of each trace: what the better of the two settings that people try holds over what is in use,
/// and the smallest device that still runs it, over the same; as measured with PyTorch's own
/// allocator.
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

/// The folders that recordings may lie in: two are in the repository, and others may be beside it.
fn folders() -> [PathBuf; 3] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    [root.join("workloads"), root.join("shared/traces"), root.join("../shared/traces")]
}

fn recording(name: &str) -> Option<Workload> {
    let paths = folders().map(|folder| folder.join(format!("{name}.pickle.gz")));
    let path = paths.into_iter().find(|path| path.exists())?;
    Some(Workload::load(&path, 0, &Unwatched).expect("a recording"))
}

/// Tunes stock PyTorch for a recording, and holds what comes of it against what people set by hand.
fn check(name: &str, seconds: u64) {
    let (_, held, card) = BEST_BY_HAND.into_iter().find(|row| row.0 == name).expect("it is known");
    let workload = recording(name).expect("the recording is here");
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    let tuned = tune(&workload, &stock(), &[Policy::torch_2_11()], limit, &Unwatched);
    let (tuned, took) = (tuned.expect("it runs"), start.elapsed());
    let best = &tuned.choices[0];
    // Ratios are given to three digits, and settings may change what is in use.
    let active = tuned.base.peak_active_bytes as f64;
    let ratio = best.peak_reserved_bytes as f64 / active;
    let cards = tuned.choices.iter().filter_map(|choice| choice.card_bytes);
    let smallest = cards.min().expect("it was searched for") as f64 / active;
    println!(
        "{name}: {} holds {ratio:.4} (by hand {held}), runs in {smallest:.4} (by hand {card}), {} \
         tried in {took:.1?}",
        best.conf, tuned.tried
    );
    assert!(ratio <= held + 0.0006, "{name}: {best:?} holds {ratio:.4}, by hand {held}");
    // The search for the smallest memory goes to 8 MiB or 0.2 %.
    let fine = (8 * MIB) as f64 / active + 0.0026;
    assert!(smallest <= card + fine, "{name}: runs in {smallest:.4}, by hand {card}");
    // What is said is what a replay gives.
    let config = Config::parse(&best.conf).expect("settings");
    let replay = Replay::new(&workload, &Setup { config, ..stock() });
    let outcome = replay.run(&workload.ops, &mut ()).expect("it runs");
    assert_eq!(outcome.stats.reserved_bytes.all.peak as u64, best.peak_reserved_bytes);
}

/// `LARDER_TUNE=gpt2_train,llama_generate` takes other recordings, where they are at hand.
#[test]
fn stock_pytorch_is_set_no_worse_than_by_hand() {
    let names = std::env::var("LARDER_TUNE").unwrap_or_else(|_| "prefetch_streams".to_owned());
    names.split(',').for_each(|name| check(name, 15));
}

#[test]
fn on_a_card_that_is_too_small_for_the_default_it_finds_what_runs() {
    let workload = recording("gpt2_varlen").expect("it is in the repository");
    let setup = Setup { memory_bytes: 12_700 * MIB, ..stock() };
    let limit = Duration::from_secs(10);
    let tuned = tune(&workload, &setup, &[Policy::torch_2_11()], limit, &Unwatched);
    let tuned = tuned.expect("it can be replayed");
    assert!(tuned.base.ooms > 0, "it fails as it is");
    assert_eq!((tuned.choices[0].ooms, tuned.choices[0].retries), (0, 0), "{:?}", tuned.choices[0]);
    assert_eq!(tuned.choices.len(), 3);
}
