//! The checks of a single line or file.

use crate::Violation;
use crate::allowed::Phrase;
use crate::files::{File, Kind};
use crate::prose;

/// Largest number of characters of a line; equals rustfmt's `max_width`.
const MOST_CHARACTERS: usize = 110;
/// Largest number of lines of a source file. A larger file should be split.
const MOST_LINES: usize = 600;
/// Largest distance, in lines, of an ordering from the comment that gives its reason.
const NEARBY_LINES: usize = 10;

pub(crate) const WHO: [&str; 5] = ["who", "whom", "whose", "whoever", "whomever"];
pub(crate) const OPENINGS: [&str; 9] =
    ["Who", "What", "Where", "When", "How", "Whether", "Which", "Why", "It"];
const ORDERINGS: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];

/// Runs all checks of one file; `phrases` are the forbidden words and phrases.
pub(crate) fn of_file(file: &File, phrases: &[Phrase]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut report = |line: usize, check: &'static str, text: &str| {
        let text = text.chars().take(140).collect();
        found.push(Violation { file: file.path.clone(), line: line + 1, check, text });
    };
    let prose = prose::lines(file);
    let source: Vec<&str> = file.text.lines().collect();
    let mut is_inside_doc = false;
    for (at, (&line, &said)) in source.iter().zip(&prose).enumerate() {
        if prose::words(said).any(|word| WHO.contains(&word.to_lowercase().as_str())) {
            report(at, "who", said);
        }
        if prose::has_phrase(&prose, at, phrases) {
            report(at, "word", said);
        }
        if prose::has_headless_sentence(&prose, at) {
            report(at, "sentence", said);
        }
        let doc = said.strip_prefix("/// ").or_else(|| said.strip_prefix("//! "));
        if file.kind == Kind::Rust
            && !is_inside_doc
            && doc.and_then(|doc| prose::words(doc).next()).is_some_and(|word| OPENINGS.contains(&word))
        {
            report(at, "opening", said);
        }
        is_inside_doc = said.starts_with("///") || said.starts_with("//!");
        if line.chars().count() > MOST_CHARACTERS {
            report(at, "length", line);
        }
        if is_shipped(&file.path) && needs_reason(line) && !has_reason(&prose, at) {
            report(at, "ordering", line);
        }
    }
    if file.kind == Kind::Rust && source.len() > MOST_LINES {
        report(0, "size", &format!("{} lines", source.len()));
    }
    found
}

/// Returns `true` for code of the product, as opposed to tests and the evaluation.
fn is_shipped(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && !path.contains("test") && path.ends_with(".rs")
}

/// Returns `true` if the line passes an ordering to an operation; imports and patterns do not count.
fn needs_reason(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    if code.trim_start().starts_with("use ") || !code.contains('(') && !code.trim_start().ends_with(',') {
        return false;
    }
    prose::words(code).any(|word| ORDERINGS.contains(&word))
}

fn has_reason(prose: &[&str], at: usize) -> bool {
    prose[at.saturating_sub(NEARBY_LINES)..=at].iter().any(|said| !said.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(path: &str, kind: Kind, text: &str) -> Vec<(&'static str, usize)> {
        let file = File { path: path.into(), kind, text: text.into() };
        let words = [vec!["manner".to_owned()], ["on", "its", "way"].map(str::to_owned).to_vec()];
        of_file(&file, &words).into_iter().map(|found| (found.check, found.line)).collect()
    }

    #[test]
    fn each_check_finds_its_violation_and_nothing_else() {
        let rust = |text: &str| checks("crates/x/src/a.rs", Kind::Rust, text);
        assert_eq!(rust("// Those who wait\n"), [("who", 1)]);
        assert_eq!(rust("let who = 1;\n"), []);
        assert_eq!(rust("/// Whether it is open.\nfn a() {}\n"), [("opening", 1)]);
        assert_eq!(rust("/// Returns a thing.\n/// It is open.\nfn a() {}\n"), []);
        assert_eq!(rust("// A manner of speaking\n"), [("word", 1)]);
        assert_eq!(rust("// A page on its\n// way to a server, far away\n"), [("word", 1)]);
        assert_eq!(rust("// A page on its\nlet way = 1;\n"), []);
        assert_eq!(rust("// A page leaves. What comes takes its frame.\n"), [("sentence", 1)]);
        assert_eq!(rust("// A page leaves.\n// What comes takes its frame.\n"), [("sentence", 2)]);
        assert_eq!(rust("// The test shows\n// What it shows.\n"), []);
        assert_eq!(rust("// What if removes the waits for one lock.\n"), []);
        assert_eq!(rust("// What takes the frame, and when\n// does it leave?\n"), []);
        assert_eq!(checks("a.md", Kind::Markdown, "| a | b |\n- What stays is read.\n"), [("sentence", 2)]);
        assert_eq!(rust(&format!("let a = {};\n", "1".repeat(110))), [("length", 1)]);
        assert_eq!(rust("x.load(Relaxed);\n"), [("ordering", 1)]);
        assert_eq!(rust("x.load(Relaxed); // a guess; the CAS decides\n"), []);
        assert_eq!(rust("use std::sync::atomic::Ordering::{Acquire, Relaxed};\n"), []);
        assert_eq!(rust(&"\n".repeat(601)), [("size", 1)]);
        assert_eq!(checks("crates/x/tests/a.rs", Kind::Rust, "x.load(Relaxed);\n"), []);
        let long = "1".repeat(111);
        for (path, kind) in [("a.md", Kind::Markdown), ("a.html", Kind::Other), ("a.sh", Kind::Script)] {
            assert_eq!(checks(path, kind, &long), [("length", 1)], "{path}");
            assert_eq!(checks(path, kind, &long[1..]), [], "{path}");
        }
        assert_eq!(checks("a.html", Kind::Other, "who\n"), []);
        assert_eq!(checks("a.md", Kind::Markdown, "A user whose key\n```\nwho\n```\n"), [("who", 1)]);
        assert_eq!(checks("a.sh", Kind::Script, "# who\nwho\n"), [("who", 1)]);
    }
}
