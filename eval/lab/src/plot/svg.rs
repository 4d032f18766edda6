//! A line chart as an SVG document: threads on a logarithmic axis, rates on a linear one that begins at zero.

use crate::table::short;
use std::fmt::Write;

pub(super) struct Chart {
    pub(super) title: String,
    /// Name of the axis.
    pub(super) axis: String,
    pub(super) lines: Vec<Line>,
}

pub(super) struct Line {
    pub(super) name: String,
    /// Numbers of threads with their rates, in ascending order.
    pub(super) points: Vec<(usize, f64)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 45.0;

/// Colors that people with the usual kinds of color blindness can distinguish (Okabe and Ito's palette).
/// Lines also differ in their dashes.
pub(super) const COLORS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a00"];

impl Chart {
    pub(super) fn render(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" \
             font-size=\"12\"><rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
        );
        text(&mut out, LEFT, 22.0, "start", &self.title);
        self.axes(&mut out);
        for (at, line) in self.lines.iter().enumerate() {
            self.line(&mut out, at, line);
        }
        out.push_str("</svg>\n");
        out
    }

    fn axes(&self, out: &mut String) {
        let step = tick_step(self.highest());
        let mut value = 0.0;
        while value <= self.top() * 1.0001 {
            let y = self.y(value);
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\" fill=\"none\"/>",
                WIDTH - RIGHT
            );
            text(out, LEFT - 6.0, y + 4.0, "end", &short(value));
            value += step;
        }
        for threads in self.thread_counts() {
            text(out, self.x(threads), HEIGHT - BOTTOM + 18.0, "middle", &threads.to_string());
        }
        text(out, f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 8.0, "middle", &self.axis);
    }

    fn line(&self, out: &mut String, at: usize, line: &Line) {
        let color = COLORS[at % COLORS.len()];
        let dash = ["", "6 3", "2 3"][at / COLORS.len() % 3];
        let points: Vec<String> =
            line.points.iter().map(|&(t, rate)| format!("{:.1},{:.1}", self.x(t), self.y(rate))).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/>",
            points.join(" ")
        );
        for &(threads, rate) in &line.points {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"><title>{}, {threads} {}: \
                 {}</title></circle>",
                self.x(threads),
                self.y(rate),
                escape(&line.name),
                escape(&self.axis),
                short(rate)
            );
        }
        #[expect(clippy::cast_precision_loss, reason = "a chart has few lines")]
        let y = TOP + 8.0 + 18.0 * at as f64;
        let x = WIDTH - RIGHT + 15.0;
        let _ = writeln!(
            out,
            "<path d=\"M{x} {y:.1}h22\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>"
        );
        text(out, x + 28.0, y + 4.0, "start", &line.name);
    }

    fn thread_counts(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.lines.iter().flat_map(|l| l.points.iter().map(|p| p.0)).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn highest(&self) -> f64 {
        let rates = self.lines.iter().flat_map(|l| l.points.iter().map(|p| p.1));
        rates.fold(0.0, f64::max).max(1.0)
    }

    /// Returns the end of the vertical axis: a whole number of steps.
    fn top(&self) -> f64 {
        let step = tick_step(self.highest());
        (self.highest() / step).ceil() * step
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.top() * (HEIGHT - BOTTOM - TOP)
    }

    #[expect(clippy::cast_precision_loss, reason = "thread counts are small")]
    fn x(&self, threads: usize) -> f64 {
        let counts = self.thread_counts();
        let log = |t: usize| (t.max(1) as f64).log2();
        let (least, most) = (log(*counts.first().unwrap_or(&1)), log(*counts.last().unwrap_or(&1)));
        let share = if most > least { (log(threads) - least) / (most - least) } else { 0.5 };
        let margin = 20.0;
        LEFT + margin + share * (WIDTH - RIGHT - LEFT - 2.0 * margin)
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten, of which about five reach the highest value.
pub(super) fn tick_step(highest: f64) -> f64 {
    let rough = highest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&s| s >= rough).unwrap_or(power * 10.0)
}

pub(super) fn text(out: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ =
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(content));
}

/// Escapes text for XML character data and attribute values.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: Vec<Line>) -> Chart {
        Chart { title: "a < b & c".into(), axis: "threads".into(), lines }
    }

    #[test]
    fn ticks_are_round_numbers() {
        for (highest, step) in [(1.0, 0.2), (43_210.0, 10_000.0), (99.0, 20.0), (500_000.0, 100_000.0)] {
            assert!((tick_step(highest) - step).abs() < step * 1e-9, "{highest}: {}", tick_step(highest));
        }
    }

    #[test]
    fn points_are_inside_the_frame_and_higher_rates_higher_up() {
        let chart = chart(vec![Line { name: "x".into(), points: vec![(1, 10.0), (8, 500.0), (64, 100.0)] }]);
        for threads in [1, 8, 64] {
            assert!((LEFT..=WIDTH - RIGHT).contains(&chart.x(threads)));
        }
        assert!(chart.x(1) < chart.x(8) && chart.x(8) < chart.x(64));
        assert!(chart.y(500.0) < chart.y(100.0) && chart.y(500.0) >= TOP);
    }

    #[test]
    fn names_are_escaped_and_every_line_has_its_legend() {
        let svg = chart(vec![
            Line { name: "<one>".into(), points: vec![(1, 1.0)] },
            Line { name: "two".into(), points: vec![(1, 2.0)] },
        ])
        .render();
        assert!(
            svg.contains("a &lt; b &amp; c") && svg.contains(">&lt;one&gt;</text>") && !svg.contains("<one>")
        );
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn a_chart_of_zeroes_is_drawn_all_the_same() {
        let svg = chart(vec![Line { name: "idle".into(), points: vec![(1, 0.0)] }]).render();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
