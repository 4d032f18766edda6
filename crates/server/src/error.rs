//! Errors: replies to clients, and errors of the start of a server.

use std::path::PathBuf;

use azekura::ErrorKind;

use crate::listener::ListenAddress;

/// The reason that a request was refused. Its text is the reply: a code in capitals, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}")]
    UnknownCommand { name: String, arguments: String },
    #[error("ERR unknown subcommand '{1}'. Try {name} HELP.", name = .0.to_ascii_uppercase())]
    UnknownSubcommand(&'static str, String),
    #[error("ERR unknown subcommand '{1}' of '{0}'")]
    UnknownWord(&'static str, String),
    #[error("EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command")]
    ExecArity,
    #[error("ERR wrong number of arguments for '{0}' command")]
    Arity(String),
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    #[error("ERR value is out of range, value must between {0} and {1}")]
    OutOfRange(i64, i64),
    #[error("ERR timeout is not an integer or out of range")]
    Timeout,
    #[error("ERR timeout is negative")]
    NegativeTimeout,
    #[error("ERR value is not a valid float")]
    NotAFloat,
    #[error("ERR increment or decrement would overflow")]
    Overflow,
    #[error("ERR decrement would overflow")]
    DecrementOverflow,
    #[error("ERR increment would produce NaN or Infinity")]
    NotFinite,
    #[error("ERR invalid expire time in '{0}' command")]
    ExpireTime(&'static str),
    #[error("ERR Unsupported option {0}")]
    ExpireOption(String),
    #[error("ERR {0} options at the same time are not compatible")]
    ExpireOptions(&'static str),
    #[error("ERR no such key")]
    NoSuchKey,
    #[error("ERR offset is out of range")]
    Offset,
    #[error("ERR bit offset is not an integer or out of range")]
    BitOffset,
    #[error("ERR bit is not an integer or out of range")]
    Bit,
    #[error("ERR The bit argument must be 1 or 0.")]
    BitArgument,
    #[error("ERR BITOP NOT must be called with a single source key.")]
    BitNot,
    #[error(
        "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is."
    )]
    FieldType,
    #[error("ERR Invalid OVERFLOW type specified")]
    OverflowType,
    #[error("ERR BITFIELD_RO only supports the GET subcommand")]
    BitfieldReadOnly,
    #[error("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len")]
    LcsMemory,
    #[error("ERR DUMP payload version or checksum are wrong")]
    DumpFooter,
    #[error("ERR Bad data format")]
    DumpFormat,
    #[error("BUSYKEY Target key name already exists.")]
    BusyKey,
    #[error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")]
    ValueTooLong,
    #[error("ERR the key has {len} bytes; the limit is {max}")]
    KeyTooLong { len: usize, max: usize },
    #[error(
        "ERR the reply would exceed {0} bytes; ask for less at once (LIMIT, COUNT), or raise --max-reply"
    )]
    ReplyTooLong(usize),
    #[error(
        "ERR nothing was changed: the reply would exceed {0} bytes, the most that another node sends; ask \
         for less at once, or ask the node of the keys"
    )]
    AnswerTooLong(usize),
    #[error("ERR invalid cursor")]
    Cursor,
    #[error("ERR a bound must be - or +, or begin with [ (inclusive) or ( (exclusive)")]
    Bound,
    #[error("ERR DB index is out of range")]
    DatabaseIndex,
    #[error("ERR MULTI calls can not be nested")]
    NestedMulti,
    #[error("ERR WATCH inside MULTI is not allowed")]
    WatchInMulti,
    #[error("ERR {0} without {1}")]
    Without(&'static str, &'static str),
    #[error("ERR {0} is not allowed inside {1}")]
    NotInside(String, &'static str),
    #[error("ERR AZ.BEGIN is not allowed while keys are watched; UNWATCH first")]
    Watching,
    #[error("EXECABORT Transaction discarded because of previous errors.")]
    ExecAbort,
    #[error("ERR the queued commands exceed {0} bytes")]
    QueueTooLong(usize),
    #[error("ERR there is no snapshot {0}: it was closed, or the connection that opened it has ended")]
    NoSnapshot(u64),
    #[error("ERR a connection can have {0} open snapshots; AZ.SNAPSHOT CLOSE one")]
    Snapshots(usize),
    #[error("NOPERM the transaction is read-only")]
    ReadOnly,
    #[error("RETRY {0}; the transaction was rolled back, begin it again")]
    Retry(String),
    #[error("RETRY the transaction was open for more than {0} ms and has been rolled back; begin it again")]
    TransactionTimeout(u64),
    #[error("NOAUTH Authentication required.")]
    NoAuth,
    #[error(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
         <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
         the same time"
    )]
    HelloNoAuth,
    #[error("ERR this port serves Redis clients, not HTTP; see --metrics for HTTP pages")]
    Http,
    #[error("WRONGPASS invalid username-password pair or user is disabled.")]
    WrongPass,
    #[error(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?"
    )]
    AuthNotSet,
    #[error("ERR Protocol version is not an integer or out of range")]
    ProtocolVersion,
    #[error("NOPROTO unsupported protocol version")]
    NoProto,
    #[error("ERR settings cannot be changed while the server runs: see azekura serve --help")]
    Setting,
    #[error("ERR Client names cannot contain spaces, newlines or special characters.")]
    ClientName,
    #[error("ERR Unrecognized option '{0}'")]
    ClientAttribute(String),
    #[error("ERR {0} cannot contain spaces, newlines or special characters.")]
    ClientValue(String),
    #[error("ERR Syntax error in HELLO option '{0}'")]
    HelloOption(String),
    #[error("ERR Unknown client type '{0}'")]
    ClientType(String),
    #[error("ERR No such user '{0}'")]
    NoSuchUser(String),
    #[error("ERR client-id should be greater than 0")]
    ClientId,
    #[error("ERR {0} is not offered: {1}")]
    NotOffered(&'static str, &'static str),
    #[error("ERR {0} is not offered in a cluster: {1}")]
    NotInCluster(String, &'static str),
    #[error("ERR this server is not a node of a cluster: see azekura cluster --help")]
    Alone,
    #[error("UNAVAIL {0}")]
    Unavailable(String),
    /// The owner of a key cannot be reached.
    #[error("UNAVAIL {0}; nothing was changed")]
    Unreachable(String),
    /// The error reply of the owner of a key, with its code.
    #[error("{0}")]
    OfOwner(String),
    /// A request for keys of several nodes failed after it had removed some of the keys.
    #[error("PARTIAL {done} keys were removed, then: {why}")]
    Partial { done: usize, why: String },
    #[error("UNKNOWN {0}")]
    Unknown(String),
    #[error(
        "CROSSNODE the keys are at several nodes, but a transaction runs at one node; move their leaves to \
         one node (AZ.CLUSTER MOVE)"
    )]
    CrossNode,
    #[error(
        "CROSSNODE the range spans several nodes, but a transaction runs at one node; use a shorter range, \
         or move the leaves to one node (AZ.CLUSTER MOVE)"
    )]
    WalkCrossesNodes,
    #[error(
        "ERR This instance has cluster support disabled: any node accepts any key; AZ.CLUSTER STATUS \
         describes the nodes"
    )]
    NoSlots,
    #[error("ERR storage: {0}")]
    Storage(String),
    #[error("ERR the unfinished requests of all connections exceed {0} bytes; try again (--max-unfinished)")]
    TooMuchUnfinished(usize),
    #[error("ERR max number of clients reached")]
    TooManyClients,
    #[error("NOPERM this Unix socket is for clients of the server's user and of root")]
    OtherUser,
    #[error("ERR {0}")]
    Protocol(String),
}

