//! Finds the prose of a line: the comment of a source file, the whole line of a document.

use crate::files::{File, Kind};

/// Returns the part of each line that people read as prose, by line; empty where there is none.
pub(crate) fn lines(file: &File) -> Vec<&str> {
    match file.kind {
        Kind::Markdown => fenced(&file.text),
        Kind::Rust | Kind::C => file.text.lines().map(slash_comment).collect(),
        Kind::Script => file.text.lines().map(hash_comment).collect(),
    }
}

/// The lines of a document outside of fenced code.
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

/// The text behind `//`, unless that stands in a string.
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

/// The words of a text: letters and digits with apostrophes, and underscores.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
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
