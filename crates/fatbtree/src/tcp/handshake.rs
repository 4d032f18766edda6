//! The handshake between nodes. Each node proves that it has the shared key, without revealing the key, and
//! sends its cluster, number and version.
//!
//! | | sender | bytes |
//! |---|---|---|
//! | 1 | caller | hello: the fields below |
//! | 2 | called | its own hello, with its [`Verdict`]; it closes after a verdict other than `Welcome` |
//! | 3 | caller | HMAC-SHA256(key, "azekura node calls" ‖ 1 ‖ 2) |
//! | 4 | called | 1 for yes and the HMAC of "azekura node answers"; or zeros: both close |
//! | | | 2 and the HMAC of "azekura node refuses", if it has recorded another store of the caller |
//!
//! Fields of a hello, with their bytes: magic 8, version 1, version of frames 1, zero 1 (in message 2 the
//! verdict), [store](Credentials) 1 (bit 0 settled, bit 1 loss accepted), the receiver's epoch as known to
//! the sender 4, cluster 8, PE of the sender 2, PE of the receiver 2, digest of the sender's [list](ListMark)
//! 4 (not in message 2), nonce 32, name of the sender's store 8, version of the sender's list 8, the sender's
//! clock 8 (ms since 1970; 0: none).
//!
//! Every message has a fixed size, so no length is read from an unauthenticated peer. Before the peer has
//! proved the key, a node learns only the peer's cluster, PE, epoch and store. After the handshake
//! [frames](crate::frame) follow, from the caller only, neither encrypted nor signed individually. Use a
//! tunnel on a network where others can write into a TCP stream.

use std::io;

use azekura_auth::{AuthKey, PROOF_BYTES};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::clock_offset::ClockOffset;
use crate::frame;
use crate::id::PeId;
use crate::membership::ListMark;
use crate::node::Credentials;
use crate::tcp::hello::{Hello, VERSIONS, read_hello};

pub use crate::tcp::hello::{HELLO_BYTES, VERSION, Verdict};

const CALLS: &str = "azekura node calls";
const ANSWERS: &str = "azekura node answers";
const REFUSES: &str = "azekura node refuses";

/// Identity that a node presents in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Cluster of the node.
    pub cluster: u64,
    /// PE of the node.
    pub pe: PeId,
    /// Epoch: number of takeovers by another machine.
    pub epoch: u32,
    /// Store of the node.
    pub store: Credentials,
    /// The list of members that it uses.
    pub list: ListMark,
    /// Clock by which the node's rows expire, in milliseconds since 1970; 0 if it uses none.
    pub clock_ms: u64,
}

/// The reason that a handshake failed. Close the connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The connection failed, or took too long.
    #[error("the connection ended in the handshake")]
    Io(#[from] io::Error),
    /// The connection was closed as the oldest unauthenticated one, because its address has too many.
    #[error("too many connections from this address have not sent the key; the oldest is closed")]
    TooMany,
    /// The peer is not a node.
    #[error("the peer is not an azekura node")]
    Stranger,
    /// The peer has another version. Upgrade the older node.
    #[error(
        "the other node has protocol version {found}, this one {VERSION}.{}; upgrade the older node",
        frame::VERSION
    )]
    Version {
        /// Versions of the handshake and the frames.
        found: String,
    },
    /// The peer belongs to another cluster. Correct the list of members.
    #[error(
        "the other node belongs to cluster {found:016x}, this one to {expected:016x}; correct the list of \
         members"
    )]
    Cluster {
        /// Cluster of the peer.
        found: u64,
        /// Cluster of this node.
        expected: u64,
    },
    /// Another PE answered at this address. Correct the list of members.
    #[error("{found} answered at the address of {expected}; correct the list of members")]
    Pe {
        /// The node that answered.
        found: PeId,
        /// The node that was called.
        expected: PeId,
    },
    /// The PE is at another epoch.
    #[error("the node is at epoch {found}, expected {expected}")]
    Epoch {
        /// Epoch of the PE.
        found: u32,
        /// The expected epoch.
        expected: u32,
    },
    /// The caller is not on the called node's list of members.
    #[error("{0} is not on the list of members; give every node the same list")]
    NoMember(PeId),
    /// Both nodes use this version of the list of members, with different contents.
    #[error(
        "both nodes have version {0} of the list of members, with different contents; raise the version with \
         each change, and give all nodes the same list"
    )]
    List(u64),
    /// The clocks of the two nodes differ too much.
    #[error("{0}: {1}")]
    Clock(PeId, ClockOffset),
    /// The keys differ.
    #[error("the keys differ; give every node the same key file")]
    Key,
    /// The peer has another store than the one that this node has recorded.
    #[error(
        "{0} has another store than the cluster knows; start it with the old one, or, if that is lost for \
         good, serve the empty one with --accept-loss"
    )]
    OtherStore(PeId),
    /// The peer has recorded another store of this node.
    #[error("{0} has recorded another store for this node; start this node with that store")]
    Displaced(PeId),
    /// The store of this node cannot record the peer's store now, for example because its disk is full.
    #[error("the store of this node cannot record the store of {0}; its disk may be full")]
    NotRecorded(PeId),
}

