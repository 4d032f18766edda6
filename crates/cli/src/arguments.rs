//! The command line.

use std::ffi::OsStr;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use azekura::MAX_TABLE_NAME;
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use crate::command::{
    Archive, Backup, ChangeKey, Check, Cluster, Compact, Completions, Delete, Demo, DemoChild, Dump, Far,
    Get, Load, Man, MemoryServer, Put, Restore, Scan, Serve, Stats, Tables, Trace,
};
use crate::format::escape;
use crate::{UsageError, backup_location};

/// An ordered, transactional, crash-safe key-value store.
#[derive(Debug, Parser)]
#[command(name = "azekura", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 not found, a failed check or an error; 2 wrong usage.
`far` and `trace record` end with the exit code of the program that they run.
Data goes to stdout, errors and progress to stderr.
`azekura COMMAND --help` shows examples.";

/// The settings with which a command opens its store.
#[derive(Clone, Debug)]
pub(crate) struct StoreArguments {
    pub(crate) memory: Option<u64>,
    pub(crate) cache: Option<usize>,
    pub(crate) page_size: Option<usize>,
    pub(crate) direct_pages: bool,
    pub(crate) archive: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
}

// No doc comment: clap would show it as the help of each command.
#[derive(Args, Clone, Debug)]
struct CacheArguments {
    /// Largest memory of the store: page cache, log buffers, row versions and undo entries; at least 24M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Store options")]
    memory: Option<u64>,

    /// Page cache, such as 64M or 2G [default: 3/8 of --memory less 8M; or an eighth of the available
    /// memory, at most 32M except for a server]
    #[arg(long, value_name = "SIZE", value_parser = cache_bytes, help_heading = "Store options")]
    cache: Option<usize>,

    /// Bypass the operating system's page cache (O_DIRECT) for pages of the store
    #[arg(long, help_heading = "Store options")]
    direct_pages: bool,

    /// File with the key of an encrypted store: 32 bytes, or 64 hexadecimal digits. A new store is encrypted
    #[arg(long, value_name = "FILE", value_parser = path(), help_heading = "Store options")]
    key_file: Option<PathBuf>,
}

impl CacheArguments {
    fn store(&self, page_size: Option<usize>) -> StoreArguments {
        let Self { memory, cache, direct_pages, key_file } = self.clone();
        StoreArguments { memory, cache, page_size, direct_pages, archive: None, key_file }
    }
}

// A command that opens an existing store, with the options for opening.
#[derive(Args, Debug)]
pub(crate) struct Opens<C: Args> {
    #[command(flatten)]
    cache: CacheArguments,

    #[command(flatten)]
    pub(crate) command: C,
}

impl<C: Args> Opens<C> {
    pub(crate) fn store(&self) -> StoreArguments {
        self.cache.store(None)
    }
}

impl<C: Args> Opens<Archives<C>> {
    pub(crate) fn archived_store(&self) -> StoreArguments {
        StoreArguments { archive: self.command.archive.clone(), ..self.store() }
    }
}

// A command that opens a store or creates one, with the options for both.
#[derive(Args, Debug)]
pub(crate) struct Creates<C: Args> {
    #[command(flatten)]
    cache: CacheArguments,

    /// Page size of a new store: 4K, 8K, 16K, 32K or 64K [default: 8K; of a copy: that of its source]
    #[arg(long, value_name = "SIZE", value_parser = page_bytes, help_heading = "Store options")]
    page_size: Option<usize>,

    #[command(flatten)]
    pub(crate) command: C,
}

impl<C: Args> Creates<C> {
    pub(crate) fn store(&self) -> StoreArguments {
        self.cache.store(self.page_size)
    }
}

impl<C: Args> Creates<Archives<C>> {
    pub(crate) fn archived_store(&self) -> StoreArguments {
        StoreArguments { archive: self.command.archive.clone(), ..self.store() }
    }
}

// A command that writes to a store with a log archive, or reads the archive.
#[derive(Args, Debug)]
pub(crate) struct Archives<C: Args> {
    /// Log archive of the store, for restores to a point in time; a new directory begins a new archive
    #[arg(
        long,
        value_name = "DIR",
        value_parser = backup_location::archive_parser(),
        help_heading = "Store options"
    )]
    archive: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) command: C,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(Creates<Demo>),
    Load(Creates<Archives<Load>>),
    Get(Opens<Get>),
    Put(Creates<Archives<Put>>),
    Delete(Opens<Archives<Delete>>),
    Scan(Opens<Scan>),
    Dump(Opens<Dump>),
    Tables(Opens<Tables>),
    Stats(Opens<Stats>),
    Check(Opens<Archives<Check>>),
    Backup(Opens<Archives<Backup>>),
    Restore(Creates<Archives<Restore>>),
    Archive(Archive),
    Compact(Creates<Compact>),
    ChangeKey(Opens<Archives<ChangeKey>>),
    Serve(Creates<Archives<Serve>>),
    Cluster(Cluster),
    Trace(Trace),
    MemoryServer(MemoryServer),
    Far(Far),
    Completions(Completions),
    Man(Man),
    #[command(hide = true)]
    DemoChild(Creates<DemoChild>),
}

