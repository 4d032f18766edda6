//! Commands of two words: their subcommands, and the number of arguments of each.

use super::arguments::short_text;
use super::{KeyPositions, Run, SessionCommand, Spec};
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

/// `HELP` of any command of two words. It has no key, so it runs at any node.
static HELP: Spec = Spec {
    name: "help",
    arity: 2,
    keys: KeyPositions(0, 0, 0),
    is_write: false,
    joins: None,
    group: "server",
    summary: "Returns the subcommands of a command.",
    run: Run::Session(SessionCommand::Help),
};

/// Returns the command to run: `spec`, or [`HELP`] if that is the subcommand. Checks that the subcommand is
/// known and has a valid number of arguments.
pub(crate) fn resolve(spec: &'static Spec, request: Request<'_>) -> Result<&'static Spec, CommandError> {
    let container = CONTAINERS.iter().find(|(name, _)| *name == spec.name);
    let (Some((_, words)), true) = (container, request.len() > 1) else { return Ok(spec) };
    let given = request.arg(1);
    let Some((word, arity)) = words.iter().find(|(word, _)| given.eq_ignore_ascii_case(word.as_bytes()))
    else {
        return Err(CommandError::UnknownSubcommand(spec.name, short_text(given)));
    };
    if !super::fits(*arity, request.len()) {
        return Err(CommandError::Arity(format!("{}|{word}", spec.name)));
    }
    Ok(if *word == "help" { &HELP } else { spec })
}

/// Runs `HELP` of a command of two words.
pub(crate) fn help(request: Request<'_>) -> Reply {
    let name = short_text(request.arg(0)).to_ascii_uppercase();
    let container = CONTAINERS.iter().find(|(container, _)| name.eq_ignore_ascii_case(container));
    let words = container.map_or(&[][..], |(_, words)| words);
    let head = format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    let lines = words.iter().map(|(word, _)| word.to_ascii_uppercase());
    Reply::Array(std::iter::once(head).chain(lines).map(Reply::text).collect())
}
