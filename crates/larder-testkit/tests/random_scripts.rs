//! Random scripts by the thousand: every policy, with and without faults and expandable segments,
//! on one to four streams, half of them with private pools (some over sources), graph captures and
//! checkpoints; the tight policy, which no model follows, with streams that go, blocks that are
//! shared and peers besides. A failure prints its seed, and `cargo testkit soak` repeats it;
//! `LARDER_SEED=N` runs that seed alone.

use larder_core::Policy;
use larder_core::policy::{CaptureRule, ReclaimRule};
use larder_testkit::soak::{self, COMBINATIONS, Plan, Report};

const STEPS: usize = 2_000;
/// A multiple of `COMBINATIONS`, so that a seed's distance from it tells its combination.
const BASE_SEED: u64 = 20_260_000;
/// Scripts for each combination of policy, faults, expandable segments and streams.
const SCRIPTS_PER_COMBINATION: u64 = 32;
/// A group has the combinations of one policy, faults or none, expandable segments or none.
const GROUPS: u64 = 8;

const LARDER: u64 = 1;
const FAULTS: u64 = 2;
const EXPANDABLE: u64 = 4;

fn asked_seed() -> Option<u64> {
    std::env::var("LARDER_SEED").ok().map(|text| text.parse().expect("LARDER_SEED is a seed"))
}

/// Runs all scripts of a group, or of those the one that the environment asks for.
fn run_group(group: u64) {
    let asked = asked_seed();
    let all = BASE_SEED..BASE_SEED + COMBINATIONS * SCRIPTS_PER_COMBINATION;
    let seeds: Vec<u64> = asked.map_or_else(|| all.collect(), |seed| vec![seed]);
    let mut total = Report::default();
    for seed in seeds.into_iter().filter(|seed| seed % GROUPS == group) {
        match soak::run(seed, STEPS) {
            Ok(report) => total += report,
            Err(failure) => panic!("{failure}"),
        }
    }
    if asked.is_none() {
        check_exercise(group, &total);
    }
}

/// Runs that never got into a tight spot would prove nothing.
fn check_exercise(group: u64, total: &Report) {
    let scripts = COMBINATIONS / GROUPS * SCRIPTS_PER_COMBINATION;
    assert!(total.steps >= scripts * STEPS as u64, "{total:?}");
    let tight = [total.out_of_memory, total.retries, total.waits];
    assert!(tight.into_iter().all(|count| count > scripts), "{total:?}");
    assert!(total.partial_releases > 0, "{total:?}");
    assert!(total.hits > total.mallocs / 2 && total.changes > scripts / 2, "{total:?}");
    if group & FAULTS == 0 {
        assert_eq!(total.model_steps, total.steps, "the model was there at every step");
        assert_eq!(total.device_errors, 0);
    } else {
        assert!(total.device_errors > scripts && total.failed_calls > scripts, "{total:?}");
        assert!(total.model_steps > 0, "some troubles the model can follow");
    }
    let pooled = [total.scopes, total.captures, total.deferrals];
    assert!(pooled.into_iter().all(|count| count > 2 * scripts), "{total:?}");
    assert!(total.restores > scripts / 2, "{total:?}");
    let named = [total.placed, total.refused_addresses];
    assert!(named.into_iter().all(|count| count > 4 * scripts), "{total:?}");
    let sourced = [total.sources, total.source_segments];
    assert!(sourced.into_iter().all(|count| count > scripts / 2), "{total:?}");
    assert!(total.reclaimed_in_captures > scripts / 8, "{total:?}");
    if group & (LARDER | FAULTS) == LARDER {
        assert!(total.rested > 4 * scripts, "{total:?}");
    }
    if group & EXPANDABLE != 0 {
        assert!(total.maps > 10 * scripts && total.unmaps > 10 * scripts, "{total:?}");
    }
}

#[test]
fn torch() {
    run_group(0);
}

#[test]
fn larder() {
    run_group(LARDER);
}

#[test]
fn torch_with_faults() {
    run_group(FAULTS);
}

#[test]
fn larder_with_faults() {
    run_group(LARDER | FAULTS);
}

#[test]
fn torch_with_expandable_segments() {
    run_group(EXPANDABLE);
}

#[test]
fn larder_with_expandable_segments() {
    run_group(LARDER | EXPANDABLE);
}

#[test]
fn torch_with_expandable_segments_and_faults() {
    run_group(EXPANDABLE | FAULTS);
}

#[test]
fn larder_with_expandable_segments_and_faults() {
    run_group(LARDER | EXPANDABLE | FAULTS);
}

/// Runs scripts under the policy for pinned memory of the host, with faults or without.
fn run_pinned(faults: u64) {
    const SCRIPTS: u64 = 2 * COMBINATIONS;
    let asked = asked_seed();
    let seeds: Vec<u64> =
        asked.map_or_else(|| (BASE_SEED..BASE_SEED + 2 * SCRIPTS).collect(), |seed| vec![seed]);
    let mut total = Report::default();
    for seed in seeds.into_iter().filter(|seed| seed & FAULTS == faults) {
        match soak::run_under(Policy::pinned(), seed, STEPS) {
            Ok(report) => total += report,
            Err(failure) => panic!("{failure}"),
        }
    }
    if asked.is_some() {
        return;
    }
    println!("{total:?}");
    assert!(total.steps >= SCRIPTS * STEPS as u64, "{total:?}");
    let often = [total.out_of_memory, total.waits, total.scopes, total.captures, total.deferrals];
    assert!(often.into_iter().all(|count| count > SCRIPTS), "{total:?}");
    assert!(total.hits > total.mallocs / 2, "{total:?}");
    assert_eq!(total.device_errors > 0, faults != 0, "{total:?}");
    let is_followed = total.model_steps == total.steps;
    assert!(is_followed || faults != 0, "the model was there at every step: {total:?}");
}

