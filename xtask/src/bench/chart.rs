//! The chart: a bar for each contestant and workload.

use super::contestant::{COUNT, Contestant};
use super::table::{Figures, digits};

const WIDTH: u32 = 860;
/// Where the bars begin; their workload's name ends a little before.
const LEFT: u32 = 210;
/// How long the longest bar is. What is left of the width is for its figure.
const BAR_MAX: f64 = 560.0;
const BAR_HEIGHT: u32 = 13;
const BAR_STEP: u32 = 16;
const GROUP_STEP: u32 = COUNT as u32 * BAR_STEP + 14;
const TOP: u32 = 84;

/// One grey and five hues of middling lightness, which can be read on white and on black.
const INK: &str = "#7a828e";
const HUES: [&str; COUNT] = ["#e0743a", "#c9528f", "#4a90d9", "#2fa36b", "#8a6fd1"];

/// A chart of nanoseconds per operation.
pub(super) fn draw(rows: &[Figures]) -> String {
    let height = TOP + GROUP_STEP * rows.len() as u32 + 6;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"13\" \
         fill=\"{INK}\">\n\
         <title>Nanoseconds per operation, by workload and allocator</title>\n"
    );
    svg.push_str(&heading());
    let axis = LEFT - 2;
    svg.push_str(&format!(
        "<line x1=\"{axis}\" y1=\"{}\" x2=\"{axis}\" y2=\"{}\" stroke=\"{INK}\"/>\n",
        TOP - 6,
        height - 10
    ));
    let largest = rows.iter().flat_map(|row| row.values).flatten().fold(1.0, f64::max);
    for (index, row) in rows.iter().enumerate() {
        svg.push_str(&group(row, TOP + GROUP_STEP * index as u32, largest));
    }
    svg.push_str("</svg>\n");
    svg
}

/// The title, and which hue is whose.
fn heading() -> String {
    let mut svg = "<text x=\"16\" y=\"30\" font-size=\"18\" font-weight=\"600\">\
                   What a malloc or a free costs: ns per operation, less is better</text>\n"
        .to_owned();
    let mut left = 16;
    let explained =
        ["PyTorch 2.11", "PyTorch 2.15", "larder, policy torch-2.11", "larder, policy larder"];
    for ((hue, text), width) in HUES.into_iter().zip(explained).zip([140, 140, 215, 0]) {
        svg.push_str(&format!(
            "<rect x=\"{left}\" y=\"46\" width=\"13\" height=\"13\" rx=\"2\" fill=\"{hue}\"/>\n\
             <text x=\"{}\" y=\"57\">{text}</text>\n",
            left + 20
        ));
        left += width;
    }
    svg
}

/// The bars of a workload.
fn group(row: &Figures, top: u32, largest: f64) -> String {
    let mut svg = format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
        LEFT - 12,
        top + BAR_STEP + 11,
        escape(&row.name)
    );
    for (index, contestant) in Contestant::ALL.into_iter().enumerate() {
        let bar_top = top + BAR_STEP * index as u32;
        let length = row.values[index].unwrap_or(0.0) / largest * BAR_MAX;
        let figure = row.values[index]
            .map_or_else(|| "no figure".to_owned(), |value| format!("{} ns", digits(value)));
        svg.push_str(&format!(
            "<rect x=\"{LEFT}\" y=\"{bar_top}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" \
             rx=\"2\" fill=\"{}\"><title>{}: {figure}</title></rect>\n\
             <text x=\"{:.1}\" y=\"{}\" font-size=\"12\">{figure}</text>\n",
            HUES[index],
            contestant.title(),
            f64::from(LEFT) + length + 6.0,
            bar_top + 11,
        ));
    }
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether every element that is opened is closed, in turn, and every attribute is quoted.
    fn is_well_formed(svg: &str) -> bool {
        let mut open = Vec::new();
        for piece in svg.split('<').skip(1) {
            let Some((tag, text)) = piece.split_once('>') else { return false };
            let is_entity = |rest: &str| ["amp;", "lt;", "gt;"].iter().any(|e| rest.starts_with(e));
            let ends = text.contains('>') || text.split('&').skip(1).any(|rest| !is_entity(rest));
            if ends || tag.matches('"').count() % 2 == 1 {
                return false;
            }
            let name = tag.trim_matches('/').split(' ').next().unwrap_or("");
            if tag.starts_with('/') {
                if open.pop() != Some(name) {
                    return false;
                }
            } else if !tag.ends_with('/') {
                open.push(name);
            }
        }
        open.is_empty()
    }

    fn rows() -> Vec<Figures> {
        let row = |name: &str, values| Figures { name: name.to_owned(), values };
        vec![
            row("hot <&> block", [Some(600.0), Some(300.0), Some(90.0), Some(60.0), Some(66.0)]),
            row("other, 2 threads", [None, None, Some(0.5), Some(1.0), None]),
        ]
    }

    #[test]
    fn the_chart_is_well_formed() {
        assert!(is_well_formed(&draw(&rows())), "{}", draw(&rows()));
        assert!(is_well_formed(&draw(&[])));
        assert!(!is_well_formed("<svg><text></svg></text>"));
        assert!(!is_well_formed("<svg><text>a & b</text></svg>"));
    }

    #[test]
    fn the_longest_bar_is_as_long_as_a_bar_can_be() {
        let svg = draw(&rows());
        assert!(svg.contains("width=\"560.0\""));
        assert!(svg.contains("width=\"56.0\""));
        assert!(svg.contains(">600 ns</text>") && svg.contains(">no figure</text>"));
        assert!(svg.contains("hot &lt;&amp;&gt; block"));
    }
}
