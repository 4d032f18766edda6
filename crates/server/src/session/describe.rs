//! `COMMAND`: the list of commands.

use crate::command::{self, KeyPositions, Run, Spec, TABLE, is_word};
use crate::error::CommandError;
use crate::glob;
use crate::resp::{Reply, Request};

/// Runs `COMMAND [COUNT | LIST | INFO name… | DOCS name… | GETKEYS command…]`; `most` bounds the memory of a
/// reply for many names, which is a hundred times as large as the request.
pub(super) fn command(request: Request<'_>, most: usize) -> Result<Reply, CommandError> {
    let mut left = most;
    let mut charge = |bytes: usize| -> Result<(), CommandError> {
        left = left.checked_sub(bytes).ok_or(CommandError::ReplyTooLong(most))?;
        Ok(())
    };
    let word = request.arg(1).to_ascii_uppercase();
    match word.as_slice() {
        b"" => Ok(Reply::Array(TABLE.iter().map(entry).collect())),
        b"COUNT" => Ok(Reply::count(TABLE.len())),
        b"LIST" => list(request),
        b"INFO" if request.len() == 2 => Ok(Reply::Array(TABLE.iter().map(entry).collect())),
        b"INFO" => {
            let found = request.from(2).map(|name| {
                let entry = command::find(name).map_or(Reply::Null, |(_, spec)| entry(spec));
                charge(entry.held_bytes()).map(|()| entry)
            });
            found.collect::<Result<_, _>>().map(Reply::Array)
        }
        b"DOCS" if request.len() == 2 => Ok(Reply::Map(TABLE.iter().map(docs).collect())),
        b"DOCS" => {
            let found = request.from(2).filter_map(command::find).map(|(_, spec)| {
                let (name, about) = docs(spec);
                charge(name.held_bytes() + about.held_bytes()).map(|()| (name, about))
            });
            found.collect::<Result<_, _>>().map(Reply::Map)
        }
        _ => keys_of(request),
    }
}

/// Runs `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`.
fn list(request: Request<'_>) -> Result<Reply, CommandError> {
    let names = |is_wanted: &dyn Fn(&Spec) -> bool| {
        let wanted = TABLE.iter().filter(|spec| is_wanted(spec));
        Ok(Reply::Array(wanted.map(|spec| Reply::text(spec.name)).collect()))
    };
    if request.len() == 2 {
        return names(&|_| true);
    }
    if request.len() != 5 || !is_word(request.arg(2), "FILTERBY") {
        return Err(CommandError::Syntax);
    }
    let (kind, value) = (request.arg(3), request.arg(4).to_ascii_lowercase());
    match kind.to_ascii_uppercase().as_slice() {
        b"MODULE" => names(&|_| false),
        b"ACLCAT" => names(&|spec| categories(spec).iter().any(|name| name.as_bytes()[1..] == value)),
        b"PATTERN" => names(&|spec| glob::matches(&value, spec.name.as_bytes())),
        _ => Err(CommandError::Syntax),
    }
}

/// Returns the ACL categories of Redis for a command, as far as they follow from the table.
fn categories(spec: &Spec) -> Vec<&'static str> {
    let group = match spec.group {
        "generic" => Some("@keyspace"),
        "transactions" => Some("@transaction"),
        "string" => Some("@string"),
        "bitmap" => Some("@bitmap"),
        "connection" => Some("@connection"),
        _ => None,
    };
    let is_data = !matches!(spec.run, Run::Session(_));
    let access = if spec.is_write { "@write" } else { "@read" };
    group.into_iter().chain(is_data.then_some(access)).collect()
}

/// Returns the entry of a command: name, arity, flags, key positions and categories. Redis 7's tips, key
/// specifications and subcommands are empty.
fn entry(spec: &Spec) -> Reply {
    // Clients of clusters send commands with the flag `readonly` to replicas.
    let flags = match spec.run {
        Run::Session(command) if command.is_plain() => Vec::new(),
        Run::Session(_) => vec![Reply::Simple("no_multi")],
        _ => vec![Reply::Simple(if spec.is_write { "write" } else { "readonly" })],
    };
    let KeyPositions(first, last, step) = spec.keys;
    Reply::Array(vec![
        Reply::text(spec.name),
        Reply::Integer(spec.arity.into()),
        Reply::Set(flags),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        Reply::Set(categories(spec).into_iter().map(Reply::Simple).collect()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
        Reply::Set(Vec::new()),
    ])
}

fn docs(spec: &Spec) -> (Reply, Reply) {
    let about = vec![
        (Reply::text("summary"), Reply::text(spec.summary)),
        (Reply::text("since"), Reply::text("0.1.0")),
        (Reply::text("group"), Reply::text(spec.group)),
    ];
    (Reply::text(spec.name), Reply::Map(about))
}

fn keys_of(request: Request<'_>) -> Result<Reply, CommandError> {
    let (_, spec) = command::find(request.arg(2))
        .ok_or_else(|| CommandError::Protocol("Invalid command specified".into()))?;
    let arguments = request.len() - 2;
    if !spec.takes(arguments) {
        return Err(CommandError::Protocol("Invalid number of arguments specified for command".into()));
    }
    let keys: Vec<_> =
        command::key_places(spec, arguments).map(|at| Reply::Bulk(request.arg(2 + at).to_vec())).collect();
    if keys.is_empty() {
        return Err(CommandError::Protocol("The command has no key arguments".into()));
    }
    Ok(Reply::Array(keys))
}
