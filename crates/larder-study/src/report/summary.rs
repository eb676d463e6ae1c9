//! Summaries for people.

use larder_core::Policy;
use larder_core::types::Bytes;

use crate::bench::Measured;
use crate::compare::Row;
use crate::fit::Fit;
use crate::replay::{Outcome, Setup};
use crate::report::table::Table;
use crate::workload::{RecordingFacts, Workload};
use larder_core::record::stats::Counter;

/// What `larder replay` prints.
pub fn outcome(
    name: &str,
    workload: &Workload,
    setup: &Setup,
    conf: &str,
    run: &Outcome,
) -> String {
    let conf = conf.trim_matches([',', ' ']);
    let conf = if conf.is_empty() { "default settings" } else { conf };
    let mut text = format!(
        "{name}: {} in {:.1} ms ({:.0} ns each)\n\
         {}, {conf}, on {}\n",
        count(workload.ops.len() as u64, "operation"),
        run.elapsed.as_secs_f64() * 1e3,
        if workload.ops.is_empty() {
            0.0
        } else {
            run.elapsed.as_nanos() as f64 / workload.ops.len() as f64
        },
        policy(&setup.policy),
        gpu(workload, setup),
    );
    if let Some(facts) = &workload.recording {
        text.push_str(&recording(facts));
    }
    text.push('\n');
    text.push_str(&memory(run).to_string());
    let stats = &run.stats;
    let wasted = (stats.reserved_bytes.all.peak - stats.active_bytes.all.peak).max(0);
    text.push_str(&format!(
        "\noverhead       {:.3}  (peak reserved over peak active: {} held but never used at once)\n",
        run.overhead(),
        Bytes(wasted as u64),
    ));
    text.push_str(&format!(
        "out of memory  {}  (cache flushed and retried: {})\n",
        run.ooms, stats.num_alloc_retries
    ));
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
    if let (Some(first), Some(index)) = (&run.first_oom, run.first_oom_index) {
        let number = index + 1;
        text.push_str(&format!(
            "\nThe first allocation that failed, operation {number}: {first}\n"
        ));
    }
    text
}

/// Who decides, and for whom that answers.
fn policy(policy: &Policy) -> String {
    if *policy == Policy::default() {
        format!("policy {} (torch-2.11 is stock PyTorch's)", policy.name)
    } else {
        format!("policy {} (stock PyTorch)", policy.name)
    }
}

/// The device, and where its size comes from.
fn gpu(workload: &Workload, setup: &Setup) -> String {
    let size = Bytes(setup.memory_bytes);
    match workload.recorded_memory() {
        Some(memory)
            if (memory.device_bytes, memory.fraction) == (setup.memory_bytes, setup.fraction) =>
        {
            format!("a simulated GPU with {size} ({memory})")
        }
        _ => format!("a simulated GPU with {size}"),
    }
}

/// A number with its noun.
fn count(number: u64, noun: &str) -> String {
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
        let doubtful = facts.doubtful_flushes;
        text.push_str(&format!(
            " ({doubtful} of them may have been empty_cache calls: the recording has no call stacks \
             that would tell)"
        ));
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
    format!("{heading}\n\n{}", comparison(rows))
}

/// What `larder compare` prints for several policies, one below the other.
pub fn policies(name: &str, workload: &Workload, compared: &[(Setup, Vec<Row>)]) -> String {
    let Some((setup, _)) = compared.first() else { return String::new() };
    let mut text = format!("{name}: {}\n", gpu(workload, setup));
    for (setup, rows) in compared {
        let whose = if setup.policy == Policy::default() {
            "Larder's own decisions"
        } else {
            "what stock PyTorch does"
        };
        text.push_str(&format!("\npolicy {}: {whose}\n\n", setup.policy.name));
        text.push_str(&comparison(rows));
    }
    text
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
    ]);
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
        ]);
    }
    let mut text = format!("{table}\n{}\n", verdict(rows));
    for remark in rows.iter().filter_map(|row| row.remark.as_ref()) {
        text.push_str(&format!("{remark}\n"));
    }
    text
}

/// Which settings need least, if they ran at all.
fn verdict(rows: &[Row]) -> String {
    let need = |row: &Row| (row.outcome.ooms, row.outcome.stats.reserved_bytes.all.peak);
    let Some(least) = rows.iter().map(need).min() else { return String::new() };
    if least.0 > 0 {
        return "none of them ran without running out of memory".to_owned();
    }
    let best: Vec<&str> =
        rows.iter().filter(|row| need(row) == least).map(|row| conf_name(&row.conf)).collect();
    if best.len() == rows.len() && best.len() > 1 {
        return "they all need the same".to_owned();
    }
    format!("least memory: {}", best.join(" and "))
}

/// The settings of a line, and whether they are those of the recording.
fn row_name(row: &Row) -> String {
    let conf = conf_name(&row.conf);
    if row.is_recorded { format!("{conf} [as recorded]") } else { conf.to_owned() }
}

fn conf_name(conf: &str) -> &str {
    if conf.is_empty() { "(default)" } else { conf }
}

/// What `larder fit` prints.
pub fn fit(name: &str, setup: &Setup, conf: &str, fit: &Fit) -> String {
    let Some(memory_bytes) = fit.memory_bytes else {
        return format!("{name}: does not run in {}\n", Bytes(setup.memory_bytes));
    };
    let retries = match (fit.retries, fit.calm_bytes) {
        (0, _) => "it never has to give its cache back there and try again".to_owned(),
        (number, Some(calm_bytes)) => format!(
            "it has to give its cache back there and try again {}, each of which costs time; with {} \
             ({calm_bytes} bytes) never",
            count(number, "time"),
            Bytes(calm_bytes)
        ),
        (number, None) => format!(
            "it has to give its cache back there and try again {}, and with {} too",
            count(number, "time"),
            Bytes(setup.memory_bytes)
        ),
    };
    format!(
        "{name}: runs in {} ({memory_bytes} bytes), {:.3} times its peak of {} active\n\
         {retries}\n\
         the CUDA context, other libraries and other processes come on top\n\
         {}, {}\n",
        Bytes(memory_bytes),
        fit.ratio().unwrap_or(1.0),
        Bytes(fit.peak_active_bytes),
        policy(&setup.policy),
        conf_name(conf)
    )
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
