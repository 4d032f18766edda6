//! The files that are checked: those that git tracks, by kind.

use std::path::Path;
use std::process::Command;

/// The language of a file, which decides where its prose is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rust,
    C,
    Markdown,
    /// Shell, Python, TOML: comments begin with `#`.
    Script,
}

/// A file and its text.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the repository's root.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

fn kind(path: &str) -> Option<Kind> {
    if path.starts_with(".ci/") {
        return Some(Kind::Script);
    }
    match path.rsplit_once('.')?.1 {
        "rs" => Some(Kind::Rust),
        "c" | "h" | "cc" | "cpp" => Some(Kind::C),
        "md" => Some(Kind::Markdown),
        "sh" | "py" | "toml" => Some(Kind::Script),
        _ => None,
    }
}

/// Reads all tracked files of a kind that has checks.
pub(crate) fn tree(root: &Path) -> Result<Vec<File>, String> {
    let listed = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z"])
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&listed.stdout).split('\0') {
        let Some(kind) = kind(path) else { continue };
        // A file that was deleted but not yet staged is still listed.
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        files.push(File { path: path.to_owned(), kind, text });
    }
    Ok(files)
}
