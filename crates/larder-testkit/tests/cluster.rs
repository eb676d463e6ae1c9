//! The simulated cluster: ranks that make the same calls have every block at the same place, and a
//! rank that does not is named. The command `cargo testkit cluster` does the same for as many
//! sequences as one likes.

use std::env;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use larder_testkit::cluster::line::{Line, serve};
use larder_testkit::cluster::meeting::Meeting;
use larder_testkit::cluster::plan::{Plan, Planted, Trouble, Wish};
use larder_testkit::cluster::rank::{Death, run_rank};
use larder_testkit::cluster::run::{Tally, run_many};

/// For each number of ranks: more than 20,000 in all.
const SEQUENCES: u64 = 6_700;
/// Deaths take longer, because others wait for the dead.
const DEATHS: u64 = 500;

fn over_ranks(wish: Wish, sequences: u64) -> Tally {
    let mut tally = Tally::default();
    for ranks in [2, 4, 8] {
        let seed = 100_000 * ranks as u64;
        tally += run_many(seed, sequences, ranks, wish, |_| ())
            .unwrap_or_else(|words| panic!("{words}"));
    }
    assert_eq!(tally.sequences, 3 * sequences);
    println!("{tally:?}");
    tally
}

#[test]
fn ranks_that_make_the_same_calls_have_every_block_at_the_same_place() {
    let tally = over_ranks(Wish::Peace, SEQUENCES);
    assert!(tally.blocks > 20 * SEQUENCES && tally.segments > SEQUENCES, "{tally:?}");
    assert!(tally.refused > 0, "some ran out of memory, and all with them: {tally:?}");
}

#[test]
fn a_rank_that_makes_one_call_otherwise_is_named_at_that_call_on_every_rank() {
    assert_eq!(over_ranks(Wish::Difference, SEQUENCES).named, 3 * SEQUENCES);
}

#[test]
fn a_rank_that_is_gone_while_growing_is_named_and_nothing_leaks() {
    let tally = over_ranks(Wish::Death, DEATHS);
    assert!(tally.deaths > DEATHS, "{tally:?}");
}

// Ranks that are processes: this program once more, told by the environment what to be.

const RANK: &str = "LARDER_TEST_RANK";
const HUB: &str = "LARDER_TEST_HUB";
const FOLDER: &str = "LARDER_TEST_FOLDER";
const PLAN: &str = "LARDER_TEST_PLAN";

/// The plan by the text that a parent hands to its ranks.
fn plan_of(text: &str) -> Plan {
    let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
    let [seed, ranks, wish, dying] = numbers[..] else { panic!("{text}") };
    let wish = [Wish::Peace, Wish::Difference, Wish::Death][wish as usize];
    let mut plan = Plan::new(seed, ranks as usize, wish);
    if wish == Wish::Death {
        // At a segment that is needed whatever the plan.
        plan.planted = Some(Planted { trouble: Trouble::Dies, rank: dying as usize, at: 0 });
    }
    plan
}

/// One rank, if the environment says so. By itself it is no test.
#[test]
fn child_rank() {
    let Ok(rank) = env::var(RANK) else { return };
    let rank: usize = rank.parse().unwrap();
    let plan = plan_of(&env::var(PLAN).unwrap());
    let line = Arc::new(Line::connect(env::var(HUB).unwrap(), rank).unwrap());
    let folder = env::var_os(FOLDER).map(std::path::PathBuf::from);
    let report = run_rank(&plan, rank, line, Death::Abort, folder.as_deref());
    let report = report.unwrap_or_else(|words| panic!("{words}"));
    let told = report.divergence.map(|divergence| divergence.call);
    println!(
        "REPORT positions {:?} told {told:?} planted {:?} loss {:?} read {}",
        report.positions, report.planted_call, report.loss, report.words_read
    );
}

/// Runs a plan with a process for each rank, and gives what each said; none for one that died.
fn run_processes(text: &str) -> Vec<Option<String>> {
    let ranks = plan_of(text).ranks;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = listener.local_addr().unwrap().to_string();
    let name = format!("larder-cluster-{}-{}", std::process::id(), text.replace(' ', "-"));
    let folder = env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let children: Vec<Child> = (0..ranks)
        .map(|rank| {
            Command::new(env::current_exe().unwrap())
                .args(["--exact", "child_rank", "--nocapture", "--test-threads", "1"])
                .envs([(RANK, rank.to_string()), (HUB, hub.clone()), (PLAN, text.to_owned())])
                .env(FOLDER, &folder)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let meeting = Meeting::new(ranks, Duration::from_secs(60));
    let server = thread::spawn(move || serve(&listener, &meeting, ranks));
    let outputs: Vec<Output> =
        children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    server.join().unwrap().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let report = |output: Output| {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line =
            said.lines().find_map(|line| line.split_once("REPORT ")).map(|(_, it)| it.to_owned());
        let died = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() == line.is_some(), "{said}{died}");
        line
    };
    outputs.into_iter().map(report).collect()
}

#[test]
fn processes_read_each_others_blocks_where_their_own_are() {
    for (seed, ranks) in [(1, 2), (2, 4), (3, 8)] {
        let reports = run_processes(&format!("{seed} {ranks} 0 0"));
        let first = reports[0].as_ref().unwrap();
        assert!(reports.iter().all(|report| report.as_ref() == Some(first)), "{reports:?}");
        assert!(!first.ends_with("read 0") && first.contains("loss None"), "{first}");
    }
}

#[test]
fn processes_are_told_where_one_of_them_differs() {
    for seed in 10..13 {
        let reports = run_processes(&format!("{seed} 4 1 0"));
        let words = |report: &Option<String>, before: &str, after: &str| {
            let (_, rest) = report.as_ref().unwrap().split_once(before).unwrap();
            rest.split_once(after).unwrap().0.to_owned()
        };
        let planted: Vec<String> =
            reports.iter().map(|report| words(report, "planted ", " loss")).collect();
        let planted = planted.iter().find(|call| *call != "None").unwrap();
        let told: Vec<String> =
            reports.iter().map(|report| words(report, "told ", " planted")).collect();
        assert!(told.iter().all(|call| *call == format!("Some({planted})")), "{planted}: {told:?}");
    }
}

#[test]
fn a_process_that_dies_while_growing_is_named_to_the_others_who_lose_nothing() {
    for (seed, dying) in [(20, 0), (21, 2), (22, 3)] {
        let reports = run_processes(&format!("{seed} 4 2 {dying}"));
        for (rank, report) in reports.iter().enumerate() {
            match report {
                None => assert_eq!(rank, dying),
                // That nothing leaked it has checked itself.
                Some(report) => {
                    let words = format!("loss Some(\"rank {dying} is gone\")");
                    assert!(rank != dying && report.contains(&words), "{report}");
                }
            }
        }
    }
}
