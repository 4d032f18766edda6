//! Sizes of the repository: lines of product, evaluation and tests; numbers of packages, public items, and
//! constants of self-tuning code.
//!
//! | a line of Rust counts as | if |
//! |---|---|
//! | evaluation | it is in `eval/`, or in a module of a crate behind a feature `baseline-*` |
//! | test | it is in `tests/`, `benches/`, `examples/`, `fuzz/` or `crates/history`, or behind `cfg(test)` |
//! | test | it is in a module of a crate behind a feature `sim` or `test-*`, such as a disk that fails |
//! | tool | it is in `tools/` |
//! | product | otherwise |
//!
//! Tests of the evaluation count as tests. Blank lines and comments count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::files::{File, Kind};

/// Files that adapt to measurements at run time.
const SELF_TUNING: [&str; 15] = [
    "crates/azekura/src/checkpoint/undo_pace.rs",
    "crates/btree/src/contention.rs",
    "crates/buffer/src/policy/phase_change.rs",
    "crates/buffer/src/policy/two_rings.rs",
    "crates/far/src/pager/core/meter.rs",
    "crates/far/src/pager/prefetch.rs",
    "crates/far/src/replace/adaptive/confidence.rs",
    "crates/far/src/replace/adaptive/cost_control.rs",
    "crates/far/src/replace/adaptive/mod.rs",
    "crates/far/src/replace/adaptive/reuse_history.rs",
    "crates/server/src/reactor/commit_time.rs",
    "crates/server/src/reactor/known_rate.rs",
    "crates/server/src/reactor/scaling.rs",
    "crates/wal/src/commit_delay.rs",
    "crates/wal/src/committer_count.rs",
];

/// The use of a line of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Product,
    Evaluation,
    Test,
    Tool,
}

/// Returns the tables of sizes.
pub(crate) fn table(root: &Path, tree: &[File]) -> Result<String, String> {
    let rust: Vec<&File> = tree.iter().filter(|file| file.kind == Kind::Rust).collect();
    let lines = lines(&rust);
    let of = |kind: Use| lines.values().map(|counts| counts.get(&kind).copied().unwrap_or(0)).sum::<usize>();
    let mut out = String::from("| size | value |\n|---|---|\n");
    let mut row = |name: &str, value: usize| {
        let _ = writeln!(out, "| {name} | {} |", grouped(value)); // writing to a String cannot fail
    };
    row("lines of Rust", [Use::Product, Use::Evaluation, Use::Test, Use::Tool].map(of).iter().sum());
    row("… product", of(Use::Product));
    row("… evaluation", of(Use::Evaluation));
    row("… tests", of(Use::Test));
    row("… tools", of(Use::Tool));
    for package in ["azekura", "azekura-cli"] {
        row(&format!("packages of `{package}`"), packages(root, package)?);
    }
    row("public items of `azekura-wal`", public_items(&rust, "crates/wal/src/"));
    row("constants of self-tuning code", self_tuning_constants(&rust)?);
    out.push_str("\n| room | product | evaluation | tests |\n|---|---|---|---|\n");
    for (room, counts) in &lines {
        let value = |kind| grouped(counts.get(&kind).copied().unwrap_or(0));
        let product = counts.get(&Use::Product).or(counts.get(&Use::Tool)).copied().unwrap_or(0);
        let (evaluation, tests) = (value(Use::Evaluation), value(Use::Test));
        let _ = writeln!(out, "| `{room}` | {} | {evaluation} | {tests} |", grouped(product)); // cannot fail
    }
    Ok(out)
}

/// Returns a number with its digits in groups of three.
fn grouped(value: usize) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns the number of lines by crate or folder, and by use.
fn lines(rust: &[&File]) -> BTreeMap<String, BTreeMap<Use, usize>> {
    let gated: Vec<(String, Use)> = rust.iter().flat_map(|file| gated_modules(file)).collect();
    let mut rooms: BTreeMap<String, BTreeMap<Use, usize>> = BTreeMap::new();
    for file in rust {
        let all = file.text.lines().count();
        let kind = use_of(&file.path, &gated);
        let tests = if kind == Use::Test { 0 } else { inline_tests(&file.text) };
        let room = rooms.entry(room(&file.path)).or_default();
        *room.entry(kind).or_default() += all - tests;
        *room.entry(Use::Test).or_default() += tests;
    }
    rooms
}

