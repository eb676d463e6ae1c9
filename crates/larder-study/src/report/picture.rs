//! Pictures: memory over time, as an SVG that stands by itself.

use larder_core::types::Bytes;

use crate::course::Point;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 240.0;
/// Room for the words at the left, below and above.
const LEFT: f64 = 80.0;
const BELOW: f64 = 28.0;
const ABOVE: f64 = 24.0;

/// Held and in use, from the first operation to the last, with the peak marked and failures in red.
/// Colours are readable on light and on dark ground.
pub fn svg(title: &str, points: &[Point]) -> String {
    let most = points.iter().map(|point| point.reserved_bytes).max().unwrap_or(0).max(1);
    let (across, up) = (WIDTH - LEFT - 8.0, HEIGHT - BELOW - ABOVE);
    let x = |at: usize| LEFT + across * at as f64 / points.len().max(1) as f64;
    let y = |bytes: u64| ABOVE + up * (1.0 - bytes as f64 / most as f64);
    // Each stretch is a step as wide as every other.
    let area = |bytes: fn(&Point) -> u64| {
        let mut path = format!("M{:.1} {:.1}", x(0), y(0));
        for (at, point) in points.iter().enumerate() {
            let top = y(bytes(point));
            path.push_str(&format!("L{:.1} {top:.1}L{:.1} {top:.1}", x(at), x(at + 1)));
        }
        path + &format!("L{:.1} {:.1}Z", x(points.len()), y(0))
    };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"currentColor\">\n<title>{}</title>\n",
        escaped(title)
    );
    let shares = [0.0, 0.25, 0.5, 0.75, 1.0];
    for share in shares {
        let bytes = (most as f64 * share) as u64;
        text.push_str(&format!(
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#888\" \
             stroke-width=\"0.3\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - 8.0,
            LEFT - 6.0,
            y(bytes) + 4.0,
            Bytes(bytes),
            height = y(bytes),
        ));
    }
    text.push_str(&format!(
        "<path d=\"{}\" fill=\"#9aa5b1\" fill-opacity=\"0.6\"/>\n<path d=\"{}\" \
         fill=\"#2f7ed8\"/>\n",
        area(|point| point.reserved_bytes),
        area(|point| point.active_bytes)
    ));
    for (at, _) in points.iter().enumerate().filter(|(_, point)| point.has_failure) {
        text.push_str(&format!(
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{ABOVE}\" y2=\"{1:.1}\" stroke=\"#d33\" \
             stroke-width=\"1.5\"/>\n",
            f64::midpoint(x(at), x(at + 1)),
            y(0)
        ));
    }
    text.push_str(&format!("{}</svg>\n", words(title, points, x)));
    text
}

/// The peak, the legend and the operations below.
fn words(title: &str, points: &[Point], x: impl Fn(usize) -> f64) -> String {
    let peak = points.iter().enumerate().max_by_key(|(_, point)| point.active_bytes);
    let peak = peak.map_or(String::new(), |(at, point)| {
        let middle = f64::midpoint(x(at), x(at + 1)).clamp(LEFT + 60.0, WIDTH - 70.0);
        format!(
            "<text x=\"{middle:.1}\" y=\"{}\" text-anchor=\"middle\">▾ {} in use</text>\n",
            ABOVE - 6.0,
            Bytes(point.active_bytes)
        )
    });
    let last = points.last().map_or(0, |point| point.index + 1);
    format!(
        "{peak}<text x=\"{LEFT}\" y=\"{low}\">{}: <tspan fill=\"#2f7ed8\">■</tspan> in use, \
         <tspan fill=\"#9aa5b1\">■</tspan> held</text>\n\
         <text x=\"{}\" y=\"{low}\" text-anchor=\"end\">operation {last}</text>\n",
        escaped(title),
        WIDTH - 8.0,
        low = HEIGHT - 8.0
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_step_for_each_stretch_and_names_the_peak() {
        let point = |index, active_bytes, reserved_bytes, has_failure| Point {
            index,
            allocated_bytes: active_bytes,
            active_bytes,
            reserved_bytes,
            has_failure,
        };
        let points = [point(0, 1 << 20, 2 << 20, false), point(5, 3 << 20, 4 << 20, true)];
        let svg = svg("a <b>", &points);
        assert!(svg.contains("<title>a &lt;b&gt;</title>"), "{svg}");
        assert!(svg.contains("▾ 3.00 MiB in use") && svg.contains("4.00 MiB</text>"), "{svg}");
        assert_eq!(svg.matches("stroke=\"#d33\"").count(), 1, "one failure");
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
        assert!(super::svg("nothing", &[]).ends_with("</svg>\n"));
    }
}
