//! The machine and the day, as far as they explain the figures.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// What stands on the page. The machine's name is not in it: it explains nothing.
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) compiler: String,
}

impl Machine {
    pub(super) fn read() -> Self {
        let seconds =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        let facts = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let compiler = Command::new("rustc").arg("--version").output();
        let compiler = compiler.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        Self {
            date: date(seconds / 86_400),
            cpu: model(&facts).unwrap_or("a CPU that does not say its model").to_owned(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            compiler: release(&compiler.unwrap_or_default()),
        }
    }
}

fn model(facts: &str) -> Option<&str> {
    let line = facts.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

/// `rustc` and its version, without the commit.
fn release(printed: &str) -> String {
    let words: Vec<&str> = printed.split_whitespace().take(2).collect();
    if words.is_empty() { "rustc".to_owned() } else { words.join(" ") }
}

/// The date of a day, counted from the first of January 1970.
fn date(mut day: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(11_017), "2000-03-01");
        assert_eq!(date(20_453), "2025-12-31");
        assert_eq!(date(20_454), "2026-01-01");
    }

    #[test]
    fn the_model_is_found() {
        let facts = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n";
        assert_eq!(model(facts), Some("Some CPU @ 2 GHz"));
        assert_eq!(model(""), None);
        assert_eq!(release("rustc 1.95.0 (abc 2026-01-01)\n"), "rustc 1.95.0");
    }
}
