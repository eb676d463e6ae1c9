//! The page of figures, written whole.

use super::free_blocks::PAIRS;
use super::history::ENTRIES;
use super::machine::Machine;
use super::reading::{Large, Replayed};
use super::table::{Figures, Table, digits};
use super::timing::median;

/// How wide the page's lines are.
const WIDTH: usize = 100;

/// Everything that was measured.
pub(super) struct Results {
    pub(super) machine: Machine,
    pub(super) command: String,
    pub(super) is_quick: bool,
    pub(super) rounds: u64,
    /// The medians of the rounds.
    pub(super) times: Vec<Figures>,
    /// The least of the rounds.
    pub(super) least_times: Vec<Figures>,
    /// How far the rounds of each time lie apart, as a part of their median.
    pub(super) spreads: Vec<f64>,
    /// None where nothing can count them.
    pub(super) instructions: Option<Vec<Figures>>,
    /// The table that the crate's own bench prints.
    pub(super) own_free_blocks: String,
    pub(super) free_blocks: Vec<Figures>,
    /// Off, on, and what an event adds.
    pub(super) history: Vec<Figures>,
    pub(super) replayed: Vec<Replayed>,
    pub(super) large: Option<Large>,
}

impl Results {
    pub(super) fn page(&self) -> String {
        [
            self.introduction(),
            self.method(),
            self.times(),
            self.instructions(),
            self.free_blocks(),
            self.history(),
            self.reading(),
        ]
        .join("\n")
    }

    fn introduction(&self) -> String {
        let begin = wrap(
            "",
            "What a malloc and a free cost: the allocators of PyTorch 2.11 and 2.15, taken as they are out \
             of their wheels, beside ours, on the same simulated GPU and with the same scripts.",
        );
        let command = &self.command;
        format!(
            "# Benchmarks\n\n{begin}\n\
             ![Nanoseconds per operation, by workload and allocator](benchmarks.svg)\n\n\
             This page and the chart are written by\n\n```\n{command}\n```\n"
        )
    }

    fn method(&self) -> String {
        let Machine { date, cpu, cores, compiler } = &self.machine;
        let rounds = self.rounds;
        let middle = median(&self.spreads).unwrap_or(0.0) * 100.0;
        let largest = self.spreads.iter().copied().fold(0.0, f64::max) * 100.0;
        let mut points = vec![format!("{date}, {cpu}, {cores} cores, {compiler}.")];
        if self.is_quick {
            let rough = "This was a quick look, with short measurements: the figures are rough.";
            points.push(rough.to_owned());
        }
        points.extend([
            "The GPU is simulated, for all of them by the same code. The figures are those of the \
             allocators' own work, without a driver's."
                .to_owned(),
            format!(
                "They take turns, {rounds} rounds in one run, and the median is shown. What \
                 disturbs the machine then disturbs them alike."
            ),
            "Only `alloc` and `free` lines are timed, after four passes that are not. An operation \
             is one of either. With two threads each has streams of its own, and the figure is wall \
             time over the operations of both."
                .to_owned(),
            "The columns with a `/` say how many times the figure of that PyTorch is ours: above 1, \
             ours is the better one. The last says what the policy `tight` costs, as a multiple of `larder`."
                .to_owned(),
            format!(
                "The rounds of a figure in the first table lie {middle:.0}% apart (the median of \
                 all figures), at most {largest:.0}%."
            ),
        ]);
        let points: String = points.iter().map(|point| wrap("- ", point)).collect();
        format!("## How it was measured\n\n{points}")
    }

    fn times(&self) -> String {
        let table = Table::of_figures("workload", &self.times).markdown();
        let text = wrap(
            "",
            "Nanoseconds per operation. `hot block` is one block, allocated and freed; in `random \
             sizes` 600 blocks from 256 bytes to 64 MiB are live and one after the other makes \
             room for a new one; the others are recordings of real programs.",
        );
        let least = wrap(
            "",
            "The least of the rounds: what else the machine does makes a round longer, never \
             shorter, so that this says more where the rounds lie far apart.",
        );
        let least_table = Table::of_figures("workload", &self.least_times).markdown();
        format!("## Time\n\n{text}\n{table}\n{least}\n{least_table}")
    }

    fn instructions(&self) -> String {
        let body = match &self.instructions {
            Some(rows) => Table::of_figures("workload", rows).markdown(),
            None => "They were not counted: valgrind is not installed.\n".to_owned(),
        };
        let text = wrap(
            "",
            "Instructions per operation, counted by `valgrind --tool=callgrind` with one thread. \
             The count of five passes is taken from that of more, so that neither the start is \
             contained nor what the policy tight does to find a program's way. Nothing else on the machine can disturb these figures.",
        );
        format!("## Instructions\n\n{text}\n{body}")
    }

