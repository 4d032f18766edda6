//! Runs the `console` blocks of the documents in a shell with this command.
//!
//! A line that begins with `$ ` is a command. The lines up to the next command are its output, including
//! errors. `…` stands for any text within a line. All blocks of a page run in one directory, in order.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::Scratch;

/// Returns the pages with `console` blocks, below the root of the repository.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut found, mut directories) = (vec![root.join("README.md")], vec![root.join("docs")]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let texts = found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()));
    texts.filter(|(_, text)| text.contains("```console")).collect()
}

/// Returns the commands of a page with their expected output.
fn steps(text: &str) -> Vec<(String, Vec<String>)> {
    let (mut steps, mut is_console) = (Vec::<(String, Vec<String>)>::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if is_console {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push((command.to_owned(), Vec::new())),
                None => steps.last_mut().expect("a command comes first").1.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Returns `true` if a line is as expected.
fn fits(line: &str, expected: &str) -> bool {
    let parts: Vec<&str> = expected.split('…').collect();
    let Some((last, rest)) = parts.split_last() else { return false };
    let Some((first, middle)) = rest.split_first() else { return line == expected };
    let Some(mut line) = line.strip_prefix(first) else { return false };
    for part in middle {
        match line.split_once(part) {
            Some((_, after)) => line = after,
            None => return false,
        }
    }
    line.ends_with(last)
}

#[test]
fn the_console_blocks_of_the_documents_do_what_they_show() {
    let program = Path::new(env!("CARGO_BIN_EXE_azekura"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut commands = 0;
    for (page, text) in pages() {
        let scratch = Scratch::new();
        for (command, expected) in steps(&text) {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec 2>&1; {command}")]).current_dir(scratch.path(""));
            let output = shell.env("PATH", &path).output().unwrap();
            let shown = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<&str> = shown.lines().collect();
            let is_shown = lines.len() == expected.len()
                && lines.iter().zip(&expected).all(|(line, expected)| fits(line, expected));
            assert!(is_shown, "{}: $ {command}\n{shown}\nexpected:\n{}", page.display(), expected.join("\n"));
            commands += 1;
        }
    }
    assert!(commands > 10, "only {commands} commands were run");
}

#[test]
fn an_ellipsis_stands_for_any_text() {
    for (line, expected, is_it) in [
        ("loaded 3 rows in 7 ms", "loaded 3 rows in …", true),
        ("loaded 4 rows in 7 ms", "loaded 3 rows in …", false),
        ("a b c", "a … c", true),
        ("a b d", "a … c", false),
        ("a b c d", "… b … d", true),
        ("a", "a", true),
        ("ab", "a", false),
    ] {
        assert_eq!(fits(line, expected), is_it, "{line}: {expected}");
    }
}