impl CommandError {
    /// Returns this error for a request that has already removed `done` keys.
    pub(crate) fn after_removing(self, done: usize) -> Self {
        match self {
            error if done == 0 => error,
            // The text of `Unreachable` says that nothing was changed.
            Self::Unreachable(why) => Self::Partial { done, why: format!("UNAVAIL {why}") },
            error => Self::Partial { done, why: error.to_string() },
        }
    }
}

/// The failure of a command: an error of the request, or of the store.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The transaction continues; the command changed nothing.
    Command(CommandError),
    Store(azekura::Error),
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<azekura::Error> for Failure {
    /// Converts a refusal that passed through the store as the caller's error back into a refusal.
    fn from(error: azekura::Error) -> Self {
        match error {
            azekura::Error::Other(inner) => match inner.downcast::<CommandError>() {
                Ok(command) => Self::Command(*command),
                Err(inner) => Self::Store(azekura::Error::Other(inner)),
            },
            error => Self::Store(error),
        }
    }
}

impl From<Failure> for azekura::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Command(error) => Self::other(error),
            Failure::Store(error) => error,
        }
    }
}

/// Reason that a request may not wait for a lock (`reactor`). Requests that wait have no other reason for
/// [`azekura::Error::WouldBlock`].
pub(crate) const NO_THREAD: &str = "another transaction holds a lock that the request needs, and the system \
                                     creates no thread that could serve the other clients meanwhile (limits: \
                                     ulimit -u, pids.max of the cgroup)";