/// First byte of the called node's last message.
const YES: u8 = 1;
const OTHER_STORE: u8 = 2;

/// Runs the caller's side: identifies this node to the node at the other end, which must be `to`. Returns
/// that node's store identity and clock. The caller checks both before it sends anything.
///
/// # Errors
///
/// [`HandshakeError`].
pub async fn call(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    me: Identity,
    to: PeId,
    epoch: u32,
    key: &AuthKey,
) -> Result<(Credentials, u64), HandshakeError> {
    let Identity { cluster, pe: from, store, list, clock_ms, .. } = me;
    let hello = Hello { versions: VERSIONS, verdict: 0, epoch, cluster, from, to, store, list, clock_ms };
    let hello = hello.encode()?;
    stream.write_all(&hello).await?;
    let (answer, other) = read_hello(stream).await?;
    match Verdict::from_byte(other.verdict) {
        Some(Verdict::Welcome)
            if other.versions == VERSIONS && (other.cluster, other.from) == (me.cluster, to) => {}
        Some(Verdict::Cluster) => {
            return Err(HandshakeError::Cluster { found: other.cluster, expected: me.cluster });
        }
        Some(Verdict::Pe) => return Err(HandshakeError::Pe { found: other.from, expected: to }),
        Some(Verdict::Epoch) => {
            return Err(HandshakeError::Epoch { found: other.epoch, expected: epoch });
        }
        Some(Verdict::Stranger) => return Err(HandshakeError::NoMember(me.pe)),
        Some(Verdict::List) => return Err(HandshakeError::List(list.version)),
        Some(Verdict::Version) => return Err(other.version_error()),
        _ => return Err(HandshakeError::Stranger),
    }
    stream.write_all(&key.proof(CALLS, &[&hello, &answer])).await?;
    let mut verdict = [0; 1 + PROOF_BYTES];
    stream.read_exact(&mut verdict).await?;
    let is_proof = |label| key.is_proof(label, &[&hello, &answer], &verdict[1..]);
    match verdict[0] {
        YES if is_proof(ANSWERS) => Ok((other.store, other.clock_ms)),
        OTHER_STORE if is_proof(REFUSES) => Err(HandshakeError::Displaced(to)),
        _ => Err(HandshakeError::Key),
    }
}

