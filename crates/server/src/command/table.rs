//! All commands.

use super::Run::{self, Data, Range, Session, Walk as WalkAll};
use super::{
    GroupKind, KeyPositions, SessionCommand, Spec, Walk, bit, expire, keys, number, ordered, string,
};

const NONE: KeyPositions = KeyPositions(0, 0, 0);
const ONE: KeyPositions = KeyPositions(1, 1, 1);
/// The argument after a subcommand.
const SECOND: KeyPositions = KeyPositions(2, 2, 1);
const FROM_SECOND: KeyPositions = KeyPositions(2, -1, 1);
const TWO: KeyPositions = KeyPositions(1, 2, 1);
const ALL: KeyPositions = KeyPositions(1, -1, 1);
const PAIRS: KeyPositions = KeyPositions(1, -1, 2);

const fn reads(
    group: &'static str,
    name: &'static str,
    arity: i16,
    keys: KeyPositions,
    run: Run,
    summary: &'static str,
) -> Spec {
    Spec { name, arity, keys, is_write: false, joins: None, group, summary, run }
}

const fn writes(
    group: &'static str,
    name: &'static str,
    arity: i16,
    keys: KeyPositions,
    run: Run,
    summary: &'static str,
) -> Spec {
    Spec { is_write: true, ..reads(group, name, arity, keys, run, summary) }
}

/// Commands that store one key and remove none.
const fn stores(
    group: &'static str,
    name: &'static str,
    arity: i16,
    run: Run,
    summary: &'static str,
) -> Spec {
    Spec { joins: Some(GroupKind::Store), ..writes(group, name, arity, ONE, run, summary) }
}

const fn joins(kind: GroupKind, spec: Spec) -> Spec {
    Spec { joins: Some(kind), ..spec }
}

