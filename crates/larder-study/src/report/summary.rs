//! Summaries for people.

use std::path::Path;

use larder_core::Policy;
use larder_core::types::Bytes;
use larder_sim::Spent;

use crate::bench::Measured;
use crate::compare::{Row, misplaced_remark};
use crate::fidelity::Unlike;
use crate::passes::Pass;
use crate::recording::RecordedMemory;
use crate::replay::{DEFAULT_MEMORY_BYTES, Outcome, Setup};
use crate::report::driver;
use crate::report::quote::quoted;
use crate::report::table::Table;
use crate::settings::{Chosen, FRACTION_KEY, Origin, names_fraction};
use crate::standing::{Standing, said_up};
use crate::workload::{RecordingFacts, Workload};
use larder_core::record::stats::Counter;

/// What `larder replay` prints of a file.
pub fn outcome(
    file: &str,
    workload: &Workload,
    setup: &Setup,
    settings: &Chosen,
    run: &Outcome,
) -> String {
    let times = times_over(run.passes.len() as u64);
    let times = times.map(|times| format!(", {times},")).unwrap_or_default();
    let name = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
    let mut text = format!(
        "{name}: {}{times} in {:.1} ms ({:.0} ns each)\n\
         {}, {}, on {}\n{}{}{}{}",
        count(workload.ops.len() as u64, "operation"),
        run.elapsed.as_secs_f64() * 1e3,
        if run.operations == 0 {
            0.0
        } else {
            run.elapsed.as_nanos() as f64 / run.operations as f64
        },
        policy(&setup.policy),
        settings.in_words(),
        gpu(workload, setup),
        misplaced(setup),
        settings.remark(),
        allowance(setup, settings),
        changed(workload),
    );
    if let Some(facts) = &workload.recording {
        text.push_str(&recording(facts));
    }
    text.push('\n');
    text.push_str(&memory(run).to_string());
    let stats = &run.stats;
    let wasted = (stats.reserved_bytes.all.peak - stats.active_bytes.all.peak).max(0);
    text.push_str(&format!(
        "\noverhead       {:.3}  (peak reserved over peak active: {} held but never used at \
         once)\n",
        run.overhead(),
        Bytes(wasted as u64),
    ));
    let refused = match stats.num_oom_rejections {
        0 => String::new(),
        refused => format!("; refused by throw_on_cudamalloc_oom: {refused}"),
    };
    text.push_str(&format!(
        "out of memory  {}  (cache flushed and retried: {}{refused})\n",
        run.ooms, stats.num_alloc_retries
    ));
    text.push_str(&private_pools(run));
    let calls = &run.calls;
    text.push_str(&format!(
        "device calls   {} malloc, {} free, {} create, {} map, {} unmap; {} in use at the end\n",
        calls.alloc,
        calls.free,
        calls.create,
        calls.map,
        calls.unmap,
        Bytes(run.used_bytes)
    ));
    let spent = |spent: Spent| format!("{} in {}", driver::time(spent), count(spent.calls, "call"));
    text.push_str(&format!(
        "driver time    {}; in the last third of the operations {}  (as measured on {})\n",
        spent(run.driver),
        spent(run.driver_last_third),
        driver::measured_on()
    ));
    text.push_str(&passes(&run.passes));
    text.push_str(&first_failure(file, workload, run));
    text
}

/// What failed first, if anything did, and how to see it among the others.
fn first_failure(file: &str, workload: &Workload, run: &Outcome) -> String {
    let mut text = String::new();
    if let (Some(first), Some(index)) = (&run.first_oom, run.first_oom_index) {
        let number = index + 1;
        let pass =
            run.passes.iter().position(|pass| pass.ooms > 0).filter(|_| run.passes.len() > 1);
        let pass = pass.map(|pass| format!(" of pass {}", pass + 1)).unwrap_or_default();
        text.push_str(&format!(
            "\nThe first allocation that failed, operation {number}{pass}: {first}\n"
        ));
        if workload.recording.is_some() {
            let file = quoted(file);
            text.push_str(&format!(
                "To see it among the others: `larder snapshot {file} -o operations.ops`, line \
                 {number}\n"
            ));
        }
    }
    text
}

