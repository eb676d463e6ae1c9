//! The chart: a bar for each contestant and workload.

use super::figures::{Figures, digits};

const WIDTH: usize = 860;
/// Where the bars begin; their workload's name ends a little before.
const LEFT: usize = 210;
/// How long the longest bar is. What is left of the width is for its figure.
const BAR_MAX: f64 = 560.0;
const BAR_STEP: usize = 16;
const TOP: usize = 84;

/// One grey and five hues of middling lightness, which can be read on white and on black.
const INK: &str = "#7a828e";
const HUES: [&str; 5] = ["#e0743a", "#c9528f", "#4a90d9", "#2fa36b", "#8a6fd1"];

/// A chart of nanoseconds per operation.
pub(super) fn draw(titles: &[&str], rows: &[Figures]) -> String {
    let step = titles.len() * BAR_STEP + 14;
    let height = TOP + step * rows.len() + 6;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"13\" \
         fill=\"{INK}\">\n<title>Nanoseconds per operation, by workload and allocator</title>\n\
         <text x=\"16\" y=\"30\" font-size=\"18\" font-weight=\"600\">What a malloc or a free \
         costs: \
         ns per operation, less is better</text>\n"
    );
    for (at, (title, hue)) in titles.iter().zip(HUES).enumerate() {
        let x = 16 + 150 * at;
        svg += &format!("<rect x=\"{x}\" y=\"46\" width=\"13\" height=\"13\" fill=\"{hue}\"/>\n");
        svg += &format!("<text x=\"{}\" y=\"57\">{title}</text>\n", x + 20);
    }
    let largest =
        rows.iter().flat_map(|row| &row.values).flatten().fold(1.0, |a: f64, b| a.max(*b));
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + step * index;
        let (x, y, name) = (LEFT - 12, top + BAR_STEP + 11, &row.name);
        svg += &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{name}</text>\n");
        for (at, (value, hue)) in row.values.iter().zip(HUES).enumerate() {
            let length = value.unwrap_or(0.0) / largest * BAR_MAX;
            let figure = value.map_or("no figure".to_owned(), |value| digits(value) + " ns");
            let (y, x) = (top + BAR_STEP * at, LEFT as f64 + length + 6.0);
            svg += &format!(
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"13\" \
                 fill=\"{hue}\"/>\n\
                 <text x=\"{x:.1}\" y=\"{}\" font-size=\"12\">{figure}</text>\n",
                y + 11
            );
        }
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_as_long_as_a_bar_can_be() {
        let values = vec![Some(600.0), Some(60.0), None];
        let svg = draw(&["a", "b", "c"], &[Figures { name: "hot block".to_owned(), values }]);
        assert!(svg.contains("width=\"560.0\"") && svg.contains("width=\"56.0\""), "{svg}");
        assert!(svg.contains(">600 ns</text>") && svg.contains(">no figure</text>"), "{svg}");
    }
}
