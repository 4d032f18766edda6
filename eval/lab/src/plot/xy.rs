//! A chart of curves over a number, as an SVG document: both axes linear, from zero.

use super::svg::{COLORS, escape, text, tick_step};
use crate::table::short;
use std::fmt::Write;

/// A chart of curves.
pub(crate) struct Xy {
    pub(crate) title: String,
    /// Name of the horizontal axis.
    pub(crate) x: String,
    pub(crate) curves: Vec<Curve>,
}

/// A curve: points joined in their order.
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Horizontal value, vertical value, and label.
    pub(crate) points: Vec<(f64, f64, String)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 45.0;

impl Xy {
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" \
             font-size=\"12\"><rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
        );
        text(&mut out, LEFT, 22.0, "start", &self.title);
        let (across, up) = (self.scale(|p| p.0), self.scale(|p| p.1));
        let place = |x: f64, y: f64| {
            let x = LEFT + x / across.1 * (WIDTH - RIGHT - LEFT);
            (x, HEIGHT - BOTTOM - y / up.1 * (HEIGHT - BOTTOM - TOP))
        };
        for value in ticks(up) {
            let y = place(0.0, value).1;
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\" fill=\"none\"/>",
                WIDTH - RIGHT
            );
            text(&mut out, LEFT - 6.0, y + 4.0, "end", &short(value));
        }
        for value in ticks(across) {
            text(&mut out, place(value, 0.0).0, HEIGHT - BOTTOM + 18.0, "middle", &short(value));
        }
        text(&mut out, f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 8.0, "middle", &self.x);
        for (at, curve) in self.curves.iter().enumerate() {
            curve.render(&mut out, at, place);
        }
        out.push_str("</svg>\n");
        out
    }

    /// Returns the step of an axis, and its end: a whole number of steps.
    fn scale(&self, of: impl Fn(&(f64, f64, String)) -> f64) -> (f64, f64) {
        let highest = self.curves.iter().flat_map(|c| c.points.iter().map(&of)).fold(0.0, f64::max).max(1.0);
        let step = tick_step(highest);
        (step, (highest / step).ceil() * step)
    }
}

fn ticks((step, end): (f64, f64)) -> impl Iterator<Item = f64> {
    (0..).map(move |n| f64::from(n) * step).take_while(move |value| *value <= end * 1.0001)
}

impl Curve {
    fn render(&self, out: &mut String, at: usize, place: impl Fn(f64, f64) -> (f64, f64)) {
        let color = COLORS[at % COLORS.len()];
        let points: Vec<(f64, f64)> = self.points.iter().map(|p| place(p.0, p.1)).collect();
        let joined: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            joined.join(" ")
        );
        for ((x, y), (.., note)) in points.iter().zip(&self.points) {
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"><title>{}, \
                 {}</title></circle>",
                escape(&self.name),
                escape(note)
            );
        }
        let y = TOP + 8.0 + 18.0 * at as f64;
        let x = WIDTH - RIGHT + 15.0;
        let _ = writeln!(out, "<path d=\"M{x} {y:.1}h22\" stroke=\"{color}\" stroke-width=\"2\"/>");
        text(out, x + 28.0, y + 4.0, "start", &self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_and_point_is_there_and_inside_the_frame() {
        let point = |x, y| (x, y, "a < b".to_owned());
        let curves = vec![
            Curve { name: "one".into(), points: vec![point(0.0, 0.0), point(180.0, 88_000.0)] },
            Curve { name: "two".into(), points: vec![point(90.0, 0.0)] },
        ];
        let svg = Xy { title: "t".into(), x: "CPU, %".into(), curves }.render();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 3));
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"));
        for x in svg.split("cx=\"").skip(1) {
            let x: f64 = x.split('"').next().unwrap().parse().unwrap();
            assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{x}");
        }
    }
}