/// The passes one below the other, where there are several.
fn passes(passes: &[Pass]) -> String {
    if passes.len() < 2 {
        return String::new();
    }
    let mut table = Table::new([
        "pass",
        "peak active so far",
        "peak reserved so far",
        "overhead",
        "out of memory",
        "driver calls",
        "driver time",
    ])
    .sparing(["driver calls", "overhead"]);
    for (index, pass) in passes.iter().enumerate() {
        table.push([
            (index + 1).to_string(),
            Bytes(pass.peak_active_bytes).to_string(),
            Bytes(pass.peak_reserved_bytes).to_string(),
            format!("{:.3}", pass.overhead()),
            pass.ooms.to_string(),
            pass.driver.calls.to_string(),
            driver::time(pass.driver),
        ]);
    }
    format!("\n{table}")
}

/// What was held for private pools, in a line, where there were any.
fn private_pools(run: &Outcome) -> String {
    let peaks = run.reserved_by_pool.iter().map(|(_, by_kind)| by_kind.all.peak.max(0) as u64);
    match peaks.clone().max() {
        None | Some(0) => String::new(),
        Some(largest_bytes) => format!(
            "private pools  {} that held memory; the peaks of each come to {}, the largest is {}\n",
            peaks.clone().filter(|&bytes| bytes > 0).count(),
            Bytes(peaks.sum()),
            Bytes(largest_bytes)
        ),
    }
}

/// How the program's sizes were changed, in a line, where they were.
pub(super) fn changed(workload: &Workload) -> String {
    let sizes = &workload.sizes;
    if sizes.is_same() { String::new() } else { format!("sizes: {sizes}\n") }
}

/// Who decides, and for whom that answers.
pub(super) fn policy(policy: &Policy) -> String {
    let name = policy.name;
    match whose(policy) {
        Whose::Torch => format!("policy {name} (stock PyTorch)"),
        Whose::Larder => format!("policy {name} (stock PyTorch's are torch-2.11 to torch-2.15)"),
        Whose::Tight => format!("policy {name} (Larder's for least memory)"),
    }
}

/// Whose decisions a policy makes.
enum Whose {
    Torch,
    Larder,
    Tight,
}

fn whose(policy: &Policy) -> Whose {
    match policy {
        policy if policy.is_stock() => Whose::Torch,
        policy if policy.tight => Whose::Tight,
        _ => Whose::Larder,
    }
}

/// The device, and where its size comes from.
pub(super) fn gpu(workload: &Workload, setup: &Setup) -> String {
    let size = Bytes(setup.memory_bytes);
    match recorded_memory(workload, setup) {
        Some(memory) => format!("a simulated GPU with {size} ({memory})"),
        None => format!("a simulated GPU with {size}{}", held_more(workload, setup)),
    }
}

/// That a recording which tells nothing of its memory held more than there usually is.
fn held_more(workload: &Workload, setup: &Setup) -> String {
    let held_bytes = workload.recording.as_ref().map_or(0, |facts| facts.held_bytes);
    let is_default = workload.recorded_memory().is_none()
        && setup.memory_bytes == setup.clone().with_memory(None, workload).memory_bytes
        && setup.memory_bytes > workload.sizes.scaled(DEFAULT_MEMORY_BYTES);
    if is_default {
        format!(" (the smallest card that has room for the {} that it held)", Bytes(held_bytes))
    } else {
        String::new()
    }
}

/// What part of the device the program may have here, in a line, where that is not all of it or was
/// not when it was recorded.
pub(super) fn allowance(setup: &Setup, settings: &Chosen) -> String {
    let fraction = setup.effective_fraction();
    let allowed = Bytes((fraction * setup.memory_bytes as f64) as u64);
    match setup.fraction {
        Some(recorded) if !names_fraction(&setup.config) => format!(
            "held to the recorded memory fraction of {}, about {allowed}; --conf {FRACTION_KEY}:1 \
             lifts it\n",
            short(recorded)
        ),
        Some(recorded) if settings.origin == Origin::Given => format!(
            "allowed {allowed} of that by {FRACTION_KEY}:{fraction}, whatever was recorded ({})\n",
            short(recorded)
        ),
        _ if fraction < 1.0 => {
            format!("allowed about {allowed} of that by {FRACTION_KEY}:{fraction}\n")
        }
        _ => String::new(),
    }
}

