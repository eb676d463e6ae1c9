//! Many ranks in words and as JSON: who is worst, who differs and since when, what would help all.

use larder_core::types::Bytes;
use serde_json::{Value, json};

use crate::ranks::{Figures, Odd, Ranks, median};
use crate::report::quote::quoted;
use crate::report::summary::count;
use crate::report::table::Table;
use crate::settings::variables;
use crate::standing::said_up;

/// How many odd ranks, and ranks that could not be read, are told one by one.
const TOLD: usize = 8;
/// How wide the bar of a rank is.
const BAR: usize = 24;

/// What is said of all ranks, the most important first.
pub fn ranked(ranks: &Ranks) -> String {
    let read = ranks.read().count();
    if read == 0 {
        return unread(ranks);
    }
    let mut text = format!("{}\n\n", verdict(ranks));
    text.push_str(&stages(ranks));
    for odd in ranks.odd.iter().take(TOLD) {
        text.push_str(&format!("{}\n", odd_in_words(ranks, odd)));
    }
    if ranks.odd.len() > TOLD {
        text.push_str(&format!("and {} more\n", count((ranks.odd.len() - TOLD) as u64, "rank")));
    }
    if !ranks.odd.is_empty() {
        text.push('\n');
    }
    text.push_str(&help(ranks));
    text.push_str(&unread(ranks));
    text
}

/// What is wrong, or that nothing is, in a sentence or two.
pub fn verdict(ranks: &Ranks) -> String {
    let read = ranks.read().count();
    let failing = ranks.read().filter(|(_, _, figures)| figures.as_it_is.ooms > 0).count();
    let stages = ranks.stages.len();
    let shape = match stages {
        1 => "all of one shape".to_owned(),
        _ => format!("of {stages} shapes, as the stages of a pipeline are"),
    };
    let failed = match failing {
        0 => "none of them runs out of memory".to_owned(),
        1 => "1 of them runs out of memory".to_owned(),
        _ => format!("{failing} of them run out of memory"),
    };
    let mut text = format!("{}, {shape}; {failed}.", count(read as u64, "rank"));
    if let Some(at) = ranks.worst() {
        let (rank, figures) = of(ranks, at);
        let usual = usual_bytes(ranks, at);
        let peak = figures.as_it_is.peak_active_bytes;
        let worst = match failing {
            0 => format!("Most is in use on {rank}"),
            _ => format!("The worst is {rank}"),
        };
        text.push_str(&format!(
            " {worst}: {} in use at its peak, {} the middle one of its stage, {} held of {} that \
             it may have.",
            Bytes(peak),
            more_in_words(peak as i64 - usual as i64, usual),
            Bytes(figures.as_it_is.peak_reserved_bytes),
            Bytes(figures.allowed_bytes)
        ));
    }
    match ranks.odd.len() {
        0 => text.push_str(" No rank differs from the rest of its stage."),
        1 => text.push_str(&format!(" {} differs from the rest.", of(ranks, ranks.odd[0].at).0)),
        number => text.push_str(&format!(" {number} ranks differ from the rest of their stages.")),
    }
    text
}

fn of(ranks: &Ranks, at: usize) -> (&str, &Figures) {
    let (rank, found) = &ranks.ranks[at];
    (&rank.name, found.as_ref().expect("it was read"))
}

/// What the middle rank of a rank's stage has in use at its peak.
fn usual_bytes(ranks: &Ranks, at: usize) -> u64 {
    let Some(stage) = ranks.stage_of(at) else { return 0 };
    let members = ranks.stages[stage].members.iter();
    median(members.map(|&at| of(ranks, at).1.as_it_is.peak_active_bytes).collect())
}

fn more_in_words(more_bytes: i64, usual_bytes: u64) -> String {
    let percent = more_bytes.unsigned_abs() as f64 / usual_bytes.max(1) as f64 * 100.0;
    let size = Bytes(more_bytes.unsigned_abs());
    match more_bytes {
        0 => "as much as".to_owned(),
        1.. => format!("{size} ({percent:.1} %) more than"),
        _ => format!("{size} ({percent:.1} %) less than"),
    }
}

fn stages(ranks: &Ranks) -> String {
    let mut table = Table::new([
        "stage and its ranks",
        "ranks",
        "in use: middle",
        "most",
        "held: most",
        "fail",
        "retries",
    ])
    .sparing(["retries", "in use: middle"]);
    for (number, stage) in ranks.stages.iter().enumerate() {
        let members: Vec<&Figures> = stage.members.iter().map(|&at| of(ranks, at).1).collect();
        let active: Vec<u64> = members.iter().map(|one| one.as_it_is.peak_active_bytes).collect();
        let held = members.iter().map(|one| one.as_it_is.peak_reserved_bytes).max().unwrap_or(0);
        let failing = members.iter().filter(|one| one.as_it_is.ooms > 0).count();
        let retries: u64 = members.iter().map(|one| one.as_it_is.retries).sum();
        table.push([
            format!("{}: {}", number + 1, numbers_in_words(ranks, &stage.members)),
            stage.members.len().to_string(),
            Bytes(median(active.clone())).to_string(),
            Bytes(active.into_iter().max().unwrap_or(0)).to_string(),
            Bytes(held).to_string(),
            failing.to_string(),
            retries.to_string(),
        ]);
    }
    format!("{table}\n")
}