#[test]
fn pinned() {
    run_pinned(0);
}

#[test]
fn pinned_with_faults() {
    run_pinned(FAULTS);
}

/// Runs scripts under the tight policy, with faults or without.
fn run_tight(faults: u64) {
    const SCRIPTS: u64 = 4 * COMBINATIONS;
    let asked = asked_seed();
    let seeds: Vec<u64> =
        asked.map_or_else(|| (BASE_SEED..BASE_SEED + 2 * SCRIPTS).collect(), |seed| vec![seed]);
    let mut total = Report::default();
    for seed in seeds.into_iter().filter(|seed| seed & FAULTS == faults) {
        match soak::run_under(Policy::tight(), seed, STEPS) {
            Ok(report) => total += report,
            Err(failure) => panic!("{failure}"),
        }
    }
    if asked.is_some() {
        return;
    }
    println!("{total:?}");
    assert!(total.steps >= SCRIPTS * STEPS as u64, "{total:?}");
    let often = [total.out_of_memory, total.waits, total.scopes, total.captures, total.deferrals];
    assert!(often.into_iter().all(|count| count > 2 * SCRIPTS), "{total:?}");
    // What this policy alone does.
    assert!(total.view_steps > total.steps / 20 && total.follows > 10 * SCRIPTS, "{total:?}");
    assert!(total.placed > SCRIPTS, "{total:?}");
    assert!(total.shared > SCRIPTS && total.forgotten_streams > SCRIPTS, "{total:?}");
    assert!(total.restores > SCRIPTS / 2, "{total:?}");
    assert!(total.sources > SCRIPTS / 2 && total.source_segments > SCRIPTS / 2, "{total:?}");
    assert_eq!(total.device_errors > 0, faults != 0, "{total:?}");
}

#[test]
fn tight() {
    run_tight(0);
}

#[test]
fn tight_with_faults() {
    run_tight(FAULTS);
}

/// A choice of the policy, with the way to flip it.
type Flip = (&'static str, fn(&mut Policy));

/// Every choice but one that no script shows, the rounding of the cap: sizes are multiples of 512
/// bytes, so that one byte more or less shows only where the cap is such a multiple itself.
const FLIPS: [Flip; 11] = [
    ("search_after_recovery", |policy| policy.search_after_recovery ^= true),
    ("collect_without_cap", |policy| policy.collect_without_cap ^= true),
    ("split_limit_spares_expandable", |policy| policy.split_limit_spares_expandable ^= true),
    ("split_by_segment_kind", |policy| policy.split_by_segment_kind ^= true),
    ("cap_counts_pages", |policy| policy.cap_counts_pages ^= true),
    ("oversize_is_remembered", |policy| policy.oversize_is_remembered ^= true),
    ("make_room_skips_expandable", |policy| policy.make_room_skips_expandable ^= true),
    ("release_bare_segments", |policy| policy.release_bare_segments ^= true),
    ("refuse_hopeless", |policy| policy.refuse_hopeless ^= true),
    ("capture", |policy| {
        let is_scope = policy.capture == CaptureRule::OpenScope;
        policy.capture = if is_scope { CaptureRule::OwnStream } else { CaptureRule::OpenScope };
    }),
    ("reclaim", |policy| {
        let is_next = policy.reclaim == ReclaimRule::NextMalloc;
        policy.reclaim = if is_next { ReclaimRule::ScopeEnd } else { ReclaimRule::NextMalloc };
    }),
];

/// The first failure among many seeds when the model decides one thing differently.
fn failure_when_flipped(flip: fn(&mut Policy)) -> Option<Box<soak::Failure>> {
    (BASE_SEED..BASE_SEED + 1024).filter(|seed| seed & FAULTS == 0).find_map(|seed| {
        let mut plan = Plan::new(seed, STEPS);
        flip(&mut plan.judge);
        soak::run_plan(&plan, &plan.script()).err()
    })
}

#[test]
fn a_choice_made_differently_is_found_and_shown_in_a_few_operations() {
    for (name, flip) in FLIPS {
        let failure = failure_when_flipped(flip).unwrap_or_else(|| panic!("{name} goes unnoticed"));
        println!("{name}: {} operations, {}", failure.prefix.len(), failure.prefix_reason);
        assert!(failure.prefix.len() <= 90, "{name}: {failure}");
        let text = failure.to_string();
        assert!(
            text.contains(&format!("cargo testkit soak --seed {} --steps {STEPS}", failure.seed))
        );
        assert!(text.contains("judged by another policy"), "{text}");
        // What is shown fails by itself.
        let mut plan = Plan::new(failure.seed, STEPS);
        flip(&mut plan.judge);
        assert!(soak::run_plan(&plan, &failure.prefix).is_err());
    }
}