/// Runs the called side: returns the caller's PE, if the caller is a member, has the key, and has a store
/// that `admits` accepts. If `admits` has no result, the handshake ends without a verdict.
///
/// # Errors
///
/// [`HandshakeError`]; the caller has received the part that it may know.
pub async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    me: Identity,
    key: &AuthKey,
    is_member: impl Fn(PeId) -> bool,
    admits: impl AsyncFnOnce(PeId, Credentials) -> Option<bool>,
) -> Result<PeId, HandshakeError> {
    let (hello, other) = read_hello(stream).await?;
    let (verdict, error) = judge(me, &other, is_member);
    let answer = Hello {
        versions: VERSIONS,
        verdict: verdict as u8,
        epoch: me.epoch,
        cluster: me.cluster,
        from: me.pe,
        to: other.from,
        store: me.store,
        list: ListMark::default(),
        clock_ms: me.clock_ms,
    };
    let answer = answer.encode()?;
    stream.write_all(&answer).await?;
    if let Some(error) = error {
        return Err(error);
    }
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    let mut verdict = [0; 1 + PROOF_BYTES];
    if !key.is_proof(CALLS, &[&hello, &answer], &proof) {
        stream.write_all(&verdict).await?;
        return Err(HandshakeError::Key);
    }
    let is_admitted = admits(other.from, other.store).await;
    let is_admitted = is_admitted.ok_or(HandshakeError::NotRecorded(other.from))?;
    let label = if is_admitted { ANSWERS } else { REFUSES };
    verdict[0] = if is_admitted { YES } else { OTHER_STORE };
    verdict[1..].copy_from_slice(&key.proof(label, &[&hello, &answer]));
    stream.write_all(&verdict).await?;
    if is_admitted { Ok(other.from) } else { Err(HandshakeError::OtherStore(other.from)) }
}

