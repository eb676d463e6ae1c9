//! Figures: one for each contestant, as a line of a table, and the section of the page that they
//! stand in.

use std::fs;
use std::thread;

use xshell::cmd;

use super::contestant::{Contestant, GAINS};
use crate::command::output;
use crate::docs;
use crate::repository::Repository;
use crate::table::Table;

/// A figure for each contestant; none where it failed each time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) name: String,
    pub(super) values: Vec<Option<f64>>,
}

/// A figure with as many digits as say something.
pub(super) fn digits(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A ratio, where there is one.
pub(super) fn ratio(over: Option<f64>, under: Option<f64>) -> String {
    over.zip(under).map_or("-".to_owned(), |(over, under)| format!("{:.2}", over / under))
}

/// The contestants side by side, and how many times a peer's figure is ours.
pub(super) fn table(heading: &str, all: &[Contestant], rows: &[Figures]) -> Table {
    let place = |title: &str| all.iter().position(|one| one.title == title);
    let gains = GAINS.iter().filter_map(|(peer, ours)| Some((place(peer)?, place(ours)?)));
    let gains: Vec<(usize, usize)> = gains.collect();
    let over = gains.iter().map(|&(peer, ours)| {
        format!("{} / {}", all[peer].title.trim_start_matches("PyTorch "), all[ours].title)
    });
    let titles = all.iter().map(|one| one.title.to_owned());
    let headings: Vec<String> =
        [heading.to_owned()].into_iter().chain(titles).chain(over).collect();
    let mut table = Table::new(&headings.join(" | "), 1);
    for Figures { name, values } in rows {
        let figures = values.iter().map(|one| one.map_or("no figure".to_owned(), digits));
        let ratios = gains.iter().map(|&(peer, ours)| ratio(values[peer], values[ours]));
        let cells = [name.clone()].into_iter().chain(figures).chain(ratios);
        table.push(&cells.collect::<Vec<String>>());
    }
    table
}

/// Writes a table into its section of the page, under the machine and the day, as far as they
/// explain figures, and the command. The machine's name is not there: it explains nothing.
pub(super) fn write(
    repo: &Repository,
    section: &str,
    command: &str,
    table: &Table,
) -> Result<(), String> {
    let day = output(cmd!(repo.shell, "date -u +%F")).unwrap_or_default();
    let compiler = output(cmd!(repo.shell, "rustc --version")).unwrap_or_default();
    let compiler: Vec<&str> = compiler.split(' ').take(2).collect();
    let facts = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let (model, day) = (model.map_or("a processor", |(_, model)| model), day.trim());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let compiler = compiler.join(" ");
    let machine = format!("{day}, {model}, {cores} cores, {compiler}, by `{command}`.");
    docs::write(repo, docs::BENCHMARKS, section, &format!("{machine}\n\n{}", table.markdown()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_beside_what_ours_gain() {
        let all = ["PyTorch 2.11", "larder", "tight"].map(Contestant::named);
        let row = |name: &str, values| Figures { name: name.to_owned(), values };
        let rows = [
            row("hot block", vec![Some(300.0), Some(60.0), Some(66.0)]),
            row("other", vec![None, Some(1.0), None]),
        ];
        assert_eq!(
            table("workload", &all, &rows).markdown(),
            "| workload | PyTorch 2.11 | larder | tight | 2.11 / larder | tight / larder |\n\
             |---|---:|---:|---:|---:|---:|\n\
             | hot block | 300 | 60.0 | 66.0 | 5.00 | 1.10 |\n\
             | other | no figure | 1.0 | no figure | - | - |\n"
        );
    }
}
