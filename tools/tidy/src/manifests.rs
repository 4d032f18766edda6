//! Checks of manifests: the keys that package registries show, and the versions in the workspace.

use crate::Violation;
use crate::files::File;

/// Keys that each published crate has in `[package]`, directly or inherited from the workspace.
const KEYS: [&str; 9] = [
    "name",
    "description",
    "version",
    "edition",
    "rust-version",
    "license",
    "repository",
    "keywords",
    "categories",
];
/// Limits of crates.io: number of keywords, and bytes of one keyword.
const KEYWORDS: (usize, usize) = (5, 20);

/// Checks the `Cargo.toml` of a crate of the product.
pub(crate) fn of_file(file: &File) -> Vec<Violation> {
    let is_crate = file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml");
    let found = match file.path.as_str() {
        "Cargo.toml" => of_workspace(&file.text),
        _ if is_crate => of_crate(&file.text),
        _ => Vec::new(),
    };
    let violation = |(line, text)| Violation { file: file.path.clone(), line, check: "package", text };
    found.into_iter().map(violation).collect()
}

/// Returns the lines of a section, numbered from 1, without comments and empty lines.
fn section<'t>(text: &'t str, name: &str) -> Vec<(usize, &'t str)> {
    let head = format!("[{name}]");
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let inside = lines.skip_while(|(_, line)| *line != head).skip(1);
    inside
        .take_while(|(_, line)| !line.starts_with('['))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// Returns the key of a line: `license` of `license.workspace = true`.
fn key(line: &str) -> &str {
    let key = line.split('=').next().unwrap_or_default().trim();
    key.strip_suffix(".workspace").unwrap_or(key)
}

/// Returns the quoted strings of a line.
fn quoted(line: &str) -> Vec<&str> {
    line.split('"').skip(1).step_by(2).collect()
}

fn of_crate(text: &str) -> Vec<(usize, String)> {
    let package = section(text, "package");
    if package.iter().any(|(_, line)| line.starts_with("publish = false")) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for wanted in KEYS.into_iter().chain(["readme"]) {
        if !package.iter().any(|(_, line)| key(line) == wanted) {
            found.push((1, format!("a published crate has no `{wanted}`")));
        }
    }
    if section(text, "package.metadata.docs.rs").is_empty() {
        found.push((1, "a published crate has no settings for docs.rs".to_owned()));
    }
    found.extend(keywords(&package));
    found
}

fn of_workspace(text: &str) -> Vec<(usize, String)> {
    let package = section(text, "workspace.package");
    let mut found: Vec<(usize, String)> = keywords(&package);
    let of = package.iter().find(|(_, line)| key(line) == "version");
    let version = of.and_then(|(_, line)| quoted(line).first().copied()).unwrap_or_default();
    for (line, text) in section(text, "workspace.dependencies") {
        let given = text.split_once("path = ").and_then(|(_, rest)| rest.split_once("version = "));
        if given.is_some_and(|(_, rest)| quoted(rest).first() != Some(&version)) {
            found.push((line, format!("another version than the workspace ({version}): {text}")));
        }
    }
    found
}

fn keywords(package: &[(usize, &str)]) -> Vec<(usize, String)> {
    let of = package.iter().filter(|(_, line)| key(line) == "keywords");
    of.filter_map(|&(line, text)| {
        let words = quoted(text);
        let is_wrong = words.len() > KEYWORDS.0 || words.iter().any(|word| word.len() > KEYWORDS.1);
        is_wrong.then(|| (line, format!("at most 5 keywords of at most 20 letters: {text}")))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = "[package]\nname = \"a\"\ndescription = \"a\"\nversion.workspace = true\n\
        edition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\n\
        repository.workspace = true\nreadme.workspace = true\nkeywords = [\"b\"]\ncategories = [\"c\"]\n\
        [package.metadata.docs.rs]\ntargets = []\n";

    #[test]
    fn a_published_crate_has_every_key() {
        assert_eq!(of_crate(RIGHT), []);
        for line in RIGHT.lines().filter(|line| !line.starts_with('[')) {
            let without: String =
                RIGHT.lines().filter(|other| *other != line).flat_map(|line| [line, "\n"]).collect();
            assert_eq!(of_crate(&without).len(), 1, "without {line}");
            assert_eq!(of_crate(&without.replace("[package]\n", "[package]\npublish = false # test\n")), []);
        }
        let words = RIGHT.replace("[\"b\"]", "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]");
        assert_eq!(of_crate(&words).len(), 1);
    }

    #[test]
    fn crates_of_the_workspace_have_its_version() {
        let text = "[workspace.package]\nversion = \"0.2.0\"\n[workspace.dependencies]\n\
            a = { path = \"crates/a\", version = \"0.2.0\" }\nb = { path = \"crates/b\" }\nc = \"1\"\n";
        assert_eq!(of_workspace(text), []);
        let found =
            of_workspace(&text.replace("crates/a\", version = \"0.2.0\"", "crates/a\", version = \"0.1.0\""));
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [4]);
    }
}
