//! Members of a cluster and their addresses: a file at every node, or a service.
//!
//! The list does not determine the location of *keys*; leaves do. The list contains the nodes to contact, and
//! the key ranges of the nodes when the cluster was created.
//!
//! ```
//! use azekura_fatbtree::Membership;
//! let text = r#"
//!     cluster = "00000000000000a7"    # its name: 16 hexadecimal digits
//!     key_file = "cluster.key"        # the shared key of the nodes; beside this file
//!     version = 3                     # of this list: grows with each change
//!
//!     [[node]]
//!     id = 0
//!     address = "127.0.0.1:7100"      # where other nodes reach it
//!     clients = "127.0.0.1:6379"      # address for clients
//!     from = ""                       # when the cluster began, its keys began here
//!
//!     [[node]]
//!     id = 1
//!     address = "127.0.0.1:7101"
//!     from = "m"
//!
//!     [[node]]                        # came later, with no keys
//!     id = 2
//!     address = "127.0.0.1:7102"
//!
//!     [[node]]                        # has left; its number is not used again
//!     id = 3
//!     address = "127.0.0.1:7103"
//!     left = true
//! "#;
//! let members = Membership::parse(text)?;
//! assert_eq!(members.nodes().len(), 3);
//! # Ok::<(), azekura_fatbtree::MembershipError>(())
//! ```

mod meta;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::id::PeId;
use crate::key::Key;
use crate::store::Founding;

pub use meta::{FileMeta, Meta};

/// The list of members: the nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    cluster: u64,
    key_file: PathBuf,
    version: u64,
    nodes: Vec<Member>,
    left: Vec<Member>,
}

/// A member: a node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Number of the node.
    #[serde(rename = "id")]
    pub pe: PeId,
    /// Address for other nodes.
    pub address: SocketAddr,
    /// Address for clients, if the list has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<SocketAddr>,
    /// First key of the node's range in a new cluster; `None` for a node that joined later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// `true` if the node has left the cluster. The entry stays in the list, so that its number is not reused
    /// and the initial key ranges stay known.
    #[serde(default, skip_serializing_if = "is_false")]
    pub left: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: String,
    key_file: PathBuf,
    #[serde(default = "first")]
    version: u64,
    #[serde(default)]
    node: Vec<Member>,
}

/// Returns the version of a list that contains no version.
const fn first() -> u64 {
    1
}

/// Identifier of a list of members: its version and a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListMark {
    /// Version of the list.
    pub version: u64,
    /// Digest of the content (CRC-32C), to distinguish lists with the same version; 0 if the content is
    /// unknown.
    pub digest: u32,
}

impl ListMark {
    /// Returns `true` if both have the same version and different content: a list was changed without raising
    /// its version.
    #[must_use]
    pub const fn contradicts(self, other: Self) -> bool {
        let is_known = self.digest != 0 && other.digest != 0;
        is_known && self.version == other.version && self.digest != other.digest
    }
}

/// The reason that a list of members is not valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The file cannot be read or written.
    #[error("{path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The list is malformed.
    #[error("not a list of members")]
    Format(#[from] toml::de::Error),
    /// The list is contradictory.
    #[error("list of members: {0}")]
    Content(String),
    /// The list was changed meanwhile. Read it again.
    #[error(
        "wrong version: the list of members now has version {found}, but the change is to version \
         {expected}; read the list again"
    )]
    Stale {
        /// The present version.
        found: u64,
        /// The version that the change was made from.
        expected: u64,
    },
}

impl Membership {
    /// Creates the first version of the list of a cluster.
    ///
    /// # Errors
    ///
    /// [`MembershipError::Content`], for instance if two nodes have the same number or no node has the first
    /// keys.
    pub fn new(cluster: u64, key_file: PathBuf, nodes: Vec<Member>) -> Result<Self, MembershipError> {
        Self::of_version(first(), cluster, key_file, nodes)
    }