/// All commands.
#[rustfmt::skip] // a table
pub(crate) static TABLE: &[Spec] = &[
    stores("string", "append", 3, Data(string::append), "Appends to a value; makes the key if needed."),
    reads("bitmap", "bitcount", -2, ONE, Data(bit::bitcount), "How many bits of a value are set."),
    writes("bitmap", "bitop", -4, FROM_SECOND, Data(bit::bitop), "Combines values bit by bit into another."),
    reads("bitmap", "bitpos", -3, ONE, Data(bit::bitpos), "The first bit of a value that is set, or not."),
    reads("bitmap", "getbit", 3, ONE, Data(bit::getbit), "A bit of a value."),
    stores("bitmap", "setbit", 4, Data(bit::setbit), "Sets a bit of a value."),
    stores("string", "decr", 2, Data(number::add), "Takes one off a number."),
    stores("string", "decrby", 3, Data(number::add), "Takes a number off a number."),
    reads("string", "get", 2, ONE, Data(string::get), "The value of a key."),
    writes("string", "getdel", 2, ONE, Data(string::getdel), "The value of a key, which is removed."),
    writes("string", "getex", -2, ONE, Data(string::getex), "The value of a key, whose end is set."),
    reads("string", "getrange", 4, ONE, Data(string::getrange), "A part of a value."),
    stores("string", "getset", 3, Data(string::getset), "The old value of a key, which gets a new one."),
    stores("string", "incr", 2, Data(number::add), "Adds one to a number."),
    stores("string", "incrby", 3, Data(number::add), "Adds a number to a number."),
    stores("string", "incrbyfloat", 3, Data(number::add_float), "Adds a number with a fraction to one."),
    reads("string", "mget", -2, ALL, Data(string::mget), "The values of several keys, as they are at one moment."),
    writes("string", "mset", -3, PAIRS, Data(string::mset), "Stores several values at once."),
    writes("string", "msetnx", -3, PAIRS, Data(string::msetnx), "Stores several values if none of the keys is there."),
    stores("string", "psetex", 4, Data(string::setex), "Stores a value that ends after milliseconds."),
    stores("string", "set", -3, Data(string::set), "Stores a value."),
    stores("string", "setex", 4, Data(string::setex), "Stores a value that ends after seconds."),
    stores("string", "setnx", 3, Data(string::setnx), "Stores a value if the key is not there."),
    stores("string", "setrange", 4, Data(string::setrange), "Overwrites a part of a value."),
    reads("string", "strlen", 2, ONE, Data(string::strlen), "The length of a value."),
    reads("string", "substr", 4, ONE, Data(string::getrange), "A part of a value."),
    writes("generic", "copy", -3, TWO, Data(keys::copy), "Copies a key with its end."),
    joins(GroupKind::Remove, writes("generic", "del", -2, ALL, Data(keys::delete), "Removes keys.")),
    reads("generic", "exists", -2, ALL, Data(keys::exists), "How many of the keys are there."),
    writes("generic", "expire", -3, ONE, Data(expire::expire), "Sets the end of a key, in seconds from now."),
    writes("generic", "expireat", -3, ONE, Data(expire::expire), "Sets the end of a key, in seconds since 1970."),
    reads("generic", "expiretime", 2, ONE, Data(expire::ttl), "The end of a key, in seconds since 1970."),
    reads("generic", "keys", 2, NONE, WalkAll(Walk::List), "The keys that fit a pattern, in order."),
    reads("generic", "object", -2, SECOND, Data(keys::object), "How a value would lie in Redis."),
    writes("generic", "persist", 2, ONE, Data(expire::persist), "Takes the end off a key."),
    writes("generic", "pexpire", -3, ONE, Data(expire::expire), "Sets the end of a key, in milliseconds from now."),
    writes("generic", "pexpireat", -3, ONE, Data(expire::expire), "Sets the end of a key, in milliseconds since 1970."),
    reads("generic", "pexpiretime", 2, ONE, Data(expire::ttl), "The end of a key, in milliseconds since 1970."),
    reads("generic", "pttl", 2, ONE, Data(expire::ttl), "Milliseconds to the end of a key."),
    reads("generic", "randomkey", 1, NONE, Range(keys::random_key), "Any key."),
    writes("generic", "rename", 3, TWO, Data(keys::rename), "Renames a key."),
    writes("generic", "renamenx", 3, TWO, Data(keys::rename), "Renames a key if the new name is free."),
    reads("generic", "scan", -2, NONE, Range(keys::scan), "The next keys, in order."),
    reads("generic", "touch", -2, ALL, Data(keys::exists), "How many of the keys are there."),
    reads("generic", "ttl", 2, ONE, Data(expire::ttl), "Seconds to the end of a key."),
    reads("generic", "type", 2, ONE, Data(keys::kind), "The type of a value: string, or none."),
    joins(GroupKind::Remove, writes("generic", "unlink", -2, ALL, Data(keys::delete), "Removes keys.")),
    reads("generic", "wait", 3, NONE, Session(SessionCommand::Wait), "How many other copies have the writes: none."),
    reads("cluster", "cluster", -2, NONE, Session(SessionCommand::Cluster), "About clusters of Redis: this is none."),
    reads("server", "command", -1, NONE, Session(SessionCommand::Command), "What commands there are."),
    reads("server", "config", -2, NONE, Session(SessionCommand::Config), "The settings."),
    reads("server", "dbsize", 1, NONE, WalkAll(Walk::Count), "The number of keys."),
    writes("server", "flushall", -1, NONE, Data(keys::flush), "Removes every key."),
    writes("server", "flushdb", -1, NONE, Data(keys::flush), "Removes every key."),
    reads("server", "info", -1, NONE, Session(SessionCommand::Info), "What the server is and did."),
    reads("server", "memory", -2, SECOND, Data(keys::memory), "USAGE: the bytes that a key and its value take."),
    reads("server", "role", 1, NONE, Session(SessionCommand::Role), "What the server is among copies: the master."),
    reads("server", "time", 1, NONE, Session(SessionCommand::Time), "The server's time."),
    reads("connection", "auth", -2, NONE, Session(SessionCommand::Auth), "Shows the password."),
    reads("connection", "client", -2, NONE, Session(SessionCommand::Client), "About connections."),
    reads("connection", "echo", 2, NONE, Session(SessionCommand::Echo), "Gives back what it is given."),
    reads("connection", "hello", -1, NONE, Session(SessionCommand::Hello), "Greets, and chooses the version of the protocol."),
    reads("connection", "ping", -1, NONE, Session(SessionCommand::Ping), "Answers."),
    reads("connection", "quit", -1, NONE, Session(SessionCommand::Quit), "Closes the connection."),
    reads("connection", "reset", 1, NONE, Session(SessionCommand::Reset), "Makes the connection as it was at first."),
    reads("connection", "select", 2, NONE, Session(SessionCommand::Select), "Chooses the database: there is 0."),
    reads("transactions", "discard", 1, NONE, Session(SessionCommand::Discard), "Forgets what MULTI queued."),
    reads("transactions", "exec", 1, NONE, Session(SessionCommand::Exec), "Runs what MULTI queued as one serializable transaction."),
    reads("transactions", "multi", 1, NONE, Session(SessionCommand::Multi), "Queues what follows."),
    reads("transactions", "unwatch", 1, NONE, Session(SessionCommand::Unwatch), "Watches no key any more."),
    reads("transactions", "watch", -2, ALL, Session(SessionCommand::Watch), "Lets EXEC do nothing if one of the keys changes."),
    reads("azekura", "az.abort", 1, NONE, Session(SessionCommand::Abort), "Undoes the interactive transaction."),
    reads("azekura", "az.begin", -1, NONE, Session(SessionCommand::Begin), "Begins an interactive transaction."),
    stores("azekura", "az.cas", 4, Data(ordered::compare_and_set), "Stores a value if the old one is as expected."),
    reads("azekura", "az.cluster", -2, NONE, Session(SessionCommand::AzCluster), "The nodes of the cluster and where keys are; moves leaves."),
    reads("azekura", "az.commit", 1, NONE, Session(SessionCommand::Commit), "Commits the interactive transaction."),
    reads("azekura", "az.count", 3, NONE, Range(ordered::count), "How many keys lie in a range."),
    writes("azekura", "az.delrange", -3, NONE, Data(ordered::delete), "Removes the keys of a range."),
    reads("azekura", "az.range", -3, NONE, Range(ordered::rows), "The keys and values of a range, in order."),
    reads("azekura", "az.snapshot", -1, NONE, Session(SessionCommand::Snapshot), "Opens, closes a snapshot."),
    reads("azekura", "az.txn", -2, NONE, Session(SessionCommand::Txn), "BEGIN, COMMIT or ABORT of an interactive transaction."),
];
