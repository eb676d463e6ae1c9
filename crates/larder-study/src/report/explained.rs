//! Explanations in words: what was asked, why it failed, and what would have helped.

use larder_core::types::{Bytes, PoolKind};
use larder_snapshot::StackId;

use crate::explain::{Account, Cause, Explanation, Family, Remedy, Verdict};
use crate::replay::Setup;
use crate::report::answer::Commands;
use crate::report::driver;
use crate::report::quote::quoted;
use crate::report::summary::{self, count};
use crate::report::table::Table;
use crate::report::visible::visible_name;
use crate::scene::{Hold, Lane, Provenance, Scene, holders, holds, lanes};
use crate::settings::{Chosen, variables};
use crate::standing::said_up;
use crate::workload::Workload;

/// How many frames of a stack are shown.
const FRAMES_SHOWN: usize = 4;
/// How many kept segments, and how many holders of memory.
const HOLDS_SHOWN: usize = 4;
const HOLDERS_SHOWN: usize = 5;

/// What `larder explain` prints of a program that ran out of memory.
pub fn explained(
    heading: &str,
    explanation: &Explanation,
    provenance: &Provenance<'_>,
    commands: &Commands,
) -> String {
    let Explanation { scene, .. } = explanation;
    let mut text = format!("{heading}\n{}\n", request(explanation, provenance));
    text.push_str(&format!("Why: {}\n\n", why(explanation)));
    text.push_str(&format!(
        "Where the memory is when it fails:\n\n{}\n",
        lanes_table(&lanes(scene))
    ));
    text.push_str(&kept(scene, provenance));
    text.push_str(&held(scene, provenance));
    text.push_str("What would help, each found by replaying the program with it:\n\n");
    text.push_str(&left_open(explanation));
    text.push_str(&format!("{}\n", remedies_table(&explanation.remedies)));
    text.push_str(&format!("{}\n", driver::remark()));
    text.push_str(&format!("\n{}\n", conclusion(explanation, commands)));
    text
}

/// What stands above everything a command says of a program: who decides, with what, on what.
pub fn heading(name: &str, workload: &Workload, setup: &Setup, settings: &Chosen) -> String {
    let (policy, gpu) = (summary::policy(&setup.policy), summary::gpu(workload, setup));
    let allowed = summary::allowance(setup, settings);
    let words = settings.in_words();
    let remark = settings.remark();
    format!("{name}: {policy}, {words}, on {gpu}\n{remark}{allowed}")
}

fn request(explanation: &Explanation, provenance: &Provenance<'_>) -> String {
    let (failure, scene) = (&explanation.failure, &explanation.scene);
    let report = &failure.report;
    let pool = match failure.pool {
        Some(pool) => format!(" in private {pool}"),
        None => String::new(),
    };
    let when = moment(scene.index, failure.id, provenance);
    let asked = Bytes(report.requested_bytes);
    let mut text =
        format!("What failed: {when} asked for {asked} on stream {}{pool}", failure.stream);
    if report.tried_bytes != report.requested_bytes {
        text.push_str(&format!(", for which {} were wanted of the GPU", Bytes(report.tried_bytes)));
    }
    if failure.earlier > 0 {
        text.push_str(&format!("; {} had failed before it", count(failure.earlier, "request")));
    }
    text.push_str(".\n");
    text.push_str(&stack_lines(provenance.stack(failure.id), provenance, "  "));
    if explanation.failures > 1 {
        text.push_str(&format!(
            "In all {} fail; --failure takes another.\n",
            count(explanation.failures, "request")
        ));
    }
    if explanation.went_on > 0 {
        text.push_str(&format!(
            "When it was recorded {} refused, and the program went on.\n",
            match explanation.went_on {
                1 => "1 request was".to_owned(),
                number => format!("{number} requests were"),
            }
        ));
    }
    text
}

/// An operation as a person finds it: by its number, and by when it was in the recording.
pub(super) fn moment(index: usize, id: u64, provenance: &Provenance<'_>) -> String {
    let number = index + 1;
    match provenance.since(id) {
        Some(since) if since.is_older => "what was there before the recording".to_owned(),
        Some(since) => match since.elapsed_us {
            Some(us) => format!("operation {number} ({} into the recording)", elapsed(us)),
            None => format!("operation {number}"),
        },
        None => format!("operation {number}"),
    }
}

