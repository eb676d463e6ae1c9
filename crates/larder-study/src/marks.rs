//! Marks: when in a recording something happened, by its clock and by the steps that its program
//! marked.

use larder_snapshot::Snapshot;
use serde_json::Value;

use crate::recording::Origin;
use crate::workload::Workload;

/// The steps that a program marked, and the clock of its recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// When the recording began, if it has times.
    first_us: Option<u64>,
    /// When each step began, in microseconds from there, and its number; the earliest first.
    steps: Vec<(u64, u64)>,
    /// When each request was made, in microseconds from there, in their order.
    requests: Vec<Option<u64>>,
}

impl Marks {
    /// Those of a device's recording. A step is an annotation whose name ends in a number, such as
    /// `ProfilerStep#7` or `step 7`, where it begins.
    pub fn of(workload: &Workload, snapshot: Option<(&Snapshot, u32)>) -> Marks {
        let Some((snapshot, device)) = snapshot else { return Marks::default() };
        let trace = snapshot.trace(device).unwrap_or_default();
        let Some(first_us) = trace.iter().find(|entry| entry.has_time).map(|entry| entry.time_us)
        else {
            return Marks::default();
        };
        let since = |time_us: u64| time_us.saturating_sub(first_us);
        let requests = workload.origins.iter().map(|origin| match *origin {
            Origin::Before(_) => Some(0),
            Origin::Entry(index) => {
                let entry = trace.get(index).filter(|entry| entry.has_time)?;
                Some(since(entry.time_us))
            }
        });
        let annotations = snapshot.more.as_ref().and_then(|more| more.get("external_annotations"));
        let annotations = annotations.and_then(Value::as_array).into_iter().flatten();
        let of_device = |annotation: &&Value| {
            annotation["device"].as_u64().is_none_or(|number| number == u64::from(device))
        };
        let steps = annotations.filter(of_device).filter_map(|annotation| {
            let is_start = annotation["stage"].as_str()? == "START";
            let number = step_number(annotation["name"].as_str()?)?;
            is_start.then_some((since(annotation["time_us"].as_u64()?), number))
        });
        let mut steps: Vec<(u64, u64)> = steps.collect();
        steps.sort_unstable();
        Marks { first_us: Some(first_us), steps, requests: requests.collect() }
    }

    /// Whether the recording has times.
    pub fn has_times(&self) -> bool {
        self.first_us.is_some()
    }

    /// Whether the program marked its steps.
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// The steps: when each began, in microseconds, and its number.
    pub fn steps(&self) -> &[(u64, u64)] {
        &self.steps
    }

    /// When the request of this number, from 0, was made, in microseconds from the beginning.
    pub fn time_us(&self, request: usize) -> Option<u64> {
        self.requests.get(request).copied().flatten()
    }

    /// In which step the request of this number, from 0, was made.
    pub fn step(&self, request: usize) -> Option<u64> {
        let time_us = self.time_us(request)?;
        let behind = self.steps.partition_point(|&(begin_us, _)| begin_us <= time_us);
        self.steps.get(behind.checked_sub(1)?).map(|&(_, number)| number)
    }

    /// When a request was made, in words: its step, its time, or else its number.
    pub fn in_words(&self, request: usize) -> String {
        let time = self.time_us(request).map(|us| match us {
            0..=9_999 => format!("{us} µs"),
            10_000..=9_999_999 => format!("{} ms", us / 1000),
            _ => format!("{:.1} s", us as f64 / 1e6),
        });
        match (self.step(request), time) {
            (Some(step), Some(time)) => format!("step {step}, {time} into the recording"),
            (None, Some(time)) => format!("{time} into the recording"),
            _ => format!("request {}", request + 1),
        }
    }
}

/// The number of a step, by the name that marks it.
fn step_number(name: &str) -> Option<u64> {
    let digits = name.len() - name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    let (word, number) = name.split_at(name.len() - digits);
    word.to_ascii_lowercase().contains("step").then(|| number.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_marked_by_its_name() {
        assert_eq!(step_number("ProfilerStep#12"), Some(12));
        assert_eq!(step_number("train step 7"), Some(7));
        assert_eq!(["step", "epoch 3", "7"].map(step_number), [None; 3]);
    }

    #[test]
    fn a_request_is_in_the_last_step_that_began_before_it() {
        let marks = Marks {
            first_us: Some(5),
            steps: vec![(10, 1), (20_000, 2)],
            requests: vec![Some(3), Some(10), Some(25_000), None],
        };
        assert_eq!([0, 1, 2, 3].map(|at| marks.step(at)), [None, Some(1), Some(2), None]);
        assert_eq!(marks.in_words(2), "step 2, 25 ms into the recording");
        assert_eq!(
            (marks.in_words(0), marks.in_words(3)),
            ("3 µs into the recording".to_owned(), "request 4".to_owned())
        );
    }
}
