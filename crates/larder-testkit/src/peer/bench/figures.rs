//! Figures: one for each contestant, as a line of a table.

use super::contestant::{Contestant, GAINS};

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
pub(super) fn table(heading: &str, all: &[Contestant], rows: &[Figures]) -> String {
    let place = |title: &str| all.iter().position(|one| one.title == title);
    let gains = GAINS.iter().filter_map(|(peer, ours)| Some((place(peer)?, place(ours)?)));
    let gains: Vec<(usize, usize)> = gains.collect();
    let over = gains.iter().map(|&(peer, ours)| {
        format!("{} / {}", all[peer].title.trim_start_matches("PyTorch "), all[ours].title)
    });
    let titles = all.iter().map(|one| one.title.to_owned());
    let headings: Vec<String> =
        [heading.to_owned()].into_iter().chain(titles).chain(over).collect();
    let row = |Figures { name, values }: &Figures| {
        let figures = values.iter().map(|one| one.map_or("no figure".to_owned(), digits));
        let ratios = gains.iter().map(|&(peer, ours)| ratio(values[peer], values[ours]));
        [name.clone()].into_iter().chain(figures).chain(ratios).collect()
    };
    markdown(&headings.join(" | "), &rows.iter().map(row).collect::<Vec<_>>())
}

/// A table in Markdown. Between the headings stands ` | `; the first column has texts, the others
/// numbers.
pub(super) fn markdown(headings: &str, rows: &[Vec<String>]) -> String {
    let numbers = headings.matches(" | ").count();
    let rows: String = rows
        .iter()
        .flat_map(|cells| ["| ".to_owned(), cells.join(" | "), " |\n".to_owned()])
        .collect();
    format!("| {headings} |\n|---|{}\n{rows}", "---:|".repeat(numbers))
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
            table("workload", &all, &rows),
            "| workload | PyTorch 2.11 | larder | tight | 2.11 / larder | tight / larder |\n\
             |---|---:|---:|---:|---:|---:|\n\
             | hot block | 300 | 60.0 | 66.0 | 5.00 | 1.10 |\n\
             | other | no figure | 1.0 | no figure | - | - |\n"
        );
    }
}
