//! `COMMAND`: what commands there are.

use crate::command::{self, KeyPositions, Run, Spec, TABLE};
use crate::error::CommandError;
use crate::resp::{Reply, Request};

/// `COMMAND [COUNT | LIST | INFO name… | DOCS name… | GETKEYS command…]`
pub(super) fn command(request: Request<'_>) -> Result<Reply, CommandError> {
    let word = request.arg(1).to_ascii_uppercase();
    match word.as_slice() {
        b"" => Ok(Reply::Array(TABLE.iter().map(entry).collect())),
        b"COUNT" => Ok(Reply::count(TABLE.len())),
        b"LIST" => Ok(Reply::Array(TABLE.iter().map(|spec| Reply::text(spec.name)).collect())),
        b"INFO" if request.len() == 2 => Ok(Reply::Array(TABLE.iter().map(entry).collect())),
        b"INFO" => {
            let found =
                request.from(2).map(|name| command::find(name).map_or(Reply::NullArray, |(_, s)| entry(s)));
            Ok(Reply::Array(found.collect()))
        }
        b"DOCS" if request.len() == 2 => Ok(Reply::Map(TABLE.iter().map(docs).collect())),
        b"DOCS" => {
            Ok(Reply::Map(request.from(2).filter_map(command::find).map(|(_, spec)| docs(spec)).collect()))
        }
        b"GETKEYS" if request.len() > 2 => keys_of(request),
        _ => {
            let word = String::from_utf8_lossy(&word[..word.len().min(64)]).into_owned();
            Err(CommandError::UnknownSubcommand("command", word))
        }
    }
}

/// Name, arity, flags, positions of keys, then what Redis 7 has and we leave empty: categories, tips, key specifications, subcommands.
fn entry(spec: &Spec) -> Reply {
    let mut flags = vec![Reply::Simple(if spec.is_write { "write" } else { "readonly" })];
    if matches!(spec.run, Run::Session(command) if !command.is_plain()) {
        flags.push(Reply::Simple("no_multi"));
    }
    let KeyPositions(first, last, step) = spec.keys;
    Reply::Array(vec![
        Reply::text(spec.name),
        Reply::Integer(spec.arity.into()),
        Reply::Array(flags),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
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