fn judge(me: Identity, other: &Hello, is_member: impl Fn(PeId) -> bool) -> (Verdict, Option<HandshakeError>) {
    if other.versions != VERSIONS {
        (Verdict::Version, Some(other.version_error()))
    } else if other.cluster != me.cluster {
        (Verdict::Cluster, Some(HandshakeError::Cluster { found: other.cluster, expected: me.cluster }))
    } else if other.to != me.pe {
        (Verdict::Pe, Some(HandshakeError::Pe { found: me.pe, expected: other.to }))
    } else if other.epoch != me.epoch {
        (Verdict::Epoch, Some(HandshakeError::Epoch { found: me.epoch, expected: other.epoch }))
    } else if other.from == me.pe || !is_member(other.from) {
        (Verdict::Stranger, Some(HandshakeError::NoMember(other.from)))
    } else if other.list.contradicts(me.list) {
        (Verdict::List, Some(HandshakeError::List(other.list.version)))
    } else {
        (Verdict::Welcome, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Credentials = Credentials { birth: 1 << 40, is_settled: true, is_loss_accepted: false };
    const LIST: ListMark = ListMark { version: 4, digest: 9 };
    const CALLER: Identity =
        Identity { cluster: 7, pe: PeId(1), epoch: 1, store: STORE, list: LIST, clock_ms: 0 };
    const CALLED: Identity = Identity {
        pe: PeId(0),
        store: Credentials { birth: 5, is_settled: false, is_loss_accepted: true },
        clock_ms: 1_700_000_000_000,
        ..CALLER
    };

    fn key(text: &str) -> AuthKey {
        AuthKey::new(text.as_bytes()).expect("long enough")
    }

    type Done<T> = Result<T, HandshakeError>;

    async fn both(
        caller: Identity,
        to: PeId,
        epoch: u32,
        keys: (&str, &str),
        is_member: bool,
    ) -> (Done<(Credentials, u64)>, Done<PeId>) {
        let (mut one, mut two) = tokio::io::duplex(64);
        let (ours, theirs) = (key(keys.0), key(keys.1));
        tokio::join!(async move { call(&mut one, caller, to, epoch, &ours).await }, async move {
            answer(&mut two, CALLED, &theirs, |_| is_member, async |_, store| Some(store == STORE)).await
        })
    }

    const SAME: (&str, &str) = ("0123456789abcdef", "0123456789abcdef");

    #[tokio::test(flavor = "current_thread")]
    async fn members_with_one_key_meet() {
        let (called, answered) = both(CALLER, PeId(0), 1, SAME, true).await;
        assert_eq!(called.expect("welcome"), (CALLED.store, CALLED.clock_ms));
        assert_eq!(answered.expect("a member"), PeId(1));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_key_is_refused_and_neither_side_goes_on() {
        let (called, answered) = both(CALLER, PeId(0), 1, (SAME.0, "0123456789abcdeF"), true).await;
        assert!(matches!((called, answered), (Err(HandshakeError::Key), Err(HandshakeError::Key))));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_is_not_meant_is_told_what_is_wrong() {
        use HandshakeError::{Cluster, Epoch, List, NoMember, Pe};
        let stranger = Identity { cluster: 8, ..CALLER };
        let (called, answered) = both(stranger, PeId(0), 1, SAME, true).await;
        assert!(matches!(called, Err(Cluster { found: 7, expected: 8 })), "{called:?}");
        assert!(matches!(answered, Err(Cluster { found: 8, expected: 7 })), "{answered:?}");
        let (called, _) = both(CALLER, PeId(2), 1, SAME, true).await;
        assert!(matches!(called, Err(Pe { found: PeId(0), expected: PeId(2) })), "{called:?}");
        let (called, _) = both(CALLER, PeId(0), 2, SAME, true).await;
        assert!(matches!(called, Err(Epoch { found: 1, expected: 2 })), "{called:?}");
        let of_other_list = Identity { list: ListMark { digest: 8, ..LIST }, ..CALLER };
        let (called, answered) = both(of_other_list, PeId(0), 1, SAME, true).await;
        assert!(matches!((&called, &answered), (Err(List(4)), Err(List(4)))), "{called:?}, {answered:?}");
        for fine in [ListMark { version: 5, digest: 8 }, ListMark { digest: 0, ..LIST }] {
            let (called, _) = both(Identity { list: fine, ..CALLER }, PeId(0), 1, SAME, true).await;
            called.expect("a newer list, or one that is not known, is no contradiction");
        }
        let (called, _) = both(CALLER, PeId(0), 1, SAME, false).await;
        assert!(matches!(called, Err(NoMember(PeId(1)))), "{called:?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_store_that_the_other_does_not_know_is_told_to_both_once_the_key_was_shown() {
        let stranger = Identity { store: Credentials { birth: 9, ..STORE }, ..CALLER };
        let (called, answered) = both(stranger, PeId(0), 1, SAME, true).await;
        assert!(matches!(called, Err(HandshakeError::Displaced(PeId(0)))), "{called:?}");
        assert!(matches!(answered, Err(HandshakeError::OtherStore(PeId(1)))), "{answered:?}");
        let (called, _) = both(stranger, PeId(0), 1, (SAME.0, "0123456789abcdeF"), true).await;
        assert!(matches!(called, Err(HandshakeError::Key)), "{called:?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_version_and_no_node_at_all_are_told_apart() {
        for (at, is_version) in [(0, false), (8, true), (9, true)] {
            let (from, to) = (PeId(1), PeId(0));
            let hello = Hello {
                versions: VERSIONS,
                verdict: 0,
                epoch: 1,
                cluster: 7,
                from,
                to,
                store: STORE,
                list: LIST,
                clock_ms: 0,
            };
            let mut hello = hello.encode().expect("chance");
            hello[at] ^= 0x40;
            let (mut one, mut two) = tokio::io::duplex(256);
            one.write_all(&hello).await.expect("room");
            let refused = answer(&mut two, CALLED, &key(SAME.0), |_| true, async |_, _| Some(true)).await;
            assert_eq!(matches!(refused, Err(HandshakeError::Version { .. })), is_version, "{refused:?}");
            assert_eq!(matches!(refused, Err(HandshakeError::Stranger)), !is_version, "{refused:?}");
        }
    }
}
