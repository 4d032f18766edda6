//! Stacked horizontal bars, as an SVG document.

use super::svg::{COLORS, escape, text};
use std::fmt::Write;

/// A chart of stacked bars.
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) stacks: Vec<Stack>,
}

/// One bar: named parts, from the left.
pub(crate) struct Stack {
    pub(crate) name: String,
    pub(crate) parts: Vec<(String, f64)>,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 40.0;
const ROW: f64 = 30.0;
const LEGEND: f64 = 18.0;

impl Bars {
    pub(crate) fn render(&self) -> String {
        let names = self.names();
        let bottom = TOP + ROW * self.stacks.len() as f64;
        let height = bottom + 15.0 + LEGEND * names.len() as f64;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" \
             font-size=\"12\"><rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>"
        );
        text(&mut out, 10.0, 22.0, "start", &self.title);
        let longest = self.stacks.iter().map(Stack::length).fold(1e-9, f64::max);
        for (at, stack) in self.stacks.iter().enumerate() {
            let y = TOP + ROW * at as f64;
            text(&mut out, LEFT - 6.0, y + 15.0, "end", &stack.name);
            let mut x = LEFT;
            for (name, value) in &stack.parts {
                let width = value / longest * (WIDTH - LEFT - RIGHT);
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"20\" \
                     fill=\"{}\"><title>{}: {value:.3}</title></rect>",
                    color(&names, name),
                    escape(name)
                );
                x += width;
            }
            text(&mut out, x + 6.0, y + 15.0, "start", &format!("{:.3}", stack.length()));
        }
        for (at, name) in names.iter().enumerate() {
            let y = bottom + 10.0 + LEGEND * at as f64;
            let _ = writeln!(
                out,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>",
                color(&names, name)
            );
            text(&mut out, LEFT + 18.0, y + 10.0, "start", name);
        }
        out.push_str("</svg>\n");
        out
    }

    /// Returns the names of all parts, each once, in order. Charts of the same parts then have the same
    /// colors.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.stacks.iter().flat_map(|s| &s.parts) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        names
    }
}

impl Stack {
    fn length(&self) -> f64 {
        self.parts.iter().map(|p| p.1).sum()
    }
}

fn color(names: &[&str], name: &str) -> &'static str {
    let at = names.iter().position(|n| *n == name).unwrap_or(0);
    COLORS[at % COLORS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_has_one_color_and_one_line_in_the_legend() {
        let stack = |name: &str, parts: &[(&str, f64)]| Stack {
            name: name.into(),
            parts: parts.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect(),
        };
        let bars = Bars {
            title: "t".into(),
            stacks: vec![stack("a", &[("x", 2.0), ("y<", 1.0)]), stack("b", &[("y<", 0.0)])],
        };
        let svg = bars.render();
        assert_eq!(svg.matches("<title>").count(), 3);
        assert_eq!(svg.matches(">y&lt;</text>").count(), 1);
        assert!(svg.contains(">3.000</text>") && !svg.contains("NaN"));
    }
}