/// What part of the device the rows of a comparison may have, in a line, where a fraction was
/// recorded.
fn allowances(workload: &Workload, setup: &Setup) -> String {
    let recorded = workload.recorded_memory().and_then(|memory| memory.fraction);
    let Some(recorded) = setup.fraction.or(recorded) else { return String::new() };
    let value = short(recorded);
    if setup.fraction.is_none() {
        return format!(
            "the recorded memory fraction of {value} holds for no row that does not name it, \
             because the memory is given\n"
        );
    }
    let part_bytes = (recorded * setup.memory_bytes as f64) as u64;
    let allowed = Bytes(setup.cap_bytes.unwrap_or(part_bytes));
    format!(
        "every row is held to the recorded memory fraction of {value}, about {allowed}, but for \
         those that name {FRACTION_KEY} themselves\n"
    )
}

/// A fraction with as many digits as a person reads.
fn short(fraction: f64) -> String {
    let text = format!("{fraction:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The memory that the recording tells, where it is what the run has.
fn recorded_memory(workload: &Workload, setup: &Setup) -> Option<RecordedMemory> {
    workload.recorded_memory().filter(|memory| {
        (memory.device_bytes, memory.fraction) == (setup.memory_bytes, setup.fraction)
    })
}

/// A number with its noun.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn recording(facts: &RecordingFacts) -> String {
    let mut text = format!("recorded: {} entries of the trace", facts.entries);
    if let Some(conf) = facts.conf.as_deref().filter(|conf| !conf.is_empty()) {
        text.push_str(&format!(", with {conf}"));
    }
    if facts.preexisting_blocks > 0 {
        text.push_str(&format!(
            "; {} ({}) live before the recording began, allocated first",
            count(facts.preexisting_blocks, "block"),
            Bytes(facts.preexisting_bytes)
        ));
    }
    if facts.ooms > 0 {
        let times = count(facts.ooms, "time");
        text.push_str(&format!("; the program itself ran out of memory {times}"));
    }
    if facts.own_flushes > 0 {
        let times = count(facts.own_flushes, "time");
        text.push_str(&format!("; its allocator gave memory back by itself {times}"));
    }
    if facts.doubtful_flushes > 0 {
        let which = match (facts.doubtful_flushes, facts.own_flushes) {
            (1, 1) => "which may have been an empty_cache call".to_owned(),
            (1, _) => "1 of them may have been an empty_cache call".to_owned(),
            (doubtful, _) => format!("{doubtful} of them may have been empty_cache calls"),
        };
        text.push_str(&format!(" ({which}: the recording has no call stacks of these that tell)"));
    }
    if facts.unknown_entries > 0 {
        let entries = facts.unknown_entries;
        text.push_str(&format!("; {entries} of an unknown kind, which are not replayed"));
    }
    text.push('\n');
    text
}

/// How a value of a statistic is written.
type Cell<'a> = &'a dyn Fn(i64) -> String;

/// The statistics that people look at first, by the names that `torch.cuda.memory_summary` uses.
fn memory(run: &Outcome) -> Table {
    let stats = &run.stats;
    let mut table = Table::new(["memory", "now", "peak", "total allocated", "total freed"]);
    let bytes = |bytes: i64| Bytes(bytes.max(0) as u64).to_string();
    let rows: [(&str, &Counter, Cell<'_>); 9] = [
        ("allocated", &stats.allocated_bytes.all, &bytes),
        ("active", &stats.active_bytes.all, &bytes),
        ("requested", &stats.requested_bytes.all, &bytes),
        ("reserved", &stats.reserved_bytes.all, &bytes),
        ("  large pool", &stats.reserved_bytes.large_pool, &bytes),
        ("  small pool", &stats.reserved_bytes.small_pool, &bytes),
        ("inactive split", &stats.inactive_split_bytes.all, &bytes),
        ("allocations", &stats.allocation.all, &|count| count.to_string()),
        ("segments", &stats.segment.all, &|count| count.to_string()),
    ];
    for (name, counter, cell) in rows {
        table.push([
            name.to_owned(),
            cell(counter.current),
            cell(counter.peak),
            cell(counter.allocated),
            cell(counter.freed),
        ]);
    }
    table
}

/// What `larder compare` prints for one policy: the settings side by side, and which of them needs
/// least.
pub fn rows(name: &str, workload: &Workload, setup: &Setup, rows: &[Row]) -> String {
    let heading = format!("{name}: {}, {}", policy(&setup.policy), gpu(workload, setup));
    let (table, remark) = (comparison(rows), driver::remark());
    let changed = changed(workload);
    let allowed = allowances(workload, setup);
    format!("{heading}\n{allowed}{changed}\n{table}{remark}\n{}", left_open(setup))
}

/// What `larder compare` prints for several policies, one below the other.
pub fn policies(name: &str, workload: &Workload, compared: &[(Setup, Vec<Row>)]) -> String {
    let Some((setup, _)) = compared.first() else { return String::new() };
    let (allowed, changed) = (allowances(workload, setup), changed(workload));
    let mut text = format!("{name}: {}\n{allowed}{changed}", gpu(workload, setup));
    for (setup, rows) in compared {
        let whose = match whose(&setup.policy) {
            Whose::Torch => "what stock PyTorch does",
            Whose::Larder => "Larder's own decisions",
            Whose::Tight => "what Larder does for least memory, at the price of driver calls",
        };
        text.push_str(&format!("\npolicy {}: {whose}\n\n", setup.policy.name));
        text.push_str(&comparison(rows));
    }
    text.push_str(&format!("\n{}\n", driver::remark()));
    text.push_str(&left_open(setup));
    text
}

/// Says what runs where the recording leaves open what the program was allowed.
fn left_open(setup: &Setup) -> String {
    let Some(caps) = setup.caps else { return String::new() };
    format!(
        "\nthe recording leaves open how much the program was allowed: {caps}; what is said to run \
         does so with the least and the most of that, so give --card with the card's size, or \
         --cap with what the program was allowed\n"
    )
}

/// That it depends on the cap whether it runs, and from which on it does.
pub fn standing_in_words(standing: Standing) -> Option<String> {
    match standing {
        Standing::Runs | Standing::Fails => None,
        Standing::Depends(Some(bytes)) => {
            Some(format!("depends on the cap: runs from {} on", Bytes(said_up(bytes))))
        }
        Standing::Depends(None) => Some("depends on the cap".to_owned()),
    }
}

/// Says how a replay went another way than the recorded program.
pub fn unlike(unlike: &Unlike) -> String {
    let times = |number| count(number, "time");
    let what = if unlike.ooms < unlike.recorded_ooms {
        "the recorded failure does not happen in a replay"
    } else {
        "a replay goes another way than the recorded program"
    };
    let recorded_retries = match unlike.recorded_retries {
        (least, most) if least == most => times(most),
        (least, most) => format!("{least} to {}", times(most)),
    };
    let policy = match unlike.policy {
        Some(name) => format!("policy {name}"),
        None => "stock PyTorch's policy".to_owned(),
    };
    format!(
        "\n{what}: under its own settings and {policy} it runs out of memory {} and tries \
         again {}, the program did so {} and {recorded_retries}; so trust none of these numbers\n",
        times(unlike.ooms),
        times(unlike.retries),
        times(unlike.recorded_ooms),
    )
}

/// The table, the verdict and the remarks.
fn comparison(rows: &[Row]) -> String {
    let mut table = Table::new([
        "settings",
        "peak allocated",
        "peak active",
        "peak reserved",
        "overhead",
        "retries",
        "out of memory",
        "driver time",
    ])
    .sparing(["peak allocated", "peak active", "driver time"]);
    for row in rows {
        let stats = &row.outcome.stats;
        table.push([
            row_name(row),
            Bytes(stats.allocated_bytes.all.peak as u64).to_string(),
            Bytes(stats.active_bytes.all.peak as u64).to_string(),
            Bytes(stats.reserved_bytes.all.peak as u64).to_string(),
            format!("{:.3}", row.outcome.overhead()),
            stats.num_alloc_retries.to_string(),
            row.outcome.ooms.to_string(),
            driver::time(row.outcome.driver),
        ]);
    }
    let mut text = format!("{table}\n{}\n", verdict(rows));
    for row in rows {
        if let Some(words) = standing_in_words(row.standing) {
            text.push_str(&format!("{}: {words}\n", conf_name(&row.conf)));
        }
    }
    for remark in rows.iter().filter_map(|row| row.remark.as_ref()) {
        text.push_str(&format!("{remark}\n"));
    }
    text
}

/// Which settings need least, if they ran at all; and which need least without trying again,
/// because that costs time.
fn verdict(rows: &[Row]) -> String {
    let reserved = |row: &Row| row.outcome.stats.reserved_bytes.all.peak;
    let retries = |row: &Row| row.outcome.stats.num_alloc_retries;
    let smallest = best(rows, |row| (row.standing, row.outcome.ooms, reserved(row), retries(row)));
    let calmest = best(rows, |row| (row.standing, row.outcome.ooms, retries(row), reserved(row)));
    let (Some(small), Some(calm)) = (smallest.first(), calmest.first()) else {
        return String::new();
    };
    if let Standing::Depends(_) = small.standing {
        return "whether any of them runs depends on what the program was allowed".to_owned();
    }
    if small.standing == Standing::Fails {
        return none_ran(rows, small);
    }
    if smallest.len() == rows.len() && rows.len() > 1 {
        return "they all need the same".to_owned();
    }
    let least = format!("least memory: {}", names(&smallest));
    if retries(small) == retries(calm) {
        return least;
    }
    let seldom = match retries(calm) {
        0 => "without retries".to_owned(),
        number => format!("with no more retries than {number}"),
    };
    format!("{least}; least memory {seldom}: {}", names(&calmest))
}

/// What came nearest where nothing ran.
fn none_ran(rows: &[Row], nearest: &Row) -> String {
    let fewest = nearest.outcome.ooms;
    let failures = count(fewest, "failure");
    let none = "none of them ran without running out of memory";
    if rows.iter().all(|row| row.outcome.ooms == fewest) {
        return format!("{none}: each had {failures}");
    }
    format!("{none}; nearest came {}, with {failures}", conf_name(&nearest.conf))
}

/// The rows of which this is least.
fn best<K: Ord>(rows: &[Row], key: impl Fn(&Row) -> K) -> Vec<&Row> {
    let least = rows.iter().map(&key).min();
    rows.iter().filter(|row| Some(key(row)) == least).collect()
}

fn names(rows: &[&Row]) -> String {
    let names: Vec<&str> = rows.iter().map(|row| conf_name(&row.conf)).collect();
    names.join(" and ")
}

/// The settings of a line, and whether they are those of the recording.
fn row_name(row: &Row) -> String {
    let conf = conf_name(&row.conf);
    if row.is_recorded { format!("{conf} [as recorded]") } else { conf.to_owned() }
}

/// Settings as a table names them.
pub fn conf_name(conf: &str) -> &str {
    if conf.is_empty() { "(default)" } else { conf }
}

/// How many times over a program runs, in words; nothing where it runs but once.
pub(super) fn times_over(passes: u64) -> Option<String> {
    (passes > 1).then(|| format!("{passes} times over"))
}

/// A line about settings that the policy does not listen to, if there are any.
pub(super) fn misplaced(setup: &Setup) -> String {
    misplaced_remark(setup).map_or(String::new(), |remark| format!("{remark}\n"))
}

/// What `larder bench` tells a person.
pub fn measured(name: &str, measured: &Measured) -> String {
    let threads = match measured.threads {
        1 => String::new(),
        threads => format!(" on {threads} threads"),
    };
    format!(
        "{name}: {:.1} ns for each of {}{threads}\n",
        measured.ns_per_op,
        count(measured.ops, "operation")
    )
}