/// The numbers of some ranks, those side by side as a range.
fn numbers_in_words(ranks: &Ranks, members: &[usize]) -> String {
    let numbers: Option<Vec<u64>> = members.iter().map(|&at| ranks.ranks[at].0.number).collect();
    let Some(numbers) = numbers else {
        let names = members.iter().take(3).map(|&at| ranks.ranks[at].0.name.as_str());
        let more = if members.len() > 3 { ", …" } else { "" };
        return names.collect::<Vec<_>>().join(", ") + more;
    };
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some(last) if last.1 + 1 == number => last.1 = number,
            _ => parts.push((number, number)),
        }
    }
    let shown = parts.iter().take(6).map(|&(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    let more = if parts.len() > 6 { ", …" } else { "" };
    shown.collect::<Vec<_>>().join(", ") + more
}

/// An odd rank: by how much, where, and since when.
pub fn odd_in_words(ranks: &Ranks, odd: &Odd) -> String {
    let (name, _) = of(ranks, odd.at);
    let place = ranks.places.get(&odd.mark).map(|words| words.join(", called at "));
    let place = place.unwrap_or_else(|| "somewhere".to_owned());
    let (held, usual) = odd.held_bytes;
    let since = match &odd.since {
        Some(since) => format!(", and more than they ever do from {} on", since.words),
        None => String::new(),
    };
    format!(
        "{name} differs: it asks for {} the others of its stage at the peak ({}). Most of it at \
         {place}: {} there, where the others have {}{since}.",
        more_in_words(odd.more_bytes, odd.usual_bytes),
        Bytes(odd.usual_bytes),
        Bytes(held),
        Bytes(usual)
    )
}

/// What would help all.
fn help(ranks: &Ranks) -> String {
    let all = ranks.read().count();
    let mut table = Table::new(["with", "ranks that run", "held: most"]);
    let running = ranks.read().filter(|(_, _, figures)| figures.as_it_is.ooms == 0).count();
    let held = ranks.read().map(|(_, _, figures)| figures.as_it_is.peak_reserved_bytes).max();
    let held = Bytes(held.unwrap_or(0)).to_string();
    table.push(["as it is".to_owned(), format!("{running} of {all}"), held]);
    for (index, idea) in ranks.ideas.iter().enumerate() {
        let (runs, most) = ranks.with(index);
        let words = [idea.words.clone(), format!("{runs} of {all}"), Bytes(most).to_string()];
        table.push(words);
    }
    let mut text =
        format!("What would help all, each found by replaying every rank with it:\n\n{table}\n");
    match ranks.best().map(|best| &ranks.ideas[best]) {
        Some(idea) => {
            text.push_str(&format!("Start all ranks with\n\n  {}\n\n", line(idea)));
        }
        None => text.push_str("Neither does better than the settings as they are.\n\n"),
    }
    if let Some(at) = ranks.worst() {
        let file = quoted(&ranks.ranks[at].0.file.to_string_lossy());
        text.push_str(&format!("`larder explain {file}` says more of the worst\n"));
    }
    text
}

/// What to set for an idea.
pub fn line(idea: &crate::ranks::Idea) -> String {
    let stock = larder_core::Policy::torch();
    let policy = idea.policy.as_ref().unwrap_or(&stock);
    let variables = variables(policy, idea.conf.as_deref().unwrap_or_default());
    let parts: Vec<String> =
        variables.into_iter().map(|(name, conf)| format!("{name}={}", quoted(&conf))).collect();
    parts.join(" ")
}

fn unread(ranks: &Ranks) -> String {
    let errors: Vec<&String> =
        ranks.ranks.iter().filter_map(|(_, found)| found.as_ref().err()).collect();
    if errors.is_empty() {
        return String::new();
    }
    let mut text =
        format!("\n{} could not be replayed:\n", count(errors.len() as u64, "recording"));
    for error in errors.iter().take(TOLD) {
        text.push_str(&format!("  {error}\n"));
    }
    if errors.len() > TOLD {
        text.push_str(&format!("  and {} more\n", errors.len() - TOLD));
    }
    text
}

/// A row a rank, with a bar to scale.
pub fn rows(ranks: &Ranks) -> String {
    let most = ranks.read().map(|(_, _, one)| one.as_it_is.peak_reserved_bytes.max(1)).max();
    let most = most.unwrap_or(1);
    let mut table = Table::new(["rank", "", "in use", "held", "stage", "fails", "retries"])
        .sparing(["retries", "stage", ""]);
    for (at, rank, figures) in ranks.read() {
        let trial = figures.as_it_is;
        let cells = |bytes: u64| (bytes as f64 / most as f64 * BAR as f64).round() as usize;
        let (used, held) = (cells(trial.peak_active_bytes), cells(trial.peak_reserved_bytes));
        let idle = held.saturating_sub(used);
        let bar = format!(
            "{}{}{}",
            "█".repeat(used),
            "░".repeat(idle),
            " ".repeat(BAR.saturating_sub(used + idle))
        );
        let is_odd = ranks.odd.iter().any(|odd| odd.at == at);
        table.push([
            format!("{}{}", rank.name, if is_odd { " (differs)" } else { "" }),
            bar,
            Bytes(trial.peak_active_bytes).to_string(),
            Bytes(trial.peak_reserved_bytes).to_string(),
            ranks.stage_of(at).map_or("-".to_owned(), |stage| (stage + 1).to_string()),
            trial.ooms.to_string(),
            trial.retries.to_string(),
        ]);
    }
    format!(
        "{}\n\n{table}\n█ in use at the peak  ░ held besides\n{}",
        verdict(ranks),
        unread(ranks)
    )
}

/// What settings come to over all ranks, a line for each.
pub fn compared(ranks: &Ranks) -> String {
    let all = ranks.read().count();
    let mut table =
        Table::new(["settings", "ranks that run", "held: most", "held: all", "retries"]);
    for (index, idea) in ranks.ideas.iter().enumerate() {
        let (runs, most) = ranks.with(index);
        let trials = || ranks.read().filter_map(move |(_, _, one)| one.trials.get(index));
        let held: u64 = trials().map(|trial| trial.peak_reserved_bytes).sum();
        let retries: u64 = trials().map(|trial| trial.retries).sum();
        table.push([
            idea.words.clone(),
            format!("{runs} of {all}"),
            Bytes(most).to_string(),
            Bytes(held).to_string(),
            retries.to_string(),
        ]);
    }
    format!("{}\n\n{table}{}", verdict(ranks), unread(ranks))
}

/// The smallest memory on which every rank runs, as a search found it.
pub fn fitted(ranks: &Ranks, found: &[(usize, Option<u64>)]) -> String {
    let mut text = String::new();
    let most = found.iter().filter_map(|&(at, bytes)| Some((bytes?, at))).max();
    if let Some((bytes, at)) = most {
        let name = of(ranks, at).0;
        text.push_str(&format!(
            "all {} run in {} ({bytes} bytes) each; {name} needs most\n",
            count(ranks.read().count() as u64, "rank"),
            Bytes(said_up(bytes))
        ));
    }
    for (at, _) in found.iter().filter(|(_, bytes)| bytes.is_none()) {
        text.push_str(&format!("{} runs in nothing that was searched\n", of(ranks, *at).0));
    }
    let searched = found.len();
    let others = ranks.read().count().saturating_sub(searched);
    if others > 0 {
        text.push_str(&format!(
            "{searched} of them were searched; the other {others} never held as much\n"
        ));
    }
    text.push_str("the CUDA context, other libraries and other processes come on top of each\n");
    text + &unread(ranks)
}

/// Everything as one object.
pub fn json(ranks: &Ranks) -> Value {
    let trial = |trial: &crate::ranks::Trial| {
        json!({
            "ooms": trial.ooms,
            "retries": trial.retries,
            "peak_reserved_bytes": trial.peak_reserved_bytes,
            "peak_active_bytes": trial.peak_active_bytes,
        })
    };
    let rank = |(at, (rank, found)): (usize, &(crate::ranks::Rank, Result<Figures, String>))| {
        let mut value = json!({
            "name": rank.name,
            "number": rank.number,
            "stage": ranks.stage_of(at).map(|stage| stage + 1),
        });
        match found {
            Err(error) => value["error"] = error.as_str().into(),
            Ok(figures) => {
                value["operations"] = figures.operations.into();
                value["allowed_bytes"] = figures.allowed_bytes.into();
                value["asked_bytes"] = figures.asked_bytes.into();
                value["as_it_is"] = trial(&figures.as_it_is);
                value["with"] = figures.trials.iter().map(trial).collect();
            }
        }
        value
    };
    let odd = |odd: &Odd| {
        json!({
            "name": ranks.ranks[odd.at].0.name,
            "more_bytes": odd.more_bytes,
            "usual_bytes": odd.usual_bytes,
            "frames": ranks.places.get(&odd.mark),
            "held_bytes": odd.held_bytes.0,
            "others_held_bytes": odd.held_bytes.1,
            "since": odd.since.as_ref().map(|since| json!({
                "request": since.request + 1,
                "words": since.words,
            })),
        })
    };
    json!({
        "verdict": verdict(ranks),
        "ranks": ranks.ranks.iter().enumerate().map(rank).collect::<Vec<_>>(),
        "stages": ranks.stages.iter().map(|stage| stage.members.len()).collect::<Vec<_>>(),
        "worst": ranks.worst().map(|at| ranks.ranks[at].0.name.as_str()),
        "odd": ranks.odd.iter().map(odd).collect::<Vec<_>>(),
        "ideas": ranks.ideas.iter().map(|idea| json!({
            "words": idea.words,
            "set": line(idea),
        })).collect::<Vec<_>>(),
        "best": ranks.best().map(|best| line(&ranks.ideas[best])),
    })
}