impl Failure {
    /// Returns `true` if the snapshot that was read has become too old.
    pub(crate) const fn is_old_snapshot(&self) -> bool {
        matches!(self, Self::Store(azekura::Error::SnapshotTooOld { .. }))
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Command(error) => error,
            Failure::Store(error @ azekura::Error::SnapshotTooOld { .. }) => Self::Retry(error.to_string()),
            Failure::Store(azekura::Error::WouldBlock { .. }) => Self::Retry(NO_THREAD.into()),
            Failure::Store(error) => match error.kind() {
                ErrorKind::Conflict => Self::Retry(error.to_string()),
                ErrorKind::Busy | ErrorKind::Closed => Self::Unavailable(error.full_message()),
                _ => Self::Storage(error.full_message()),
            },
        }
    }
}

/// An error while a server starts or stops.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address can be reached from other machines, and no password is set.
    #[error(
        "{0} can be reached from other machines: give a password with --auth FILE (or AZEKURA_PASSWORD), or \
         listen on 127.0.0.1"
    )]
    PublicWithoutPassword(ListenAddress),
    /// A node of a cluster with relaxed durability.
    #[error(
        "a node of a cluster needs immediate durability: after the move of a leaf, a power loss could lose \
         the whole leaf, or give it two owners"
    )]
    RelaxedNode,
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A request did not end within the drain time although its connection was closed. Its thread still uses
    /// the store.
    #[error("a request still runs in the store; the store stays open until it ends")]
    StillInUse,
    /// A thread could not be started.
    #[error("cannot start a thread of the server")]
    Thread(#[source] std::io::Error),
    /// An invalid password.
    #[error("the password is {0}; it must have 1 to 512 bytes")]
    Password(&'static str),
    /// An invalid file of certificates or keys.
    #[error("{path}: {reason}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// The fault in the file.
        reason: String,
    },
    /// An error of this server's cluster node.
    #[error(transparent)]
    Node(#[from] azekura_fatbtree::tcp::StartError),
    /// The store belongs to a node of a cluster, and the options name no cluster.
    #[error("this is the store of node {} of cluster {cluster:016x}: serve it with --cluster FILE --node {}",
        pe.0, pe.0)]
    NodeStore {
        /// The cluster.
        cluster: u64,
        /// The node.
        pe: azekura_fatbtree::PeId,
    },
    /// The node tables of the store cannot be read.
    #[error(transparent)]
    NodeTables(#[from] azekura_fatbtree::StoreError),
    /// An error in the list of members of a cluster.
    #[error(transparent)]
    Membership(#[from] azekura_fatbtree::MembershipError),
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] azekura::Error),
}
