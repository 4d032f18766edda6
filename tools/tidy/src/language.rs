//! Two shares of the prose: sentences with *who, whom, whose*, and doc items that begin with an
//! interrogative.
//!
//! A sentence ends at `.`, `?`, `!`, `:` or `|` before a space, and at the end of a paragraph. A doc item is
//! a run of `///` or `//!` lines. Fenced code does not count as prose. The list of files is sorted by the
//! number of violations of both kinds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::checks::{OPENINGS, WHO};
use crate::files::{File, Kind};
use crate::prose;

/// Number of files in the list of those with the most violations.
const LISTED_FILES: usize = 30;
/// Results keep the words of the day on which they were measured. The checker names the forbidden words.
const LEFT_OUT: [&str; 2] = ["eval/results/", "tools/tidy/"];

/// Counts of one file, one crate, or all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    sentences: usize,
    who: usize,
    items: usize,
    openings: usize,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.sentences += other.sentences;
        self.who += other.who;
        self.items += other.items;
        self.openings += other.openings;
    }
}

/// Returns the table and the list.
pub(crate) fn table(tree: &[File]) -> String {
    let mut folders: BTreeMap<String, Counts> = BTreeMap::new();
    let (mut all, mut files) = (Counts::default(), Vec::new());
    for file in tree.iter().filter(|file| !LEFT_OUT.iter().any(|folder| file.path.starts_with(folder))) {
        let counts = of_file(file);
        folders.entry(folder(&file.path)).or_default().add(counts);
        all.add(counts);
        files.push((counts.who + counts.openings, file.path.as_str()));
    }
    let mut out = String::from(
        "| folder | sentences | with who | per 100 | doc items | open with an interrogative | % |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (name, counts) in folders.iter().map(|(name, counts)| (name.as_str(), counts)).chain([("all", &all)])
    {
        let Counts { sentences, who, items, openings } = counts;
        let (per_100, percent) = (share(*who, *sentences), share(*openings, *items));
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "| {name} | {sentences} | {who} | {per_100} | {items} | {openings} | {percent} |");
    }
    files.retain(|(violations, _)| *violations > 0);
    files.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    for (violations, path) in files.iter().take(LISTED_FILES) {
        let _ = writeln!(out, "{violations} {path}"); // cannot fail
    }
    out
}

/// Returns a percentage with one decimal digit.
fn share(part: usize, whole: usize) -> String {
    let tenths = part * 1000 / whole.max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Returns the crate, the part of the evaluation, or the top folder of a path.
fn folder(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [first @ ("crates" | "eval" | "tools"), second, _, ..] => format!("{first}/{second}"),
        [first, _, ..] => (*first).to_owned(),
        _ => ".".to_owned(),
    }
}

fn of_file(file: &File) -> Counts {
    let mut counts = Counts::default();
    let (mut paragraph, mut is_inside_doc, mut is_code, mut mark) = (String::new(), false, false, "");
    for said in prose::lines(file) {
        let is_doc = file.kind == Kind::Rust && (said.starts_with("///") || said.starts_with("//!"));
        let text = prose::unmarked(said);
        if is_doc && !is_inside_doc {
            counts.items += 1;
            counts.openings += usize::from(prose::words(text).next().is_some_and(|w| OPENINGS.contains(&w)));
        }
        is_code = is_doc && (is_code ^ text.starts_with("```"));
        is_inside_doc = is_doc;
        let is_end = text.is_empty() || is_code || text.starts_with("```");
        let before = std::mem::replace(&mut mark, said.split(' ').next().unwrap_or_default());
        let is_other = before != mark && before.starts_with("//");
        if is_end || is_other || prose::is_item(said) {
            counts.add(sentences(&std::mem::take(&mut paragraph)));
        }
        if !is_end {
            paragraph.push_str(text);
            paragraph.push(' ');
        }
    }
    counts.add(sentences(&paragraph));
    counts
}

/// Counts the sentences of a paragraph, a list item or a row of a table.
fn sentences(paragraph: &str) -> Counts {
    let mut counts = Counts::default();
    let ends = |text: &str, at: usize| text[at..].starts_with(['.', '?', '!', ':', '|']);
    let mut start = 0;
    for (at, _) in paragraph.match_indices(' ') {
        let is_end = at > start && ends(paragraph, paragraph[..at].char_indices().last().map_or(0, |c| c.0));
        if is_end || at + 1 == paragraph.len() {
            let mut words = prose::words(&paragraph[start..at]).peekable();
            counts.sentences += usize::from(words.peek().is_some());
            counts.who += usize::from(words.any(|word| WHO.contains(&word.to_lowercase().as_str())));
            start = at + 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_doc_items_are_counted() {
        let text = "//! A head. Who reads it?\n\n/// Whether it is so.\n///\n/// A thread whose\n\
                    /// lock waits.\n/// ```\n/// who(); // Which code.\n/// ```\n\
                    fn a() {} // a thread. Another\n/// Sets `x`.\nfn b() {}\n";
        let file = File { path: "crates/x/src/a.rs".into(), kind: Kind::Rust, text: text.into() };
        assert_eq!(of_file(&file), Counts { sentences: 7, who: 2, items: 3, openings: 1 });
        let row = File { path: "a.md".into(), kind: Kind::Markdown, text: "| a | those who b |\n".into() };
        assert_eq!(of_file(&row), Counts { sentences: 2, who: 1, items: 0, openings: 0 });
        assert_eq!((share(3, 1000), share(1, 8)), ("0.3".to_owned(), "12.5".to_owned()));
        assert_eq!(folder("crates/x/src/a.rs"), "crates/x");
    }
}