/// Returns the folder by which lines are counted: the first two parts of a path, such as `crates/wal`.
fn room(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    parts[..parts.len().saturating_sub(1).min(2)].join("/")
}

/// Returns the use of a file, apart from the tests inside it.
fn use_of(path: &str, gated: &[(String, Use)]) -> Use {
    let is_test_folder = |part| matches!(part, "tests" | "benches" | "examples" | "fuzz" | "fuzz_targets");
    if path.split('/').rev().skip(1).any(is_test_folder) || path.starts_with("crates/history/") {
        return Use::Test;
    }
    let gate = gated.iter().find(|(module, _)| {
        path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    });
    match gate {
        Some((_, kind)) => *kind,
        None if path.starts_with("eval/") => Use::Evaluation,
        None if path.starts_with("tools/") => Use::Tool,
        None => Use::Product,
    }
}

/// Returns the modules that a file declares behind a `cfg` of tests or of the evaluation, as paths without
/// `.rs`.
fn gated_modules(file: &File) -> Vec<(String, Use)> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    let (mut found, mut gate) = (Vec::new(), None);
    for line in file.text.lines() {
        if line.starts_with("#[cfg(") {
            gate = gate.or_else(|| gate_of(line));
        } else if let Some(module) = declared_module(line) {
            found.extend(gate.take().map(|kind| (format!("{folder}/{module}"), kind)));
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            gate = None;
        }
    }
    found
}

/// Returns the name in `mod name;`, public or not.
fn declared_module(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
    rest.strip_prefix("mod ")?.strip_suffix(';')
}

/// Returns the use of the code behind a `cfg` attribute.
fn gate_of(line: &str) -> Option<Use> {
    let line = &without_negations(line);
    let is_test = ["(test", " test", "feature = \"sim\"", "feature = \"test-", "(loom"];
    if is_test.iter().any(|test| line.contains(test)) {
        return Some(Use::Test);
    }
    line.contains("feature = \"baseline-").then_some(Use::Evaluation)
}

/// Returns a `cfg` attribute without its `not(…)`.
fn without_negations(line: &str) -> String {
    let mut out = line.to_owned();
    while let Some(start) = out.find("not(") {
        let mut depth = 0;
        let end = out[start..].find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ')' && depth == 0
        });
        out.replace_range(start..end.map_or(out.len(), |end| start + end + 1), "");
    }
    out
}

/// Returns the number of lines of test modules inside a file, from the attribute to the closing brace.
fn inline_tests(text: &str) -> usize {
    let (mut tests, mut since, mut attribute) = (0, None, None);
    for (i, line) in text.lines().enumerate() {
        match since {
            Some(first) if line == "}" => {
                tests += i + 1 - first;
                since = None;
            }
            Some(_) => {}
            None if line.starts_with("#[cfg(") && gate_of(line) == Some(Use::Test) => attribute = Some(i),
            None if line.starts_with("#[") => {}
            None => {
                let is_module = line.starts_with("mod ") || line.starts_with("pub mod ");
                since = attribute.take().filter(|_| is_module && line.ends_with('{'));
            }
        }
    }
    tests
}