    fn free_blocks(&self) -> String {
        let own = &self.own_free_blocks;
        let table = Table::of_figures("beside", &self.free_blocks).markdown();
        let text = wrap(
            "",
            "What a pair of malloc and free costs while so many other free blocks lie in the index: \
             the bench `cargo bench -p larder-sim --bench free_blocks`, policy `torch-2.11`.",
        );
        let all = format!(
            "The same on all of them, in nanoseconds a pair. A script with {} such pairs is timed, \
             and one without them, and the difference of the shortest passes is shown: what \
             disturbs a pass only makes it longer.",
            thousands(PAIRS)
        );
        let all = wrap("", &all);
        format!("## Many free blocks\n\n{text}\n{own}\n{all}\n{table}")
    }

    fn history(&self) -> String {
        let table = Table::of_figures("workload", &self.history).markdown();
        let text = format!(
            "What it costs to remember what happens, without call stacks, in a ring of {} entries. \
             The rows `off` and `on` are nanoseconds per operation, the least of the rounds; `an event` is the difference \
             for each of the three events of a malloc and its free. The time of an event is read \
             from the processor's own counter, on both sides.",
            thousands(ENTRIES)
        );
        let text = wrap("", &text);
        format!("## History\n\n{text}\n{table}")
    }

    fn reading(&self) -> String {
        let headings = ["recording", "operations", "replay, ms", "whole command, ms"];
        let mut table = Table::new(&headings);
        for row in &self.replayed {
            table.push(vec![
                row.name.clone(),
                thousands(row.operations),
                digits(row.replay_ms),
                digits(row.whole_ms),
            ]);
        }
        let table = table.markdown();
        let large = self.large.as_ref().map_or_else(
            || "A large snapshot was not read in this run.\n".to_owned(),
            Large::sentence,
        );
        let text = wrap(
            "",
            "`larder replay`, policy `larder`. The replay alone is what the command prints; the \
             whole command also unpacks and reads the file.",
        );
        format!("## Reading and replaying\n\n{text}\n{table}\n{large}")
    }
}

impl Large {
    fn sentence(&self) -> String {
        let Self { file_bytes, operations, replay_ms, whole_ms, peak_bytes } = self;
        let (whole, replay) = (whole_ms / 1e3, replay_ms / 1e3);
        let mib = peak_bytes >> 20;
        let sentences = format!(
            "A snapshot of {} bytes ({} operations), made of `gpt2_varlen` by the example \
             `grow_snapshot`, is read and replayed in {whole:.1} s, {replay:.1} s of it the replay. \
             The process holds at most {mib} MiB of memory.",
            thousands(*file_bytes),
            thousands(*operations)
        );
        wrap("", &sentences)
    }
}

/// A paragraph in lines of the usual width; those after the first stand under the mark's text.
fn wrap(mark: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = mark.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(mark.len());
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines + &line + "\n"
}

/// A number with commas between the thousands.
fn thousands(number: u64) -> String {
    let text = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let row = Figures {
            name: "hot block".to_owned(),
            values: [Some(2.0), Some(3.0), Some(1.0), None, None],
        };
        let machine = Machine {
            date: "2026-01-01".to_owned(),
            cpu: "Some CPU".to_owned(),
            cores: 2,
            compiler: "rustc 1.95.0".to_owned(),
        };
        Results {
            machine,
            command: "cargo xtask bench".to_owned(),
            is_quick: false,
            rounds: 7,
            times: vec![row.clone()],
            least_times: vec![Figures { name: "hot block, least".to_owned(), ..row.clone() }],
            spreads: vec![0.1, 0.5],
            instructions: Some(vec![row.clone()]),
            own_free_blocks: "| free blocks |\n|---|\n| 100 |\n".to_owned(),
            free_blocks: vec![row.clone()],
            history: vec![Figures { name: "hot block, an event".to_owned(), ..row }],
            replayed: vec![Replayed {
                name: "one".to_owned(),
                operations: 1_234_567,
                replay_ms: 35.2,
                whole_ms: 120.0,
            }],
            large: None,
        }
    }

    #[test]
    fn the_page_holds_every_part() {
        let page = results().page();
        for part in [
            "2026-01-01, Some CPU, 2 cores, rustc 1.95.0.",
            "30% apart",
            "| hot block | 2.0 | 3.0 | 1.0 | no figure | no figure | 2.00 | - | - | - |",
            "| hot block, least | 2.0 | 3.0 | 1.0 | no figure | no figure | 2.00 | - | - | - |",
            "| 100 |",
            "| hot block, an event | 2.0 | 3.0 | 1.0 | no figure | no figure | 2.00 | - | - | - |",
            "| one | 1,234,567 | 35.2 | 120 |",
            "was not read in this run",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert!(page.lines().all(|line| line.starts_with('|') || line.chars().count() <= WIDTH));
        assert!(!page.contains("\n\n\n") && page.ends_with('\n'));
    }

    #[test]
    fn the_page_says_what_is_missing() {
        let results = Results { instructions: None, is_quick: true, ..results() };
        assert!(results.page().contains("valgrind is not installed"));
        assert!(results.page().contains("a quick look"));
    }

    #[test]
    fn long_paragraphs_are_wrapped() {
        let text = wrap("- ", &"word ".repeat(30));
        let lengths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lengths, [96, 56]);
        assert!(text.starts_with("- word") && text.contains("\n  word"));
        assert_eq!(wrap("", "one"), "one\n");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000_000_000), "1,000,000,000");
    }
}
