//! Finds the prose of each line: the comment in source code, the whole line in a document.

use crate::allowed::Phrase;
use crate::files::{File, Kind};

/// Returns the prose of each line; empty for a line without prose.
pub(crate) fn lines(file: &File) -> Vec<&str> {
    match file.kind {
        Kind::Markdown => fenced(&file.text),
        Kind::Rust | Kind::C => file.text.lines().map(slash_comment).collect(),
        Kind::Script => file.text.lines().map(hash_comment).collect(),
        Kind::Other => file.text.lines().map(|_| "").collect(),
    }
}

/// Returns the lines of a document; empty for lines of fenced code.
fn fenced(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut prose = Vec::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        prose.push(if is_code || is_fence { "" } else { line });
        is_code ^= is_fence;
    }
    prose
}

/// Returns the comment after `//`, unless the `//` is inside a string.
fn slash_comment(line: &str) -> &str {
    if line.trim_start().starts_with('*') {
        return line.trim_start();
    }
    let mut is_string = false;
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if is_string => at += 1,
            b'"' if !(at > 0 && bytes[at - 1] == b'\'') => is_string = !is_string,
            b'/' if !is_string && bytes.get(at + 1) == Some(&b'/') => return &line[at..],
            b'/' if !is_string && bytes.get(at + 1) == Some(&b'*') => return &line[at..],
            _ => {}
        }
        at += 1;
    }
    ""
}

fn hash_comment(line: &str) -> &str {
    if line.trim_start().starts_with('#') {
        return line.trim_start();
    }
    line.find(" # ").map_or("", |at| &line[at..])
}

/// Returns the words of a text: runs of letters, digits and underscores.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns `true` if a phrase begins in line `at`; it may end in the next line of the same prose.
pub(crate) fn has_phrase(prose: &[&str], at: usize, phrases: &[Phrase]) -> bool {
    let mut said: Vec<String> = words(prose[at]).map(str::to_lowercase).collect();
    let own = said.len();
    said.extend(words(prose.get(at + 1).copied().unwrap_or_default()).map(str::to_lowercase));
    phrases.iter().any(|phrase| {
        said.windows(phrase.len()).take(own).any(|window| window == phrase.as_slice()) && own > 0
    })
}

/// Words that begin a sentence without a subject.
const HEADLESS: [&str; 7] = ["What ", "Whatever ", "Who ", "Whom ", "Whose ", "Whoever ", "Whichever "];
/// Number of lines after the first in which a question may end.
const QUESTION_LINES: usize = 4;

/// Returns `true` if a sentence that begins in line `at` starts with a word of [`HEADLESS`] and is not a
/// question.
pub(crate) fn has_headless_sentence(prose: &[&str], at: usize) -> bool {
    let said = unmarked(prose[at]);
    let before = at.checked_sub(1).map_or("", |before| unmarked(prose[before]));
    let begins = before.is_empty() || before.ends_with(['.', ':', '?', '!', '|']) || is_item(prose[at]);
    let after_end = said.match_indices(". ").map(|(end, dot)| end + dot.len());
    begins.then_some(0).into_iter().chain(after_end).any(|start| {
        let rest = &said[start..];
        let opens = HEADLESS.iter().any(|word| rest.starts_with(word)) && !rest.starts_with("What if");
        opens && !is_question(rest, prose.get(at + 1..).unwrap_or_default())
    })
}

fn is_question(first: &str, next: &[&str]) -> bool {
    let lines = std::iter::once(first).chain(next.iter().take(QUESTION_LINES).map(|line| unmarked(line)));
    let mut ends = lines.filter_map(|line| line.chars().find(|c| matches!(c, '.' | '?')));
    ends.next() == Some('?')
}

/// Returns a line of prose without the marks of comments, lists, headings and quotes.
pub(crate) fn unmarked(line: &str) -> &str {
    line.trim_start_matches(|c: char| c.is_whitespace() || "/!#*->".contains(c)).trim_end()
}

/// Returns `true` for the first line of a list item, a heading or a row of a table.
pub(crate) fn is_item(line: &str) -> bool {
    let text = line.trim_start_matches(['/', '!', ' ']);
    text.starts_with("- ") || text.starts_with('#') || text.starts_with('|')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_and_strings_are_not() {
        assert_eq!(slash_comment("let a = 1; // one"), "// one");
        assert_eq!(slash_comment(r#"let a = "http://x";"#), "");
        assert_eq!(slash_comment(r#"let a = "\"//"; // b"#), "// b");
        assert_eq!(slash_comment("let quote = '\"'; // c"), "// c");
        assert_eq!(hash_comment("run # why"), " # why");
        assert_eq!(hash_comment("echo ${#x}"), "");
    }

    #[test]
    fn fenced_code_is_no_prose() {
        assert_eq!(fenced("a\n```sh\nb\n```\nc"), ["a", "", "", "", "c"]);
    }
}
