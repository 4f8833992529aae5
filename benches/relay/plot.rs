//! The rates as bars, as SVG.

use std::fmt::Write;

use crate::measurement::{Group, RATE, Results, Value};
use crate::report::grouped;

const WIDTH: f64 = 760.0;
/// Where bars begin, behind the names.
const LEFT: f64 = 230.0;
/// What is left for the number behind the longest bar.
const RIGHT: f64 = 80.0;
const ROW: f64 = 26.0;
const TOP: f64 = 44.0;

/// One bar for each measured line of these groups, in their order; `None` if there is none.
pub fn rates(groups: &[&Group], results: &Results, conditions: &str) -> Option<String> {
    let mut bars = Vec::new();
    for group in groups {
        for line in &group.lines {
            if let Some(rate) = results.median(&line.name, None, Value::Plain(RATE)) {
                bars.push((group.name, line.name.as_str(), rate));
            }
        }
    }
    let most = bars.iter().map(|(.., rate)| *rate).fold(0.0, f64::max);
    if most == 0.0 {
        return None;
    }
    let height = TOP + ROW * bars.len() as f64 + 20.0;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">
<title>Events a second</title>
<desc>{}</desc>
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="16" y="26" font-size="16" font-weight="bold">Events a second</text>
"##,
        escaped(conditions)
    );
    for (row, (group, name, rate)) in bars.iter().enumerate() {
        let top = TOP + ROW * row as f64;
        let middle = top + ROW * 0.62;
        let length = (rate / most * (WIDTH - LEFT - RIGHT)).max(1.0);
        let color = match *group {
            "ceiling" => "#9aa5b1",
            "floor" => "#c0504d",
            _ => "#2f6f9f",
        };
        writeln!(
            svg,
            r##"<text x="{:.0}" y="{middle:.1}" text-anchor="end">{}</text><rect x="{LEFT}" y="{:.1}" width="{length:.1}" height="{:.0}" fill="{color}"/><text x="{:.1}" y="{middle:.1}">{}</text>"##,
            LEFT - 8.0,
            escaped(name),
            top + 3.0,
            ROW - 6.0,
            LEFT + length + 6.0,
            grouped(&format!("{rate:.0}"))
        )
        .unwrap();
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