/// Returns the number of packages that a build of `package` with default features needs, including itself.
fn packages(root: &Path, package: &str) -> Result<usize, String> {
    let listed = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package", package])
        .output()
        .map_err(|error| format!("cannot run cargo tree: {error}"))?;
    if !listed.status.success() {
        return Err(format!("cargo tree failed: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    let names = text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>());
    Ok(names.collect::<BTreeSet<_>>().len())
}

/// Counts the declarations of public items below `folder`, outside tests. The lint `unreachable_pub` rejects
/// public items that no other crate can name.
fn public_items(rust: &[&File], folder: &str) -> usize {
    let is_item = |line: &&str| {
        let Some(rest) = line.trim_start().strip_prefix("pub ") else { return false };
        let mut words = rest.split(' ').skip_while(|word| matches!(*word, "unsafe" | "async" | "extern"));
        let kinds = ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union"];
        words.next().is_some_and(|word| kinds.contains(&word))
    };
    let gated: Vec<(String, Use)> = rust.iter().flat_map(|file| gated_modules(file)).collect();
    let of_product =
        |file: &&&File| file.path.starts_with(folder) && use_of(&file.path, &gated) == Use::Product;
    rust.iter().filter(of_product).map(|file| file.text.lines().filter(is_item).count()).sum()
}

/// Counts the constants in the files of [`SELF_TUNING`], outside tests. A constant with two values counts
/// twice.
fn self_tuning_constants(rust: &[&File]) -> Result<usize, String> {
    let mut constants = 0;
    for path in SELF_TUNING {
        let file = rust.iter().find(|file| file.path == path);
        let file = file.ok_or_else(|| format!("{path} is gone: take it out of SELF_TUNING"))?;
        for line in file.text.lines() {
            let declared = line.strip_prefix("pub ").or(line.strip_prefix("pub(crate) ")).unwrap_or(line);
            if declared.starts_with("const ") && declared.contains(": ") {
                constants += if declared.contains(": (") { 2 } else { 1 };
            }
        }
    }
    Ok(constants)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), kind: Kind::Rust, text: text.to_owned() }
    }

    #[test]
    fn lines_count_by_folder_and_by_the_cfg_of_their_module() {
        let lib = [
            "#[cfg(feature = \"baseline-x\")]\nmod old;\n",
            "#[cfg(all(test, not(loom)))]\nmod stall_tests;\n#[cfg(not(any(test, loom)))]\nmod new;\n",
        ];
        let tree = [
            file("crates/a/src/lib.rs", &lib.concat()),
            file("crates/a/src/old.rs", "1\n2\n"),
            file("crates/a/src/old/deep.rs", "3\n"),
            file("crates/a/src/stall_tests.rs", "1\n"),
            file("crates/a/src/new.rs", "1\n#[cfg(test)]\nmod tests {\n    2\n}\n6\n"),
            file("crates/a/tests/fuzz/b.rs", "1\n2\n"),
            file("eval/lab/src/main.rs", "1\n"),
            file("eval/lab/tests/x.rs", "1\n"),
            file("tools/tidy/src/main.rs", "1\n"),
        ];
        let lines = lines(&tree.iter().collect::<Vec<_>>());
        let a = &lines["crates/a"];
        assert_eq!((a[&Use::Product], a[&Use::Evaluation], a[&Use::Test]), (6 + 2, 3, 1 + 4 + 2));
        assert_eq!((lines["eval/lab"][&Use::Evaluation], lines["eval/lab"][&Use::Test]), (1, 1));
        assert_eq!(lines["tools/tidy"][&Use::Tool], 1);
    }

    #[test]
    fn public_items_are_counted_outside_tests_and_the_evaluation() {
        let public = "pub mod x;\npub const fn f() {}\n    pub unsafe fn g() {}\n";
        let other = "pub(crate) fn h() {}\n    pub field: u8,\npub use x::Y;\n";
        let text = &[public, other].concat();
        let tree = [file("crates/wal/src/lib.rs", text), file("crates/io/src/lib.rs", text)];
        assert_eq!(public_items(&tree.iter().collect::<Vec<_>>(), "crates/wal/src/"), 3);
    }

    #[test]
    fn numbers_have_groups_of_three_digits() {
        assert_eq!(
            ["7", "999", "1,000", "1,234,567"],
            [7, 999, 1_000, 1_234_567].map(grouped).each_ref().map(|s| &**s)
        );
    }
}