/// A table of a store.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TableArguments {
    /// Directory of the store
    #[arg(value_name = "DB")]
    pub(crate) path: PathBuf,

    /// Name of the table
    #[arg(value_parser = table_name)]
    pub(crate) table: String,
}

/// Parses the name of a table.
fn table_name(text: &str) -> Result<String, String> {
    match text.len() {
        1..=MAX_TABLE_NAME => Ok(text.into()),
        len => Err(format!("the name of a table has 1 to {MAX_TABLE_NAME} bytes, not {len}")),
    }
}

/// Returns a parser of a path that the command passes to other processes or prints in commands. A path that
/// could pass for an option there, such as `-x`, becomes `./-x`.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| {
        let is_like_option = path.as_os_str().as_encoded_bytes().starts_with(b"-");
        if is_like_option { Path::new(".").join(path) } else { path }
    })
}

/// Parses a number of bytes: digits, optionally K, M, G or T (powers of 1024), optionally followed by `B` or
/// `iB`.
///
/// # Errors
///
/// An invalid form, or a number beyond 64 bits: the text lists valid forms.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write for example 4096, 64K, 256M or 2G");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Parses a number of bytes that this machine can address.
///
/// # Errors
///
/// As [`size`], and a size beyond the address space.
pub fn cache_bytes(text: &str) -> Result<usize, String> {
    usize::try_from(size(text)?).map_err(|_| format!("{text} is more than this machine can address"))
}

/// Parses a limit of the server: at least 1K, because small requests and errors have to fit.
///
/// # Errors
///
/// As [`cache_bytes`], and a smaller size.
pub(crate) fn limit_bytes(text: &str) -> Result<usize, String> {
    let bytes = cache_bytes(text)?;
    if bytes >= 1 << 10 { Ok(bytes) } else { Err("the limit must be at least 1K".into()) }
}

/// Parses a page size: a power of two from 4K to 64K.
///
/// # Errors
///
/// As [`size`], and a size that no page can have.
pub fn page_bytes(text: &str) -> Result<usize, String> {
    let bytes = cache_bytes(text)?;
    if bytes.is_power_of_two() && (4096..=65536).contains(&bytes) {
        return Ok(bytes);
    }
    Err("the page size must be 4K, 8K, 16K, 32K or 64K".into())
}

/// Parses `HOST:PORT`; prefers an IPv4 address of a host with several addresses.
pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let cannot =
        |why: &dyn std::fmt::Display| format!("cannot resolve the address {text:?}: {why}; write HOST:PORT");
    let mut found: Vec<SocketAddr> = text.to_socket_addrs().map_err(|error| cannot(&error))?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(|| cannot(&"the host has none"))
}

/// Parses a number of seconds, such as `0.5`.
///
/// # Errors
///
/// A text that is not a number, or a number outside 0 to 86400.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("the number of seconds must be between 0 and 86400".into())
    }
}

