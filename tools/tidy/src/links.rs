//! Checks that the relative links of documents lead to an existing file and heading.

use std::path::{Component, Path, PathBuf};

use crate::Violation;
use crate::files::{File, Kind};

/// Checks the links of one document.
pub(crate) fn of_file(file: &File, root: &Path) -> Vec<Violation> {
    if file.kind != Kind::Markdown {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (at, line) in prose(&file.text) {
        for target in targets(line) {
            if !leads_somewhere(target, &file.path, root) {
                let (file, text) = (file.path.clone(), target.to_owned());
                found.push(Violation { file, line: at + 1, check: "link", text });
            }
        }
    }
    found
}

/// Returns the lines outside of code blocks, each with its index from 0. Code has no links and no headings.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the targets of `[text](target)` in a line.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        if let Some(end) = rest.find(')') {
            found.push(&rest[..end]);
        }
    }
    found
}

fn leads_somewhere(target: &str, from: &str, root: &Path) -> bool {
    if target.contains("://") || target.starts_with("mailto:") || target.contains(' ') {
        return true;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let directory = Path::new(from).parent().unwrap_or(Path::new(""));
    let path = if path.is_empty() { PathBuf::from(from) } else { normal(&directory.join(path)) };
    let there = root.join(&path);
    if heading.is_empty() {
        return there.exists();
    }
    std::fs::read_to_string(there)
        .is_ok_and(|text| prose(&text).any(|(_, line)| anchor(line).as_deref() == Some(heading)))
}

/// Returns a path without `..` where possible.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if out.components().next().is_some() => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// Returns the anchor of a heading: in lower case, with hyphens for spaces, without punctuation.
fn anchor(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let kept = heading.to_lowercase();
    Some(
        kept.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_to_files_and_headings() {
        let directory = std::env::temp_dir().join(format!("tidy-links-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("docs")).expect("a directory");
        let text = "# On disk: `pages`\n```sh\n# a comment\n[no](link.md)\n```\n[yes](b.md)\n";
        std::fs::write(directory.join("docs/a.md"), text).expect("a file");
        for (target, is_good) in [
            ("a.md", true),
            ("a.md#on-disk-pages", true),
            ("a.md#elsewhere", false),
            ("a.md#a-comment", false),
            ("b.md", false),
            ("../docs/a.md", true),
            ("https://example.org", true),
        ] {
            assert_eq!(leads_somewhere(target, "docs/x.md", &directory), is_good, "{target}");
        }
        let file = File { path: "docs/a.md".into(), kind: Kind::Markdown, text: text.into() };
        let dead: Vec<_> =
            of_file(&file, &directory).into_iter().map(|found| (found.line, found.text)).collect();
        assert_eq!(dead, [(6, "b.md".to_owned())]);
        assert_eq!(targets("see [a](b.md) and [c](d.md#e)"), ["b.md", "d.md#e"]);
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
