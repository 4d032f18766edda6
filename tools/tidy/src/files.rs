//! The checked files: all text files that git tracks.

use std::path::Path;
use std::process::Command;

/// The language of a file, which decides where its prose is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rust,
    C,
    Markdown,
    /// Shell, Python or TOML: comments begin with `#`.
    Script,
    /// Other text, such as HTML: only the length of its lines is checked.
    Other,
}

/// A file and its text.
#[derive(Debug)]
pub(crate) struct File {
    /// Path from the root of the repository.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

fn kind(path: &str) -> Kind {
    if path.starts_with(".ci/") {
        return Kind::Script;
    }
    match path.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "rs" => Kind::Rust,
        "c" | "h" | "cc" | "cpp" => Kind::C,
        "md" => Kind::Markdown,
        "sh" | "py" | "toml" => Kind::Script,
        _ => Kind::Other,
    }
}

/// Reads all tracked files that contain UTF-8 text.
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
        // Images and data files are not text. git also lists files that are deleted but not staged.
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        files.push(File { path: path.to_owned(), kind: kind(path), text });
    }
    Ok(files)
}
