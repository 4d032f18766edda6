//! Commands of two words: their subcommands, and the number of arguments of each.

use super::Spec;
use super::arguments::short_text;
use crate::error::CommandError;
use crate::resp::{Reply, Request};

/// A subcommand in lower case, and its number of arguments, including both words; a minimum if negative.
type Subcommand = (&'static str, i16);

/// The subcommands of each command of two words.
#[rustfmt::skip] // a table
const CONTAINERS: &[(&str, &[Subcommand])] = &[
    ("acl", &[("whoami", 2), ("users", 2), ("help", 2)]),
    ("client", &[("id", 2), ("getname", 2), ("setname", 3), ("setinfo", 4), ("info", 2), ("list", -2),
                 ("kill", -3), ("unblock", -3), ("getredir", 2), ("no-evict", 3), ("no-touch", 3),
                 ("reply", 3), ("help", 2)]),
    ("command", &[("count", 2), ("list", -2), ("info", -2), ("docs", -2), ("getkeys", -3), ("help", 2)]),
    ("config", &[("get", -3), ("set", -4), ("rewrite", 2), ("resetstat", 2), ("help", 2)]),
    ("latency", &[("latest", 2), ("history", 3), ("reset", -2), ("doctor", 2), ("graph", 3),
                  ("histogram", -2), ("help", 2)]),
    ("module", &[("list", 2), ("help", 2)]),
    ("memory", &[("usage", -3), ("help", 2)]),
    ("slowlog", &[("get", -2), ("len", 2), ("reset", 2), ("help", 2)]),
    ("object", &[("encoding", 3), ("refcount", 3), ("idletime", 3), ("freq", 3), ("help", 2)]),
];

/// Checks that the subcommand is known and has a valid number of arguments.
pub(crate) fn check(spec: &Spec, request: Request<'_>) -> Result<(), CommandError> {
    let container = CONTAINERS.iter().find(|(name, _)| *name == spec.name);
    let (Some((_, words)), true) = (container, request.len() > 1) else { return Ok(()) };
    let given = request.arg(1);
    let Some((word, arity)) = words.iter().find(|(word, _)| given.eq_ignore_ascii_case(word.as_bytes()))
    else {
        return Err(CommandError::UnknownSubcommand(spec.name, short_text(given)));
    };
    let is_fine = super::fits(*arity, request.len());
    if is_fine { Ok(()) } else { Err(CommandError::Arity(format!("{}|{word}", spec.name))) }
}

/// Returns the reply to `HELP` of a command.
pub(crate) fn help(name: &str) -> Reply {
    let words =
        CONTAINERS.iter().find(|(container, _)| *container == name).map_or(&[][..], |(_, words)| words);
    let name = name.to_ascii_uppercase();
    let head = format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    let lines = words.iter().map(|(word, _)| word.to_ascii_uppercase());
    Reply::Array(std::iter::once(head).chain(lines).map(Reply::text).collect())
}