fn elapsed(us: u64) -> String {
    match us {
        0..=9_999 => format!("{us} µs"),
        10_000..=9_999_999 => format!("{} ms", us / 1000),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

pub(super) fn stack_lines(
    stack: Option<StackId>,
    provenance: &Provenance<'_>,
    indent: &str,
) -> String {
    let Some(stack) = stack else { return String::new() };
    let frames = provenance.frames(stack);
    let more = frames.len().saturating_sub(FRAMES_SHOWN);
    let mut text = String::new();
    for frame in frames.iter().take(FRAMES_SHOWN) {
        text.push_str(&format!("{indent}at {}\n", visible_name(frame)));
    }
    if more > 0 {
        text.push_str(&format!("{indent}and {} further out\n", count(more as u64, "frame")));
    }
    text
}

/// The range of what the program may have been allowed, and how it is asked away.
fn left_open(explanation: &Explanation) -> String {
    let Some(caps) = explanation.setup.caps else { return String::new() };
    format!(
        "The recording leaves open how much the program was allowed: {caps}. What runs does so \
         with the least and the most of that; --cap or --card makes it sure.\n\n"
    )
}

/// The cause, in a few sentences with its numbers.
pub fn why(explanation: &Explanation) -> String {
    let account = &explanation.account;
    let said = cause_in_words(explanation, account);
    let report = &explanation.failure.report;
    let allowed_bytes = report.total_bytes.min(report.cap_bytes.unwrap_or(u64::MAX));
    let most_bytes =
        explanation.peak_active_bytes().filter(|&most_bytes| most_bytes > allowed_bytes);
    let beyond = most_bytes.map_or(String::new(), |most_bytes| {
        let (most, limit) = (Bytes(most_bytes), limit(explanation));
        format!(
            " But that is the first request that fails and not the last: the program has \
                 {most} in use at its peak, more than {limit}."
        )
    });
    let proof = match (explanation.cause, explanation.is_proven) {
        (Cause::TooLarge | Cause::Demand, _) => "",
        (Cause::Fraction, true) => " A replay without the cap gets past this request.",
        (_, true) => " A replay without that gets past this request.",
        (_, false) => {
            " Taking that away alone does not get past this request: the memory is short besides."
        }
    };
    format!("{said}{proof}{beyond}")
}

/// All that the program may have, by its name.
fn limit(explanation: &Explanation) -> String {
    let report = &explanation.failure.report;
    match report.cap_bytes.filter(|&cap_bytes| cap_bytes < report.total_bytes) {
        Some(cap_bytes) => format!("its cap of {}", Bytes(cap_bytes)),
        None => format!("the {} of the GPU", Bytes(report.total_bytes)),
    }
}

/// Where there is room left: under a cap that is less than what the GPU has.
fn left(explanation: &Explanation) -> String {
    match explanation.account.withheld_bytes {
        0 => "left on the GPU".to_owned(),
        _ => format!("left under {}", limit(explanation)),
    }
}

fn cause_in_words(explanation: &Explanation, account: &Account) -> String {
    let report = &explanation.failure.report;
    let (need, room) = (Bytes(account.tried_bytes), Bytes(account.room_bytes));
    let (total, left) = (Bytes(report.total_bytes), left(explanation));
    match explanation.cause {
        Cause::TooLarge => format!("the request is larger than the whole GPU, {need} of {total}."),
        Cause::Fraction => format!(
            "the program needs more than {}. {} are in use, {} of the cache is free, {room} are \
             left under the cap, of {need} that it takes; the GPU has {} free beyond the cap.",
            limit(explanation),
            Bytes(report.allocated_bytes),
            Bytes(account.cached_bytes()),
            Bytes(account.withheld_bytes)
        ),
        Cause::CameFree => format!(
            "a block of {} that would hold it came free only while it was tried, because another \
             stream still used it, and this policy does not look again.",
            Bytes(report.pieces.own_block_bytes)
        ),
        Cause::Capture => format!(
            "a graph capture is on. The cache has {} that could go back to the GPU, and nothing \
             goes back while a capture is on.",
            Bytes(report.pieces.idle_bytes)
        ),
        Cause::SplitLimit => format!(
            "max_split_size_mb. Blocks above the limit stay whole, for requests above it: {} free \
             on this stream, the largest piece {}, do not serve this one, and live blocks are {} \
             larger than what was asked for.",
            Bytes(account.own_bytes),
            Bytes(account.own_largest_bytes),
            Bytes(account.rounding_bytes)
        ),
        Cause::Pieces => format!(
            "fragmentation. {} are free on this stream in {}, the largest {}, and {room} are \
             {left}: nowhere is {need} in one piece, and live blocks beside the pieces keep them \
             from going back.",
            Bytes(account.own_bytes),
            count(account.own_pieces, "piece"),
            Bytes(account.own_largest_bytes)
        ),
        Cause::OtherStreams | Cause::OtherPools | Cause::OtherKind => {
            elsewhere_in_words(explanation, account)
        }
        Cause::Rounding => format!(
            "rounding. Live blocks are {} larger than what was asked for, and {} are missing.",
            Bytes(account.rounding_bytes),
            Bytes(account.missing_bytes())
        ),
        Cause::Demand => format!(
            "the program needs more memory than there is. {} are in use, {} of the cache is free, \
             {room} are {left}, of {need} that it takes{}.",
            Bytes(report.allocated_bytes),
            Bytes(account.cached_bytes()),
            if account.room_bytes.saturating_add(account.own_bytes) >= account.need_bytes {
                ", and nothing that was tried brings enough of it together but more memory"
            } else {
                ""
            }
        ),
    }
}

/// The cause where memory is free that this request may not have.
fn elsewhere_in_words(explanation: &Explanation, account: &Account) -> String {
    let (need, room) = (Bytes(account.tried_bytes), Bytes(account.room_bytes));
    let left = left(explanation);
    match explanation.cause {
        Cause::OtherStreams => format!(
            "the free memory is another stream's. {} are free {}, where stream {} gets nothing; on \
             its own are {}, and {room} are {left}, of {need} that it takes.",
            Bytes(account.other_streams_bytes()),
            streams_in_words(account),
            explanation.failure.stream,
            Bytes(account.own_bytes)
        ),
        Cause::OtherPools => format!(
            "the free memory is kept by other pools. {} are free {}, where this request gets \
             nothing; where it looks are {}, and {room} are {left}, of {need} that it \
             takes.",
            Bytes(account.other_pools_bytes()),
            pools_in_words(account),
            Bytes(account.own_bytes)
        ),
        _ => format!(
            "the free memory lies in segments for {} requests, {} of them, each kept by a few live \
             blocks; {room} are {left}, of {need} that it takes.",
            if explanation.failure.kind == PoolKind::Large { "small" } else { "large" },
            Bytes(account.other_kind_bytes)
        ),
    }
}

fn streams_in_words(account: &Account) -> String {
    let named: Vec<String> =
        account.by_stream.iter().take(3).map(|(stream, _)| stream.0.to_string()).collect();
    let noun = if named.len() == 1 { "on stream" } else { "on streams" };
    let more = if account.by_stream.len() > 3 { " and others" } else { "" };
    format!("{noun} {}{more}", named.join(", "))
}

fn pools_in_words(account: &Account) -> String {
    let mut named: Vec<String> =
        account.by_pool.iter().take(3).map(|(pool, _)| format!("private {pool}")).collect();
    if account.default_bytes > 0 {
        named.insert(0, "the default pools".to_owned());
    }
    let more = if account.by_pool.len() > 3 { " and others" } else { "" };
    format!("in {}{more}", named.join(", "))
}

/// What each stream has in each pool.
pub fn lanes_table(lanes: &[Lane]) -> Table {
    let mut table = Table::new([
        "stream and pool",
        "segments",
        "held",
        "live",
        "waiting",
        "free",
        "pieces",
        "largest",
    ])
    .sparing(["waiting", "segments"]);
    for lane in lanes {
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        table.push([
            lane_name(lane),
            lane.segments.to_string(),
            bytes(lane.reserved_bytes),
            bytes(lane.live_bytes),
            bytes(lane.waiting_bytes),
            bytes(lane.free_bytes),
            lane.free_pieces.to_string(),
            bytes(lane.largest_bytes),
        ]);
    }
    table
}

fn lane_name(lane: &Lane) -> String {
    let kind = if lane.kind == PoolKind::Small { "small" } else { "large" };
    match lane.pool {
        None => format!("stream {}, {kind}", lane.stream.0),
        Some(pool) => format!("stream {}, {kind}, private {pool}", lane.stream.0),
    }
}

/// The free memory that is kept, and by what.
pub fn kept(scene: &Scene, provenance: &Provenance<'_>) -> String {
    let holds = holds(scene);
    if holds.is_empty() {
        return String::new();
    }
    let free: u64 = holds.iter().map(Hold::free_bytes).sum();
    let mut text = format!(
        "Free memory that live blocks keep from going back: {} in {}. Most of it:\n\n",
        Bytes(free),
        count(holds.len() as u64, "segment")
    );
    for hold in holds.iter().take(HOLDS_SHOWN) {
        text.push_str(&hold_lines(hold, scene, provenance));
    }
    text.push('\n');
    text
}

fn hold_lines(hold: &Hold<'_>, scene: &Scene, provenance: &Provenance<'_>) -> String {
    let segment = hold.segment;
    let largest = hold.free.first().map_or(0, |span| span.size_bytes);
    let pieces = count(hold.free.len() as u64, "piece");
    let mut text = format!(
        "  segment {} of {} on stream {}: {} free in {pieces}, the largest {}\n    kept by {}, {}",
        segment.span.addr,
        Bytes(segment.backed_bytes),
        segment.stream.0,
        Bytes(hold.free_bytes()),
        Bytes(largest),
        count(hold.pins.len() as u64, "live block"),
        Bytes(hold.pin_bytes()),
    );
    let oldest = hold.pins.first().and_then(|block| scene.live.get(&block.span.addr));
    let Some(&id) = oldest else {
        text.push('\n');
        return text;
    };
    let born = scene.born.get(&id).copied().unwrap_or(0);
    text.push_str(&format!("; the oldest since {}\n", moment(born, id, provenance)));
    text.push_str(&stack_lines(provenance.stack(id), provenance, "    "));
    text
}

/// Who holds the live memory.
pub fn held(scene: &Scene, provenance: &Provenance<'_>) -> String {
    let holders = holders(scene, provenance);
    let has_stacks = holders.iter().any(|holder| holder.stack.is_some());
    let by = if has_stacks { "by stack" } else { "by size, since no stacks were recorded" };
    let live = Bytes(scene.stats.allocated_bytes.all.current.max(0) as u64);
    let mut text = format!("What is live, {live} in all, {by}:\n\n");
    for holder in holders.iter().take(HOLDERS_SHOWN) {
        let of = match holder.size_bytes {
            Some(size_bytes) => format!(", {} asked for each", Bytes(size_bytes)),
            None => String::new(),
        };
        let since = moment(holder.oldest, holder.oldest_id, provenance);
        let what = match provenance.categories().name(holder.category) {
            "unknown" => String::new(),
            name => format!("{name}, "),
        };
        text.push_str(&format!(
            "  {what}{} in {}{of}, the oldest since {since}\n",
            Bytes(holder.bytes),
            count(holder.count, "block")
        ));
        text.push_str(&stack_lines(holder.stack, provenance, "    "));
    }
    if holders.len() > HOLDERS_SHOWN {
        let rest: u64 = holders[HOLDERS_SHOWN..].iter().map(|holder| holder.bytes).sum();
        text.push_str(&format!("  {} in others\n", Bytes(rest)));
    }
    text.push('\n');
    text
}

fn remedies_table(remedies: &[Remedy]) -> Table {
    let mut table = Table::new(["with", "the program", "peak reserved", "retries", "driver time"]);
    for remedy in remedies {
        let how = match remedy.verdict {
            Verdict::Runs => "runs".to_owned(),
            Verdict::Depends(Some(bytes)) => format!("runs from {} on", Bytes(said_up(bytes))),
            Verdict::Depends(None) => "depends on the cap".to_owned(),
            Verdict::Later(index) => format!("fails later, at {}", index + 1),
            Verdict::Fails => "fails".to_owned(),
        };
        table.push([
            remedy.words.clone(),
            how,
            Bytes(remedy.trial.peak_reserved_bytes).to_string(),
            remedy.trial.retries.to_string(),
            driver::time(remedy.trial.driver),
        ]);
    }
    table
}

/// The line to put before a program's command: what a remedy or a choice of settings asks to be
/// set.
pub fn line(policy: &larder_core::Policy, conf: &str) -> Option<String> {
    let set = variables(policy, conf).into_iter();
    let set: Vec<String> = set.map(|(name, conf)| format!("{name}={}", quoted(&conf))).collect();
    (!set.is_empty()).then(|| set.join(" "))
}

/// What to do.
fn conclusion(explanation: &Explanation, commands: &Commands) -> String {
    let likely = explanation.likely().map_or(String::new(), likely_in_words);
    let Some(best) = explanation.best() else {
        let limit = if explanation.setup.is_capped() { "cap" } else { "card" };
        let rest = if likely.is_empty() {
            format!(
                "nothing that was tried makes it run. Use a larger {limit}, or a smaller batch."
            )
        } else {
            likely
        };
        return format!("So: {rest}");
    };
    let Remedy { words, policy, conf, .. } = best;
    let said = if best.is_memory() {
        memory_in_words(explanation, best)
    } else if best.is_setting() {
        let proof = format!(
            "`larder replay {} --policy {} --conf {}` shows it",
            commands.replay,
            policy.name,
            quoted(conf)
        );
        let program = if policy.is_stock() { "your program" } else { "`python -m larder`" };
        match line(policy, conf) {
            Some(line) => {
                format!("with {words} it runs; {proof}. Start {program} with\n\n  {line}")
            }
            None => format!("with {words} it runs; {proof}. Leave the settings empty."),
        }
    } else {
        format!("with {words} it runs. That is for the program to do.")
    };
    let likely = if likely.is_empty() { likely } else { format!("{likely}\nOr: ") };
    format!("So: {likely}{said}")
}

/// What to do in a sentence, and the line to set for it.
pub(super) fn advice(explanation: &Explanation) -> (String, Option<String>) {
    let set = |remedy: &Remedy| {
        let line = line(&remedy.policy, &remedy.conf);
        line.filter(|_| remedy.is_setting())
    };
    if let Some(likely) = explanation.likely() {
        let from = match likely.verdict {
            Verdict::Depends(Some(bytes)) => format!("from {} on", Bytes(said_up(bytes))),
            _ => "with some of it".to_owned(),
        };
        let words = &likely.words;
        let said = format!(
            "It runs with {words} {from} of what it was allowed; --cap or --card makes it sure."
        );
        return (said, set(likely));
    }
    match explanation.best() {
        None => ("Nothing that was tried makes it run.".to_owned(), None),
        Some(best) if best.is_memory() => {
            let words = memory_in_words(explanation, best);
            (words.replacen("nothing but", "Nothing but", 1), None)
        }
        Some(best) => (format!("With {} it runs.", best.words), set(best)),
    }
}

/// What is enough where the cap was large enough.
fn likely_in_words(remedy: &Remedy) -> String {
    let (words, line) = (&remedy.words, line(&remedy.policy, &remedy.conf));
    let line = line.filter(|_| remedy.is_setting());
    let line = line.map_or(String::new(), |line| format!("\n\n  {line}\n"));
    match remedy.verdict {
        Verdict::Depends(Some(bytes)) => format!(
            "that depends on what the program was allowed. From {} on it runs with {words}; --cap \
             or --card makes it sure.{line}",
            Bytes(said_up(bytes))
        ),
        _ => format!("whether it runs with {words} depends on the cap; --cap makes it sure.{line}"),
    }
}

/// That nothing helps but more memory or less need, and how much of it.
fn memory_in_words(explanation: &Explanation, best: &Remedy) -> String {
    let runs = explanation.remedies.iter().filter(|remedy| remedy.verdict == Verdict::Runs);
    let runs: Vec<&Remedy> = runs.filter(|remedy| remedy.family != Family::Unheld).collect();
    let more = if best.words.starts_with("a cap") || explanation.setup.is_capped() {
        "a larger cap"
    } else {
        "a larger card"
    };
    let nouns = runs.iter().map(|remedy| match remedy.family {
        Family::SmallerSizes => "a smaller batch",
        _ => more,
    });
    let mut nouns: Vec<&str> = nouns.collect();
    nouns.sort_unstable();
    let helps = if nouns.is_empty() { "no cap".to_owned() } else { nouns.join(" or ") };
    let words: Vec<&str> = runs.iter().map(|remedy| remedy.words.as_str()).collect();
    let with = if words.is_empty() { "no cap".to_owned() } else { words.join(", or with ") };
    format!("nothing but {helps} helps. It runs with {with}.")
}
