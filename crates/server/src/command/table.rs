//! The table of all commands.

use super::Run::{self, Data, Range, Session, Walk as WalkAll};
use super::{
    GroupKind, KeyPositions, SessionCommand, Spec, Walk, bit, bitfield, dump, expire, keys, lcs, number,
    ordered, string,
};

const NONE: KeyPositions = KeyPositions(0, 0, 0);
const ONE: KeyPositions = KeyPositions(1, 1, 1);
/// The key is the argument after a subcommand.
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

/// Describes a command that stores one key and removes none.
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
    stores("string", "append", 3, Data(string::append),
        "Appends to a value; creates the key if it is missing."),
    reads("bitmap", "bitcount", -2, ONE, Data(bit::bitcount), "Returns the number of set bits in a value."),
    writes("bitmap", "bitfield", -2, ONE, Data(bitfield::bitfield),
        "Reads and changes integers of any number of bits inside a value."),
    reads("bitmap", "bitfield_ro", -2, ONE, Data(bitfield::bitfield_ro),
        "Reads integers of any number of bits inside a value."),
    writes("bitmap", "bitop", -4, FROM_SECOND, Data(bit::bitop),
        "Combines values bit by bit and stores the result."),
    reads("bitmap", "bitpos", -3, ONE, Data(bit::bitpos),
        "Returns the position of the first set or clear bit of a value."),
    reads("bitmap", "getbit", 3, ONE, Data(bit::getbit), "Returns a bit of a value."),
    stores("bitmap", "setbit", 4, Data(bit::setbit), "Sets or clears a bit of a value."),
    stores("string", "decr", 2, Data(number::add), "Subtracts one from a number."),
    stores("string", "decrby", 3, Data(number::add), "Subtracts an integer from a number."),
    reads("string", "get", 2, ONE, Data(string::get), "Returns the value of a key."),
    writes("string", "getdel", 2, ONE, Data(string::getdel),
        "Returns the value of a key and removes the key."),
    writes("string", "getex", -2, ONE, Data(string::getex),
        "Returns the value of a key and sets its expiry time."),
    reads("string", "getrange", 4, ONE, Data(string::getrange), "Returns a part of a value."),
    stores("string", "getset", 3, Data(string::getset), "Stores a value and returns the old one."),
    stores("string", "incr", 2, Data(number::add), "Adds one to a number."),
    stores("string", "incrby", 3, Data(number::add), "Adds an integer to a number."),
    stores("string", "incrbyfloat", 3, Data(number::add_float), "Adds a floating-point number to a number."),
    reads("string", "lcs", -3, TWO, Data(lcs::lcs),
        "Returns the longest common subsequence of two values."),
    reads("string", "mget", -2, ALL, Data(string::mget),
        "Returns the values of several keys, read in one transaction."),
    writes("string", "mset", -3, PAIRS, Data(string::mset), "Stores several values in one transaction."),
    writes("string", "msetnx", -3, PAIRS, Data(string::msetnx),
        "Stores several values if none of the keys exists."),
    stores("string", "psetex", 4, Data(string::setex), "Stores a value with an expiry time in milliseconds."),
    stores("string", "set", -3, Data(string::set), "Stores a value."),
    stores("string", "setex", 4, Data(string::setex), "Stores a value with an expiry time in seconds."),
    stores("string", "setnx", 3, Data(string::setnx), "Stores a value if the key does not exist."),
    stores("string", "setrange", 4, Data(string::setrange), "Overwrites a part of a value."),
    reads("string", "strlen", 2, ONE, Data(string::strlen), "Returns the length of a value."),
    reads("string", "substr", 4, ONE, Data(string::getrange), "Returns a part of a value."),
    writes("generic", "copy", -3, TWO, Data(keys::copy), "Copies a key with its value and expiry time."),
    joins(GroupKind::Remove, writes("generic", "del", -2, ALL, Data(keys::delete), "Removes keys.")),
    reads("generic", "dump", 2, ONE, Data(dump::dump), "Returns the value of a key as RESTORE reads it."),
    reads("generic", "exists", -2, ALL, Data(keys::exists),
        "Returns the number of the given keys that exist."),
    writes("generic", "expire", -3, ONE, Data(expire::expire),
        "Sets the expiry time of a key, in seconds from now."),
    writes("generic", "expireat", -3, ONE, Data(expire::expire),
        "Sets the expiry time of a key, in seconds since 1970."),
    reads("generic", "expiretime", 2, ONE, Data(expire::ttl),
        "Returns the expiry time of a key, in seconds since 1970."),
    reads("generic", "keys", 2, NONE, WalkAll(Walk::List),
        "Returns the keys that match a pattern, in order."),
    reads("generic", "object", -2, SECOND, Data(keys::object),
        "Returns the encoding that Redis would use for a value."),
    writes("generic", "persist", 2, ONE, Data(expire::persist), "Removes the expiry time of a key."),
    writes("generic", "pexpire", -3, ONE, Data(expire::expire),
        "Sets the expiry time of a key, in milliseconds from now."),
    writes("generic", "pexpireat", -3, ONE, Data(expire::expire),
        "Sets the expiry time of a key, in milliseconds since 1970."),
    reads("generic", "pexpiretime", 2, ONE, Data(expire::ttl),
        "Returns the expiry time of a key, in milliseconds since 1970."),
    reads("generic", "pttl", 2, ONE, Data(expire::ttl), "Returns the milliseconds until a key expires."),
    reads("generic", "randomkey", 1, NONE, Range(keys::random_key), "Returns a random key."),
    writes("generic", "rename", 3, TWO, Data(keys::rename), "Renames a key."),
    writes("generic", "renamenx", 3, TWO, Data(keys::rename),
        "Renames a key if the new name does not exist."),
    writes("generic", "restore", -4, ONE, Data(dump::restore),
        "Stores a value that DUMP returned, also of a Redis server."),
    reads("generic", "scan", -2, NONE, Range(keys::scan), "Returns the next keys, in order."),
    reads("generic", "touch", -2, ALL, Data(keys::exists),
        "Returns the number of the given keys that exist."),
    reads("generic", "ttl", 2, ONE, Data(expire::ttl), "Returns the seconds until a key expires."),
    reads("generic", "type", 2, ONE, Data(keys::kind), "Returns the type of a value: string, or none."),
    joins(GroupKind::Remove, writes("generic", "unlink", -2, ALL, Data(keys::delete), "Removes keys.")),
    reads("generic", "wait", 3, NONE, Session(SessionCommand::Wait),
        "Returns the number of replicas that have the writes: 0."),
    reads("cluster", "cluster", -2, NONE, Session(SessionCommand::Cluster),
        "Refused: cluster mode is off."),
    reads("cluster", "asking", 1, NONE, Session(SessionCommand::Cluster), "Refused: cluster mode is off."),
    reads("cluster", "readonly", 1, NONE, Session(SessionCommand::Cluster), "Refused: cluster mode is off."),
    reads("cluster", "readwrite", 1, NONE, Session(SessionCommand::Cluster), "Refused: cluster mode is off."),
    reads("server", "acl", -2, NONE, Session(SessionCommand::Acl), "WHOAMI: returns the only user, default."),
    reads("server", "command", -1, NONE, Session(SessionCommand::Command), "Describes the commands."),
    reads("server", "config", -2, NONE, Session(SessionCommand::Config), "Returns the settings."),
    reads("server", "dbsize", 1, NONE, WalkAll(Walk::Count), "Returns the number of keys."),
    writes("server", "flushall", -1, NONE, Data(keys::flush), "Removes every key."),
    writes("server", "flushdb", -1, NONE, Data(keys::flush), "Removes every key."),
    reads("server", "info", -1, NONE, Session(SessionCommand::Info),
        "Returns information and statistics of the server."),
    reads("server", "latency", -2, NONE, Session(SessionCommand::Latency),
        "Returns no samples: slow requests are in the log of events."),
    reads("server", "memory", -2, SECOND, Data(keys::memory),
        "USAGE: returns the bytes of a key and its value."),
    reads("server", "module", -2, NONE, Session(SessionCommand::Module), "LIST: returns no modules."),
    reads("server", "role", 1, NONE, Session(SessionCommand::Role),
        "Returns the replication role of the server: master."),
    reads("server", "slowlog", -2, NONE, Session(SessionCommand::Slowlog),
        "Returns no entries: slow requests are in the log of events."),
    reads("server", "time", 1, NONE, Session(SessionCommand::Time), "Returns the server's time."),
    reads("connection", "auth", -2, NONE, Session(SessionCommand::Auth),
        "Authenticates the connection with a password."),
    reads("connection", "client", -2, NONE, Session(SessionCommand::Client),
        "Lists and changes connections."),
    reads("connection", "echo", 2, NONE, Session(SessionCommand::Echo), "Returns its argument."),
    reads("connection", "hello", -1, NONE, Session(SessionCommand::Hello),
        "Selects the protocol version and returns information on the server."),
    reads("connection", "ping", -1, NONE, Session(SessionCommand::Ping), "Returns PONG, or its argument."),
    reads("connection", "quit", -1, NONE, Session(SessionCommand::Quit), "Closes the connection."),
    reads("connection", "reset", 1, NONE, Session(SessionCommand::Reset),
        "Resets the connection to its initial state."),
    reads("connection", "select", 2, NONE, Session(SessionCommand::Select),
        "Selects the database: only 0 exists."),
    reads("transactions", "discard", 1, NONE, Session(SessionCommand::Discard),
        "Discards the queued commands."),
    reads("transactions", "exec", 1, NONE, Session(SessionCommand::Exec),
        "Runs the queued commands as one serializable transaction."),
    reads("transactions", "multi", 1, NONE, Session(SessionCommand::Multi),
        "Begins to queue commands for EXEC."),
    reads("transactions", "unwatch", 1, NONE, Session(SessionCommand::Unwatch), "Forgets all watched keys."),
    reads("transactions", "watch", -2, ALL, Session(SessionCommand::Watch),
        "Watches keys: EXEC runs nothing if one of them changes."),
    reads("azekura", "az.abort", 1, NONE, Session(SessionCommand::Abort),
        "Rolls back the interactive transaction."),
    reads("azekura", "az.begin", -1, NONE, Session(SessionCommand::Begin),
        "Begins an interactive transaction."),
    stores("azekura", "az.cas", 4, Data(ordered::compare_and_set),
        "Stores a value if the old value is the expected one."),
    reads("azekura", "az.cluster", -2, NONE, Session(SessionCommand::AzCluster),
        "Returns the nodes of the cluster and the places of keys; moves leaves."),
    reads("azekura", "az.commit", 1, NONE, Session(SessionCommand::Commit),
        "Commits the interactive transaction."),
    reads("azekura", "az.count", 3, NONE, Range(ordered::count), "Counts the keys of a range."),
    writes("azekura", "az.delrange", -3, NONE, Data(ordered::delete), "Removes the keys of a range."),
    reads("azekura", "az.range", -3, NONE, Range(ordered::rows),
        "Returns the keys and values of a range, in order."),
    reads("azekura", "az.snapshot", -1, NONE, Session(SessionCommand::Snapshot),
        "Opens or closes a snapshot."),
    reads("azekura", "az.txn", -2, NONE, Session(SessionCommand::Txn),
        "Begins, commits or rolls back an interactive transaction."),
];
