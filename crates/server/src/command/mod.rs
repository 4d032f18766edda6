//! The commands: names, arguments and functions.
//!
//! A data command is a function from the keys in a transaction and a request to a reply. The function uses no
//! socket and no connection, and does not retry. It may run again, inside `MULTI`, inside an interactive
//! transaction, or on another node.

mod arguments;
mod bit;
mod bitfield;
mod dump;
mod expire;
mod keys;
mod lcs;
mod long_double;
mod number;
mod ordered;
mod string;
mod subcommand;
mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::error::Failure;
use crate::keyspace::Keyspace;
use crate::resp::{Reply, Request};

pub(crate) use arguments::{beginning, database_index, integer, is_word, short_text};
pub(crate) use keys::{ScanOptions, any_of, end_of_scan, flush_options, range_of, walk_all};
pub(crate) use ordered::{RangeOptions, range_request};
pub(crate) use subcommand::{help, resolve};
pub(crate) use table::TABLE;

pub(crate) type CommandResult = Result<Reply, Failure>;

/// A command.
#[derive(Debug)]
pub(crate) struct Spec {
    /// The name, in lower case.
    pub(crate) name: &'static str,
    /// Number of arguments, including the name; a minimum if negative.
    pub(crate) arity: i16,
    pub(crate) keys: KeyPositions,
    pub(crate) is_write: bool,
    /// The kind of [group](crate::group) that the command may join if it has a single key.
    pub(crate) joins: Option<GroupKind>,
    pub(crate) group: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) run: Run,
}

/// Effect of a command with one key. Commands with the same effect may share a [group](crate::group).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupKind {
    /// Stores the key, and never removes it.
    Store,
    /// Removes the key.
    Remove,
}

/// Positions of the keys among the arguments: the first key, the last key (counted from the end if negative),
/// and the distance between two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyPositions(pub(crate) i64, pub(crate) i64, pub(crate) i64);

/// The function that runs a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// A function over the keys of a transaction.
    Data(fn(&Keyspace<'_>, Request<'_>) -> CommandResult),
    /// A function for a command that reads ranges. Outside a transaction it runs over a snapshot.
    Range(fn(&Keyspace<'_>, Request<'_>) -> CommandResult),
    /// A walk over all keys. Outside a transaction it runs over a snapshot.
    Walk(Walk),
    /// A command on the connection or the server.
    Session(SessionCommand),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// `DBSIZE`
    Count,
    /// `KEYS`
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionCommand {
    Ping,
    Echo,
    Select,
    Time,
    Wait,
    Role,
    Info,
    Config,
    Client,
    Command,
    Hello,
    Auth,
    Reset,
    Quit,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Begin,
    Commit,
    Abort,
    Txn,
    Snapshot,
    Cluster,
    Slowlog,
    Latency,
    Acl,
    Module,
    Help,
    AzCluster,
}

impl SessionCommand {
    /// Returns `true` if `MULTI` can queue the command and an interactive transaction can run it.
    pub(crate) const fn is_plain(self) -> bool {
        use SessionCommand::*;
        let is_about_server =
            matches!(self, Time | Wait | Role | Info | Config | Command | Cluster | Slowlog | Latency);
        is_about_server
            || matches!(self, Acl | Module | Help | Ping | Echo | Select | Client | Auth | Unwatch)
    }
}

impl Spec {
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        fits(self.arity, arguments)
    }
}

/// Returns `true` if the number of arguments is valid for an arity.
fn fits(arity: i16, arguments: usize) -> bool {
    let wanted = usize::from(arity.unsigned_abs());
    if arity < 0 { arguments >= wanted } else { arguments == wanted }
}

/// Returns the positions of the keys among `arguments` arguments, including the command's name.
pub(crate) fn key_places(spec: &Spec, arguments: usize) -> impl Iterator<Item = usize> {
    let KeyPositions(first, last, step) = spec.keys;
    let place = |at: i64| usize::try_from(at).unwrap_or(0);
    let end = match last {
        _ if first == 0 => 0,
        ..0 => arguments,
        _ => (place(last) + 1).min(arguments),
    };
    (place(first)..end).step_by(place(step).max(1))
}

/// Returns the key of a request with a single key.
pub(crate) fn only_key<'a>(spec: &Spec, request: Request<'a>) -> Option<&'a [u8]> {
    let mut places = key_places(spec, request.len());
    let place = places.next()?;
    places.next().is_none().then(|| request.arg(place))
}

/// Returns the keys of a request.
pub(crate) fn keys_of<'a>(spec: &Spec, request: Request<'a>) -> Vec<&'a [u8]> {
    key_places(spec, request.len()).map(|at| request.arg(at)).collect()
}

static INDEX: LazyLock<HashMap<&'static [u8], usize>> =
    LazyLock::new(|| TABLE.iter().enumerate().map(|(at, spec)| (spec.name.as_bytes(), at)).collect());

/// Length limit of command names, in bytes.
const MAX_NAME: usize = 24;

/// Returns the command with this name, in upper or lower case, and its index.
pub(crate) fn find(name: &[u8]) -> Option<(usize, &'static Spec)> {
    let mut lower = [0; MAX_NAME];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = *INDEX.get(&*lower)?;
    Some((at, &TABLE[at]))
}

/// Like [`find`], with a guess of the index. A correct guess costs one comparison instead of a hash.
pub(crate) fn find_near(name: &[u8], guess: usize) -> Option<(usize, &'static Spec)> {
    match TABLE.get(guess) {
        Some(spec) if spec.name.as_bytes().eq_ignore_ascii_case(name) => Some((guess, spec)),
        _ => find(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_guess_does_not_change_the_result() {
        let places = 0..=TABLE.len();
        for guess in places.chain([usize::MAX]) {
            for (at, spec) in TABLE.iter().enumerate() {
                assert_eq!(find_near(spec.name.to_uppercase().as_bytes(), guess).map(|(at, _)| at), Some(at));
            }
            assert!(find_near(b"no-such-command", guess).is_none());
        }
    }

    #[test]
    fn names_are_lower_case_short_and_unique() {
        assert_eq!(INDEX.len(), TABLE.len());
        for spec in TABLE {
            assert!(
                spec.name.len() <= MAX_NAME && spec.name == spec.name.to_ascii_lowercase(),
                "{}",
                spec.name
            );
            assert_eq!(find(spec.name.to_ascii_uppercase().as_bytes()).map(|(_, s)| s.name), Some(spec.name));
        }
        assert!(find(b"").is_none());
        assert!(find(&[b'a'; 100]).is_none());
    }
}
