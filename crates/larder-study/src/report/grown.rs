//! Growth in words and as JSON.

use larder_core::types::Bytes;
use serde_json::{Value, json};

use crate::growth::{Change, Growth};
use crate::report::table::Table;

/// How many places are listed each way.
const LISTED: usize = 12;

/// What grew from one recording to another, and what shrank.
pub fn grown((before, after): (&str, &str), growth: &Growth) -> String {
    let (one, other) = growth.asked;
    let mut text = format!(
        "{before} -> {after}\n\nThe program has {} at once, {} before: {}.\n",
        Bytes(other),
        Bytes(one),
        in_words(growth.grown_bytes(), one)
    );
    text.push_str(&format!(
        "It makes {} requests, {} before. All of it is as the program asks, and the same under \
         every allocator.\n",
        growth.requests.1, growth.requests.0
    ));
    let is_more = |change: &&Change| change.grown_bytes() > 0;
    let more: Vec<&Change> = growth.changes.iter().filter(is_more).collect();
    let less: Vec<&Change> =
        growth.changes.iter().rev().filter(|change| change.grown_bytes() < 0).collect();
    for (heading, changes) in [("What grew", &more), ("What shrank", &less)] {
        if changes.is_empty() {
            continue;
        }
        text.push_str(&format!("\n{heading}, at the moment when most is held:\n\n"));
        let mut table = Table::new(["where", "before", "after", "grown"]);
        for change in changes.iter().take(LISTED) {
            table.push([
                change.words.first().cloned().unwrap_or_default(),
                Bytes(change.then.0).to_string(),
                Bytes(change.then.1).to_string(),
                signed(change.grown_bytes()),
            ]);
        }
        text.push_str(&table.to_string());
        if changes.len() > LISTED {
            text.push_str(&format!("and {} more\n", changes.len() - LISTED));
        }
    }
    if let Some(change) = more.first() {
        text.push_str(&format!("\nMost of it at {}", change.words.join(", called at ")));
        if let Some((_, words)) = &change.since {
            text.push_str(&format!(", more than it ever held before from {words} on"));
        }
        text.push_str(".\n");
    }
    text
}

fn in_words(grown_bytes: i64, before: u64) -> String {
    let percent = grown_bytes as f64 / before.max(1) as f64 * 100.0;
    match grown_bytes {
        0 => "the same".to_owned(),
        _ => format!("{} ({percent:+.2} %)", signed(grown_bytes)),
    }
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}

/// The same as one object.
pub fn json(growth: &Growth) -> Value {
    let change = |change: &Change| {
        json!({
            "frames": change.words,
            "before_bytes": change.then.0,
            "after_bytes": change.then.1,
            "grown_bytes": change.grown_bytes(),
            "most_before_bytes": change.most.0,
            "most_after_bytes": change.most.1,
            "since": change.since.as_ref().map(|(request, words)| json!({
                "request": request + 1,
                "words": words,
            })),
        })
    };
    json!({
        "before_bytes": growth.asked.0,
        "after_bytes": growth.asked.1,
        "grown_bytes": growth.grown_bytes(),
        "requests_before": growth.requests.0,
        "requests_after": growth.requests.1,
        "changes": growth.changes.iter().map(change).collect::<Vec<_>>(),
    })
}
