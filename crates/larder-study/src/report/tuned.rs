//! What a search for settings came to, for people and for programs.

use larder_core::types::Bytes;
use serde_json::{Value, json};

use crate::report::driver;
use crate::report::explained::line;
use crate::report::json::verdict;
use crate::report::summary::{conf_name, count, standing_in_words};
use crate::report::table::Table;
use crate::setup::Setup;
use crate::standing::Standing;
use crate::tune::{Choice, Tuned};
use crate::worth::TRIFLE;

/// What `larder tune` prints for one group of policies, under a title.
pub fn tuned(title: &str, tuned: &Tuned, base: &Choice) -> String {
    let mut table = Table::new([
        title,
        "peak reserved",
        "saved",
        "overhead",
        "retries",
        "out of memory",
        "driver time",
        "runs in",
    ])
    .sparing(["overhead", "driver time"]);
    for choice in &tuned.choices {
        table.push([
            name(choice, base),
            Bytes(choice.peak_reserved_bytes).to_string(),
            saved_in_words(choice, base),
            format!("{:.3}", overhead(choice)),
            choice.retries.to_string(),
            choice.ooms.to_string(),
            driver::time(choice.driver),
            choice.card_bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string()),
        ]);
    }
    let mut text = format!("{table}\n");
    for choice in &tuned.choices {
        if let Some(words) = choice.standing.and_then(standing_in_words) {
            text.push_str(&format!("{}: {words}\n", name(choice, base)));
        }
    }
    let best = tuned.choices.first();
    let how = match best {
        Some(best) if best.standing == Some(Standing::Fails) => {
            "none of them runs on this memory\n".to_owned()
        }
        Some(best) if best.standing != Some(Standing::Runs) => {
            "whether any of them runs depends on what the program was allowed: --cap or --card \
             makes it sure\n"
                .to_owned()
        }
        Some(best) if !is_better(best, base) => {
            format!(
                "none of them needs less than the program as it is by more than {} %: leave its \
                 settings\n",
                TRIFLE * 100.0
            )
        }
        Some(best) => match line(&best.policy, &best.conf) {
            Some(line) => format!("to set the first:\n\n  {line}\n"),
            None => "the first is the default: set nothing\n".to_owned(),
        },
        None => String::new(),
    };
    text.push_str(&how);
    text
}

/// That no settings help, where the program asks for more at once than it may have.
pub fn demand(tuned: &Tuned, setup: &Setup) -> Option<String> {
    let needed_bytes = tuned.needed_bytes?;
    let limit = if setup.is_capped() { "a larger cap" } else { "a larger card" };
    let most_bytes = setup.caps.map_or(setup.allowed_bytes(), |caps| caps.most_bytes);
    Some(format!(
        "demand: the program asks for {} at once, and may have {}: no settings help, but {limit} \
         or a smaller batch\n",
        Bytes(needed_bytes),
        Bytes(most_bytes)
    ))
}

/// What stands below all groups.
pub fn below(tried: u64, seconds: f64, is_cut_short: bool) -> String {
    let cut = if is_cut_short { "; the time was up, and --seconds gives it more" } else { "" };
    format!(
        "\n{} tried in {seconds:.1} s{cut}\nruns in: the smallest memory on which it runs, with \
         retries, as `larder fit` finds it\n{}\n",
        count(tried, "combination"),
        driver::remark()
    )
}

/// The program as it is, in a line.
pub fn base_line(base: &Choice) -> String {
    let failed = match base.ooms {
        0 => String::new(),
        1 => ", and 1 request fails".to_owned(),
        ooms => format!(", and {ooms} requests fail"),
    };
    format!(
        "as it is: {} under policy {}: {} reserved at the peak, {} in use, {}, driver time \
         {}{failed}\n",
        conf_name(&base.conf),
        base.policy.name,
        Bytes(base.peak_reserved_bytes),
        Bytes(base.peak_active_bytes),
        count(base.retries, "retry").replace("retrys", "retries"),
        driver::time(base.driver)
    )
}

fn name(choice: &Choice, base: &Choice) -> String {
    let conf = conf_name(&choice.conf);
    if choice.policy == base.policy {
        conf.to_owned()
    } else {
        format!("{conf}, policy {}", choice.policy.name)
    }
}

fn overhead(choice: &Choice) -> f64 {
    crate::passes::overhead(choice.peak_reserved_bytes, choice.peak_active_bytes)
}

fn saved_bytes(choice: &Choice, base: &Choice) -> Option<i64> {
    // Of a program that fails nobody knows what it would hold.
    let runs = |choice: &Choice| choice.standing == Some(Standing::Runs);
    let known = runs(base) && runs(choice);
    known.then(|| base.peak_reserved_bytes as i64 - choice.peak_reserved_bytes as i64)
}

/// Whether there is a reason to set this: it runs where the program does not, holds less, or tries
/// again less often.
fn is_better(choice: &Choice, base: &Choice) -> bool {
    saved_bytes(choice, base).is_none_or(|bytes| bytes > 0) || choice.retries < base.retries
}

fn saved_in_words(choice: &Choice, base: &Choice) -> String {
    match saved_bytes(choice, base) {
        Some(bytes) if bytes < 0 => format!("-{}", Bytes(bytes.unsigned_abs())),
        Some(bytes) => Bytes(bytes as u64).to_string(),
        None if choice.standing == Some(Standing::Runs) => "it runs".to_owned(),
        None => "-".to_owned(),
    }
}

/// One object: the program as it is, and the choices, best first.
pub fn json(tuned: &Tuned, memory_bytes: u64) -> Value {
    let choice = |choice: &Choice| {
        json!({
            "policy": choice.policy.name,
            "conf": choice.conf,
            "set": line(&choice.policy, &choice.conf),
            "peak_reserved_bytes": choice.peak_reserved_bytes,
            "peak_active_bytes": choice.peak_active_bytes,
            "overhead": overhead(choice),
            "saved_bytes": saved_bytes(choice, &tuned.base),
            "retries": choice.retries,
            "ooms": choice.ooms,
            "verdict": choice.standing.map(|standing| verdict(standing).0),
            "runs_from_bytes": choice.standing.and_then(|standing| verdict(standing).1),
            "driver_ns": choice.driver.ns,
            "driver_calls": choice.driver.calls,
            "fit_bytes": choice.card_bytes,
        })
    };
    json!({
        "memory_bytes": memory_bytes,
        "as_it_is": choice(&tuned.base),
        "choices": tuned.choices.iter().map(choice).collect::<Vec<_>>(),
        "tried": tuned.tried,
        "cut_short": tuned.is_cut_short,
        "needed_bytes": tuned.needed_bytes,
    })
}
