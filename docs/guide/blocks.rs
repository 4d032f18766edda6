//! The code blocks of the guide, as documentation tests.
//!
//! `cargo test -p azekura-guide` compiles and runs every Rust block. It also compares the lists of errors,
//! settings and metrics with the code.

#[cfg(doctest)]
#[doc = include_str!("src/coming-from/redb.md")]
mod coming_from_redb {}

#[cfg(doctest)]
#[doc = include_str!("src/operations/backup.md")]
mod operations_backup {}

#[cfg(doctest)]
#[doc = include_str!("src/operations/encryption.md")]
mod operations_encryption {}

#[cfg(doctest)]
#[doc = include_str!("src/users/async-commits.md")]
mod users_async_commits {}

#[cfg(doctest)]
#[doc = include_str!("src/users/bulk-load.md")]
mod users_bulk_load {}

#[cfg(doctest)]
#[doc = include_str!("src/users/errors.md")]
mod users_errors {}

#[cfg(doctest)]
#[doc = include_str!("src/users/first-program.md")]
mod users_first_program {}

#[cfg(doctest)]
#[doc = include_str!("src/users/larger-than-memory.md")]
mod users_larger_than_memory {}

#[cfg(doctest)]
#[doc = include_str!("src/users/secondary-indexes.md")]
mod users_secondary_indexes {}

#[cfg(doctest)]
#[doc = include_str!("src/users/service.md")]
mod users_service {}

#[cfg(doctest)]
#[doc = include_str!("src/users/snapshots.md")]
mod users_snapshots {}

#[cfg(doctest)]
#[doc = include_str!("src/users/tables.md")]
mod users_tables {}

#[cfg(doctest)]
#[doc = include_str!("src/users/testing.md")]
mod users_testing {}

#[cfg(doctest)]
#[doc = include_str!("src/users/tokio.md")]
mod users_tokio {}

#[cfg(doctest)]
#[doc = include_str!("src/users/transactions.md")]
mod users_transactions {}

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn guide() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
    }

    fn read(path: impl AsRef<Path>) -> String {
        let path = guide().join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The pages below `src`, relative to it.
    fn pages() -> BTreeSet<String> {
        let source = guide().join("src");
        let (mut found, mut directories) = (BTreeSet::new(), vec![source.clone()]);
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    let page = path.strip_prefix(&source).expect("below src");
                    found.insert(page.to_string_lossy().into_owned());
                }
            }
        }
        found.remove("SUMMARY.md");
        found
    }

    /// The texts between `before` and `after` in `text`.
    fn between<'a>(text: &'a str, before: &'a str, after: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(move |rest| rest.split_once(after)).map(|(found, _)| found)
    }

    /// Each name is in `page` as code.
    fn assert_all_named(names: &[&str], page: &str) {
        let text = read(page);
        let missing: Vec<_> = names.iter().filter(|name| !text.contains(&format!("`{name}"))).collect();
        assert!(missing.is_empty(), "{page} does not mention {missing:?}");
    }

    #[test]
    fn each_page_is_in_the_summary_once() {
        let summary = read("src/SUMMARY.md");
        let linked: Vec<String> = between(&summary, "](", ")").map(str::to_owned).collect();
        assert_eq!(linked.iter().cloned().collect::<BTreeSet<_>>(), pages());
        assert_eq!(linked.len(), pages().len(), "a page is linked twice");
    }

    /// A fence without a language would be compiled as Rust by rustdoc and shown as Rust by mdBook.
    #[test]
    fn each_block_names_its_language_and_rust_blocks_are_tested() {
        let tested = read("blocks.rs");
        for page in pages() {
            let text = read(format!("src/{page}"));
            let fences = text.lines().map(str::trim_start).filter(|line| line.starts_with("```"));
            let opening: Vec<_> = fences.step_by(2).collect();
            assert!(!opening.contains(&"```"), "{page}: a code block without a language");
            let has_rust = opening.iter().any(|fence| fence.starts_with("```rust"));
            let is_tested = tested.contains(&format!("include_str!(\"src/{page}\")"));
            assert_eq!(has_rust, is_tested, "{page}: Rust blocks and its line in blocks.rs");
        }
    }

    #[test]
    fn each_error_is_explained() {
        let source = read("../../crates/azekura/src/error.rs");
        let variants = between(&source, "pub enum Error {", "\n}\n").next().expect("the errors");
        let names: Vec<&str> = variants
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()))
            .filter_map(|line| line.split([' ', '(', ',', '{']).next())
            .collect();
        assert!(names.len() > 20, "{names:?}");
        assert_all_named(&names, "src/users/errors.md");
    }

    #[test]
    fn each_setting_is_explained() {
        let source = read("../../crates/azekura/src/options.rs");
        let names: Vec<&str> = source
            .split("\n\n")
            .filter(|item| !item.contains("#[doc(hidden)]"))
            .filter_map(|item| item.split_once("    pub fn ")?.1.split_once("(mut self,"))
            .map(|(head, _)| head.split(['<', '(']).next().unwrap_or(head))
            .collect();
        assert!(names.len() > 15, "{names:?}");
        assert_all_named(&names, "src/operations/tuning.md");
    }

    #[test]
    fn each_metric_is_explained() {
        let source = read("../../crates/server/src/metrics.rs");
        let flat: String = source.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut names: Vec<&str> = Vec::new();
        for call in ["gauge(out, \"", "gauge( out, \"", "counter(out, \"", "counter( out, \""] {
            names.extend(between(&flat, call, "\""));
        }
        assert!(names.len() > 20, "{names:?}");
        names.extend(["commands", "commands_failed"]);
        assert_all_named(&names, "src/operations/monitoring.md");
    }
}
