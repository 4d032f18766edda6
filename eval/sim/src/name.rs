//! Finds the name of an accessed object by the place of the access in the source: a field of a module.
//!
//! The compiler stores file, line and column of each access. The column is that of the method's name, so the
//! text before it is the accessed object: `self.marks[log_buffer].load(…)` in `crates/wal/src/durable_lsn.rs`
//! is `marks[log_buffer]` of `wal::durable_lsn`. The source must be at the path of the build. Otherwise, a
//! place has only its file and line.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::path::Path;
use std::rc::Rc;

/// The name of the object that is accessed at a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The module, such as `wal::durable_lsn`.
    pub module: String,
    /// The accessed expression, such as `marks[worker]`; empty if the source is not found.
    pub field: String,
    /// The file, such as `crates/wal/src/durable_lsn.rs`.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { module, field, file, line } = self;
        if field.is_empty() {
            write!(f, "{file}:{line}")
        } else {
            write!(f, "{field} of {module} ({file}:{line})")
        }
    }
}

impl Name {
    /// Returns the name for a place in this workspace.
    #[must_use]
    pub fn of(place: &Location<'_>) -> Self {
        let file = in_repository(place.file());
        let text = source(&file);
        let field = text.and_then(|text| {
            let at = offset(&text, place.line() as usize, place.column() as usize)?;
            Some(accessed(&text, at).to_owned())
        });
        Self {
            module: module(&file),
            field: field.map(|field| short(&field)).unwrap_or_default(),
            file,
            line: place.line(),
        }
    }
}

thread_local! {
    static SOURCES: RefCell<HashMap<String, Option<Rc<str>>>> = RefCell::default();
}

/// Returns the root of the repository. This crate is `eval/sim`.
fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// Returns the path of a source file from the root of the repository. The compiler stores relative paths for
/// files of the workspace in `eval`, and absolute paths for those of the product.
pub(crate) fn in_repository(file: &str) -> String {
    let path = Path::new(file);
    let inside = path.strip_prefix(repository()).unwrap_or(path);
    let inside = if path.is_relative() { Path::new("eval").join(inside) } else { inside.to_owned() };
    inside.to_string_lossy().into_owned()
}

pub(crate) fn source(file: &str) -> Option<Rc<str>> {
    SOURCES.with_borrow_mut(|sources| {
        let read = || std::fs::read_to_string(repository().join(file)).ok().map(Rc::from);
        sources.entry(file.to_owned()).or_insert_with(read).clone()
    })
}

/// Returns the module of a file: `wal::stream` for `crates/wal/src/stream/mod.rs`.
fn module(file: &str) -> String {
    let inside = file.strip_prefix("crates/").or_else(|| file.strip_prefix("eval/")).unwrap_or(file);
    let inside = inside.trim_end_matches(".rs");
    let parts = inside.split(['/', '\\']).filter(|part| !matches!(*part, "src" | "mod" | "lib"));
    parts.collect::<Vec<_>>().join("::")
}

fn offset(text: &str, line: usize, column: usize) -> Option<usize> {
    let begin = text.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
    let of_line = text.get(begin..)?.lines().next()?;
    let within = of_line.char_indices().nth(column - 1).map_or(of_line.len(), |(at, _)| at);
    Some(begin + within)
}

/// Returns the receiver of the method at `at`; for a function at `at`, its argument.
fn accessed(text: &str, at: usize) -> &str {
    let before = text[..at].trim_end();
    if let Some(receiver) = before.strip_suffix('.') {
        let receiver = receiver.trim_end();
        return &receiver[begin_of_expression(receiver)..];
    }
    let call = &text[at..];
    let Some(open) = call.find('(') else { return "" };
    let given = &call[open + 1..];
    &given[..end_of_argument(given)]
}

/// Returns the offset of the chain of names, calls and indices at the end of `text`.
fn begin_of_expression(text: &str) -> usize {
    let (mut begin, mut depth) = (text.len(), 0_u32);
    for (at, c) in text.char_indices().rev() {
        match c {
            ')' | ']' => depth += 1,
            '(' | '[' if depth == 0 => break,
            '(' | '[' => depth -= 1,
            _ if depth > 0 => {}
            // A line break before a `.` of the chain.
            c if c.is_whitespace() && text[begin..].starts_with('.') => continue,
            '.' => {}
            c if c.is_alphanumeric() || matches!(c, '_' | ':' | '?') => {}
            _ => break,
        }
        begin = at;
    }
    begin
}

fn end_of_argument(text: &str) -> usize {
    let mut depth = 0_u32;
    let end = text.char_indices().find(|&(_, c)| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ',' if depth == 0 => return true,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        false
    });
    end.map_or(text.len(), |(at, _)| at)
}

/// Removes blanks inside a chain, and a leading `&`, `mut` and `self.`.
fn short(field: &str) -> String {
    let words: Vec<&str> = field.split_whitespace().collect();
    let text = words.join(" ").replace(" .", ".");
    text.trim_start_matches('&').trim_start_matches("mut ").trim_start_matches("self.").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Word(u8);

    impl Word {
        #[track_caller]
        fn load(&self) -> Name {
            let _ = self.0;
            Name::of(Location::caller())
        }
    }

    #[track_caller]
    fn reads(_what: &[Word]) -> Name {
        Name::of(Location::caller())
    }

    struct Holder {
        words: [Word; 2],
    }

    impl Holder {
        fn names(&self, which: usize) -> [Name; 3] {
            let first_of_those_that_there_are = self.words.first().filter(|_| !self.words.is_empty());
            let long = first_of_those_that_there_are
                .or_else(|| self.words.get(which + usize::from(self.words.is_empty())))
                .expect("one of two")
                .load();
            [self.words[which].load(), long, reads(&self.words[..1])]
        }
    }

    #[test]
    fn an_access_is_named_after_what_it_is_to() {
        let [one, long, given] = Holder { words: [Word(0), Word(1)] }.names(1);
        assert_eq!((one.module.as_str(), one.field.as_str()), ("sim::name", "words[which]"));
        assert!(long.field.starts_with("first_of_those_that_there_are.or_else(|| self"), "{long}");
        assert_eq!(given.field, "words[..1]");
        assert_eq!(one.to_string(), format!("words[which] of sim::name (eval/sim/src/name.rs:{})", one.line));
    }

    #[test]
    fn modules_are_named_after_their_files() {
        assert_eq!(module("crates/wal/src/stream/mod.rs"), "wal::stream");
        assert_eq!(module("crates/lock/src/lib.rs"), "lock");
    }

    #[test]
    fn without_its_source_a_place_is_its_file_and_line() {
        let name = Name { module: "a".into(), field: String::new(), file: "a.rs".into(), line: 7 };
        assert_eq!(name.to_string(), "a.rs:7");
    }
}