/// Returns the bytes of a key or value given on the command line; with `escaped`, decodes the escapes of
/// `dump`.
pub(crate) fn argument_bytes(argument: &OsStr, escaped: bool) -> Result<Vec<u8>> {
    let bytes = argument.as_encoded_bytes();
    if !escaped {
        return Ok(bytes.to_vec());
    }
    let mut out = Vec::with_capacity(bytes.len());
    escape::unescape(bytes, &mut out).map_err(|error| {
        UsageError(format!(
            "{:?}, column {}: {} is not an escape; write \\t, \\n, \\r, \\\\ or \\xHH",
            argument, error.column, error.escape
        ))
    })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use proptest::prelude::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    /// Width to which clap wraps help that is not printed to a terminal.
    const WIDTH: usize = 100;

    /// Checks the help of a command and of its subcommands; returns the number of commands.
    fn check_help(command: &clap::Command, name: &str) -> usize {
        let text =
            |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string).unwrap_or_default();
        let after = text(command.get_after_help());
        let about = text(command.get_long_about().or(command.get_about()));
        let mut sentences = vec![(name.to_owned(), after.clone()), (name.to_owned(), about)];
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let help = text(argument.get_long_help().or(argument.get_help()));
            sentences.push((format!("{name} {}", argument.get_id()), help));
        }
        for (place, sentence) in &sentences {
            assert!(!sentence.is_empty() || *sentence == after, "{place} has no help");
            let lower = sentence.to_lowercase();
            // Vague measures, headless subjects, and defaults in another form than clap's.
            for part in ["so long", "so much", "so many", "so often", "who ", "whose ", "unless given"] {
                assert!(!lower.contains(part), "{place}: {part:?} in {sentence:?}");
            }
            for opening in ["what ", "where ", "when ", "how ", "whether ", "who ", "it "] {
                assert!(!lower.starts_with(opening), "{place}: {sentence:?}");
            }
        }
        // A longer line would be wrapped, which leaves a few words alone on the next line.
        for line in after.lines() {
            assert!(line.chars().count() <= WIDTH, "azekura {name} --help: {line}");
        }
        let inner = |inner: &clap::Command| check_help(inner, &format!("{name} {}", inner.get_name()));
        1 + command.get_subcommands().filter(|command| !command.is_hide_set()).map(inner).sum::<usize>()
    }

    #[test]
    fn store_options_exist_only_where_they_have_an_effect() {
        let long = |command: &clap::Command, name: &str| {
            let command = command.find_subcommand(name).expect("a command").clone();
            ["memory", "cache", "direct-pages", "key-file", "page-size", "archive"]
                .map(|option| command.get_arguments().any(|argument| argument.get_long() == Some(option)))
        };
        let mut all = Arguments::command();
        all.build();
        for (names, options) in [
            (&["memory-server", "far", "trace", "cluster", "completions", "man"][..], [false; 6]),
            (&["get", "scan", "dump", "tables", "stats"], [true, true, true, true, false, false]),
            (&["delete", "backup", "check", "change-key"], [true, true, true, true, false, true]),
            (&["demo", "compact"], [true, true, true, true, true, false]),
            (&["load", "put", "restore", "serve"], [true; 6]),
        ] {
            for name in names {
                assert_eq!(long(&all, name), options, "{name}");
            }
        }
        assert!(Arguments::try_parse_from(["azekura", "memory-server", "--cache", "8M"]).is_err());
    }

    #[test]
    fn every_help_line_is_plain_and_fits() {
        let commands = check_help(&Arguments::command(), "azekura");
        assert!(commands > 25, "{commands} commands were checked");
    }

    /// Splits a line of a shell into words, up to a comment, a pipe, a redirection or `&`.
    fn words(line: &str) -> Vec<&str> {
        let is_end = |word: &&str| matches!(*word, "|" | "&" | ">" | "<") || word.starts_with('#');
        let words = line.split_whitespace().take_while(|word| !is_end(word));
        words.map(|word| word.trim_matches('\'')).collect()
    }

    /// Parses the commands in the shell blocks of a document; returns their number.
    fn parse_commands(path: &std::path::Path) -> usize {
        let text = std::fs::read_to_string(path).expect("a document");
        let (mut is_shell, mut parsed) = (false, 0);
        for line in text.lines().map(str::trim) {
            if line.starts_with("```") {
                is_shell = line == "```sh";
            } else if is_shell && line.starts_with("azekura ") {
                if let Err(error) = Arguments::try_parse_from(words(line)) {
                    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
                    let is_shown = matches!(error.kind(), DisplayHelp | DisplayVersion);
                    assert!(is_shown, "{}: {line}\n{error}", path.display());
                }
                parsed += 1;
            }
        }
        parsed
    }

    #[test]
    fn the_commands_in_the_documents_parse() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut parsed = parse_commands(&root.join("README.md"));
        let mut directories = vec![root.join("docs")];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    parsed += parse_commands(&path);
                }
            }
        }
        assert!(parsed > 40, "{parsed}");
    }

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("1tb"), Ok(1 << 40));
        assert_eq!(size("17B"), Ok(17));
        for wrong in ["", "M", "12X", "1.5G", "-1", "1 G", "99999999999999T", "ib", "é"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_like_an_option_is_another_name_of_the_same_file() {
        let parsed = |words: &[&str]| format!("{:?}", Arguments::try_parse_from(words).unwrap());
        for (option, shown) in [("--dir=-x", "./-x"), ("--dir=--y/z", "./--y/z"), ("--dir=./x", "./x")] {
            for words in [&["azekura", "cluster", "start", option][..], &["azekura", "demo", option]] {
                let parsed = parsed(words);
                assert!(parsed.contains(&format!("{shown:?}")), "{parsed}");
            }
        }
        assert!(parsed(&["azekura", "tables", "db", "--key-file=-k"]).contains("\"./-k\""));
    }

    #[test]
    fn an_address_may_name_its_host() {
        assert_eq!(socket_address("127.0.0.1:80"), Ok(SocketAddr::from(([127, 0, 0, 1], 80))));
        assert_eq!(socket_address("[::1]:80").map(|found| found.is_ipv6()), Ok(true));
        let local = socket_address("localhost:6379").unwrap();
        assert!(local.ip().is_loopback() && local.port() == 6379);
        for wrong in ["localhost", ":80", "127.0.0.1", "127.0.0.1:70000", ""] {
            assert!(socket_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_taken_in_bounds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "x", "-1", "NaN", "inf", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pages_are_powers_of_two_in_bounds() {
        assert_eq!(page_bytes("64K"), Ok(65536));
        assert!(page_bytes("5000").is_err());
        assert!(page_bytes("2K").is_err());
        assert!(page_bytes("128K").is_err());
    }

    proptest! {
        #[test]
        fn reading_any_size_never_panics(text: String) {
            let _ = size(&text);
        }
    }
}
