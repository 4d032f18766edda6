//! The report as one self-contained HTML page with data, style and script.

use super::{flame, text};
use crate::analyze::{Analysis, timeline};
use serde::Serialize;
use std::io;

/// The page without its data.
const PAGE: &str = include_str!("page.html");

#[derive(Serialize)]
struct Data<'a> {
    analysis: &'a Analysis,
    timeline: &'a timeline::Timeline,
    verdict: String,
}

/// Returns the page. It includes the text report for readers without scripts.
pub(super) fn page(analysis: &Analysis, top: usize) -> io::Result<String> {
    let data = Data { analysis, timeline: &analysis.timeline, verdict: analysis.verdict.sentence() };
    let json = serde_json::to_string(&data)?;
    let label = &analysis.recorded.label;
    let title = if label.is_empty() { "trace" } else { label };
    // The placeholders receive user input. The template is split before, so input is never searched for
    // placeholders.
    let (head, rest) = PAGE.split_once("{{title}}").unwrap_or((PAGE, ""));
    let (before_flame, rest) = rest.split_once("{{flame}}").unwrap_or((rest, ""));
    let (before_text, rest) = rest.split_once("{{text}}").unwrap_or((rest, ""));
    let (before_data, tail) = rest.split_once("{{data}}").unwrap_or((rest, ""));
    let text = escape(&text::text(analysis, top));
    let flame = flame::section(analysis);
    let (title, json) = (escape(title), in_script(&json));
    Ok([head, &title, before_flame, &flame, before_text, &text, before_data, &json, tail].concat())
}

/// Returns text as HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns JSON that cannot end the script element around it.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_has_its_four_places_in_order() {
        let at = |place: &str| PAGE.find(place).expect("there");
        assert!(at("{{title}}") < at("{{flame}}") && at("{{flame}}") < at("{{text}}"));
        assert!(at("{{text}}") < at("{{data}}"));
    }

    #[test]
    fn names_cannot_break_out_of_the_page() {
        assert_eq!(in_script("\"</script>\""), "\"\\u003c/script>\"");
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