    fn of_version(
        version: u64,
        cluster: u64,
        key_file: PathBuf,
        mut nodes: Vec<Member>,
    ) -> Result<Self, MembershipError> {
        nodes.sort_by_key(|member| member.pe);
        let wrong = |what: String| Err(MembershipError::Content(what));
        if let Some(member) = nodes.iter().find(|member| member.pe > PeId::MAX) {
            return wrong(format!("id {} is above {}", member.pe.0, PeId::MAX.0));
        }
        if let Some(two) = nodes.windows(2).find(|two| two[0].pe == two[1].pe) {
            return wrong(format!("two nodes have id {}", two[0].pe.0));
        }
        let mut addresses = BTreeSet::new();
        if let Some(member) = nodes.iter().find(|member| !member.left && !addresses.insert(member.address)) {
            return wrong(format!("two nodes have address {}", member.address));
        }
        let mut firsts: Vec<_> = nodes.iter().filter_map(|member| member.from.as_ref()).collect();
        firsts.sort_unstable();
        if firsts.first().is_none_or(|first| !first.is_empty()) {
            return wrong("one node needs from = \"\": the first keys".to_owned());
        }
        if let Some(two) = firsts.windows(2).find(|two| two[0] == two[1]) {
            return wrong(format!("the keys of two nodes begin at {:?}", two[0]));
        }
        let (left, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|member| member.left);
        if nodes.is_empty() {
            return wrong("all nodes have left".to_owned());
        }
        Ok(Self { cluster, key_file, version, nodes, left })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub fn parse(text: &str) -> Result<Self, MembershipError> {
        let File { cluster, key_file, version, node } = toml::from_str(text)?;
        let name = (cluster.len() == 16).then(|| u64::from_str_radix(&cluster, 16).ok()).flatten();
        let name = name.ok_or_else(|| {
            MembershipError::Content(format!("cluster = {cluster:?} is not 16 hexadecimal digits"))
        })?;
        Self::of_version(version, name, key_file, node)
    }

    /// Returns the text of the file, with `key_file` as the path of the key file.
    ///
    /// # Panics
    ///
    /// Never, because the list is plain data.
    #[must_use]
    pub fn to_text(&self, key_file: &Path) -> String {
        let file = File {
            cluster: format!("{:016x}", self.cluster),
            key_file: key_file.to_owned(),
            version: self.version,
            node: self.all().cloned().collect(),
        };
        let mut text = String::new();
        let _ = writeln!(text, "# The nodes of a cluster. Every node has this file and the key file.");
        text + &toml::to_string(&file).expect("plain data, tables last")
    }

    /// Returns the id of the cluster.
    #[must_use]
    pub const fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Returns the path of the file with the key that the nodes share.
    #[must_use]
    pub fn key_file(&self) -> &Path {
        &self.key_file
    }

    /// Returns the version of the list, which grows with each change.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the version with a digest that distinguishes lists of the same version. The path of the key
    /// file does not affect the digest.
    #[must_use]
    pub fn mark(&self) -> ListMark {
        let text = self.to_text(Path::new(""));
        ListMark { version: self.version, digest: crc32c::crc32c(text.as_bytes()).max(1) }
    }

    /// Returns the nodes that have left the cluster.
    #[must_use]
    pub fn left(&self) -> &[Member] {
        &self.left
    }

    fn all(&self) -> impl Iterator<Item = &Member> {
        self.nodes.iter().chain(&self.left)
    }

    /// Returns a number that no node has had.
    #[must_use]
    pub fn next_number(&self) -> PeId {
        PeId(self.all().map(|member| member.pe.0).max().map_or(0, |last| last.saturating_add(1)))
    }

    /// Returns the members of the cluster, ordered by number.
    #[must_use]
    pub fn nodes(&self) -> &[Member] {
        &self.nodes
    }

    /// Returns the member with this number.
    #[must_use]
    pub fn node(&self, pe: PeId) -> Option<&Member> {
        self.nodes.iter().find(|member| member.pe == pe)
    }

    /// Returns the next version of the list, with one more node. The new node has no keys yet.
    ///
    /// # Errors
    ///
    /// [`MembershipError::Content`]: the number or the address is already used.
    pub fn with(&self, member: Member) -> Result<Self, MembershipError> {
        let nodes = self.all().cloned().chain([member]).collect();
        Self::of_version(self.version + 1, self.cluster, self.key_file.clone(), nodes)
    }

    /// Returns the next version of the list, in which a node has left.
    ///
    /// # Errors
    ///
    /// [`MembershipError::Content`]: there is no such node, or it is the last one.
    pub fn without(&self, pe: PeId) -> Result<Self, MembershipError> {
        if self.node(pe).is_none() {
            return Err(MembershipError::Content(format!("node {} does not belong to it", pe.0)));
        }
        let leaves = |member: &Member| Member { left: member.left || member.pe == pe, ..member.clone() };
        let nodes = self.all().map(leaves).collect();
        Self::of_version(self.version + 1, self.cluster, self.key_file.clone(), nodes)
    }

    /// Returns the initial distribution of keys, for the store of one node.
    #[must_use]
    pub fn founding(&self, pe: PeId) -> Founding {
        let share = |member: &Member| Some((Key::from(member.from.as_ref()?.as_bytes()), member.pe));
        let mut shares: Vec<_> = self.all().filter_map(share).collect();
        shares.sort_unstable();
        Founding { cluster: self.cluster, pe, shares }
    }
}

/// Returns the first keys of `nodes` ranges, so that keys of letters and digits are distributed evenly by
/// their first byte.
#[must_use]
pub fn even_shares(nodes: u16) -> Vec<String> {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let (nodes, letters) = (u64::from(nodes.max(1)), ALPHABET.len() as u64);
    // One letter is enough for up to 62 nodes; more nodes need two.
    let begin = |node: u64| {
        if node == 0 {
            return String::new();
        }
        let place = node * letters * letters / nodes;
        let (first, second) = ((place / letters) as usize, (place % letters) as usize);
        let mut key = String::from(char::from(ALPHABET[first]));
        if nodes > letters {
            key.push(char::from(ALPHABET[second]));
        }
        key
    };
    (0..nodes).map(begin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn member(pe: u16, from: Option<&str>) -> Member {
        let address = SocketAddr::from(([127, 0, 0, 1], 7100 + pe));
        Member { pe: PeId(pe), address, clients: None, from: from.map(str::to_owned), left: false }
    }

    pub(super) fn of(nodes: &[(u16, Option<&str>)]) -> Result<Membership, MembershipError> {
        let nodes = nodes.iter().map(|(pe, from)| member(*pe, *from)).collect();
        Membership::new(7, "cluster.key".into(), nodes)
    }

    #[test]
    fn a_list_is_written_and_read_back() {
        let members = of(&[(1, Some("m\"\n")), (0, Some("")), (5, None)]).expect("fine");
        let read = Membership::parse(&members.to_text(Path::new("cluster.key"))).expect("fine");
        assert_eq!(read, members);
        let founding = read.founding(PeId(5));
        assert_eq!(founding.shares, [(b"".to_vec(), PeId(0)), (b"m\"\n".to_vec(), PeId(1))]);
        assert_eq!(founding.heads(), []);
    }

    #[test]
    fn a_list_grows_by_versions_and_a_removed_node_keeps_number_and_share() {
        let members = of(&[(0, Some("")), (1, Some("m"))]).expect("fine");
        let fewer = members.without(PeId(1)).expect("it is there");
        assert_eq!((members.version(), fewer.version(), fewer.nodes().len()), (1, 2, 1));
        assert_eq!(fewer.founding(PeId(0)), members.founding(PeId(0)));
        assert_eq!(fewer.next_number(), PeId(2));
        let again = fewer.with(member(1, None)).expect_err("its number was given");
        assert!(again.to_string().contains("two nodes have id 1"), "{again}");
        let more = fewer.with(Member { address: member(1, None).address, ..member(2, None) });
        assert_eq!(more.expect("its address is free").version(), 3);
        assert!(fewer.without(PeId(0)).expect_err("the last").to_string().contains("all nodes have left"));
        assert!(fewer.without(PeId(1)).is_err(), "it has left");
        assert_eq!(Membership::parse(&fewer.to_text(Path::new("cluster.key"))).expect("fine"), fewer);
    }

    #[test]
    fn lists_of_one_version_are_distinguished_by_their_nodes() {
        let members = of(&[(0, Some("")), (1, Some("m"))]).expect("fine");
        let same = Membership { key_file: "elsewhere/other.key".into(), ..members.clone() };
        assert_eq!(same.mark(), members.mark());
        let moved = |list: &Membership| {
            let mut nodes = list.nodes.clone();
            nodes[1].address.set_port(9);
            Membership { nodes, ..list.clone() }
        };
        assert!(moved(&members).mark().contradicts(members.mark()));
        let newer = members.without(PeId(1)).expect("it is there");
        assert!(!newer.mark().contradicts(members.mark()), "it says that it is another");
        assert!(
            !ListMark { version: 1, digest: 0 }.contradicts(members.mark()),
            "nobody knows what is in it"
        );
    }

    #[test]
    fn invalid_lists_are_refused_by_name() {
        let text = |nodes| of(nodes).expect_err("it cannot be").to_string();
        assert!(text(&[(0, Some("")), (0, Some("m"))]).contains("two nodes have id 0"));
        assert!(text(&[(0, Some("a"))]).contains("first keys"));
        assert!(text(&[]).contains("first keys"));
        assert!(text(&[(0, Some("")), (1, Some("m")), (2, Some("m"))]).contains("begin at \"m\""));
        assert!(text(&[(0, Some("")), (40_000, None)]).contains("above"));
        let members = of(&[(0, Some(""))]).expect("fine");
        assert!(members.with(Member { pe: PeId(1), ..member(0, None) }).is_err(), "the address is taken");
        for wrong in ["", "cluster = \"7\"\nkey_file = \"k\"", "cluster = 7", "[[node]]\nid = 70000"] {
            assert!(Membership::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn shares_are_in_order_and_differ() {
        assert_eq!(even_shares(3), ["", "K", "f"]);
        for nodes in [1, 2, 16, 62, 63, 1000] {
            let shares = even_shares(nodes);
            assert_eq!(shares.len(), usize::from(nodes));
            assert!(shares.is_sorted_by(|one, two| one < two), "{nodes}");
        }
    }
}
