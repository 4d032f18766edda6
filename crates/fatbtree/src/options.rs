//! Settings of a node.

use std::time::Duration;

#[cfg(feature = "baseline-protocols")]
use crate::baseline::Protocol;
use crate::error::Error;
use crate::placement::Placement;

/// Maximum of `leaf_bytes`: a leaf may grow beyond `leaf_bytes` before it is split, and must still fit into a
/// frame.
const MAX_LEAF_BYTES: usize = crate::frame::MAX_BYTES / 2;

/// Settings of a node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Assignment of index pages to PEs.
    #[cfg(feature = "baseline-protocols")]
    pub placement: Placement,
    /// Protocol of searches and updates in the index. Moves need [`Protocol::Lazy`].
    #[cfg(feature = "baseline-protocols")]
    pub protocol: Protocol,
    /// Number of rows beyond which a leaf is split.
    pub leaf_rows: usize,
    /// Number of bytes of keys and values beyond which a leaf is split. A whole leaf must fit into a frame to
    /// be moved.
    pub leaf_bytes: usize,
    /// Maximum of entries of an index page.
    pub index_entries: usize,
    /// `true`: a request that needs an index page of another PE goes to the PE that owns the leaf. `false`:
    /// it goes to any PE with a copy of the page, as in the paper.
    #[cfg(feature = "baseline-protocols")]
    pub is_choice_by_range: bool,
    /// Time after which a request is answered or refused; shorter than the timeouts of common clients. A
    /// split or a move has additionally twice [`move_timeout`](Self::move_timeout). A step of an open
    /// transaction has at least [`open_timeout`](Self::open_timeout).
    pub request_timeout: Duration,
    /// Time after which an unanswered read is sent again. Repeating a read is harmless.
    pub read_timeout: Duration,
    /// Longest time for which writers wait for a leaf in flight. After this time the move is aborted.
    pub move_timeout: Duration,
    /// Interval of the heartbeats between nodes; `None` disables heartbeats. A node is down after
    /// [`MISSED_HEARTBEATS`](crate::MISSED_HEARTBEATS) intervals without a message from it, until its next
    /// message.
    pub heartbeat_interval: Option<Duration>,
    /// Largest allowed offset between the clocks of two nodes. Nodes with a larger offset refuse each other.
    /// Used only if the application lets rows expire by a clock.
    pub max_clock_offset: Duration,
    /// Interval at which the decision about a move is requested, or repeated.
    pub remind_interval: Duration,
    /// Time after which an open transaction is rolled back.
    pub open_timeout: Duration,
    /// Maximum of transactions that are open at this node at once.
    pub most_open: usize,
    /// Time without use after which the snapshot of a reader of several nodes is closed at this node.
    pub reader_timeout: Duration,
    /// Epoch of this PE. Raised when another machine takes over the PE: frames for the old epoch are refused.
    pub epoch: u32,
    /// `true` if the store is new and the rows of this PE's older store are permanently lost: the other nodes
    /// then accept the new store. No effect once the store has its keys.
    pub is_loss_accepted: bool,
    /// `true` if this node serves a restored or compacted store before the other nodes have confirmed that it
    /// still owns its leaves. No effect after it has served the store once.
    pub is_copy_accepted: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            #[cfg(feature = "baseline-protocols")]
            placement: Placement::FatBtree,
            #[cfg(feature = "baseline-protocols")]
            protocol: Protocol::Lazy,
            leaf_rows: 4096,
            leaf_bytes: 4 << 20,
            index_entries: 256,
            #[cfg(feature = "baseline-protocols")]
            is_choice_by_range: true,
            request_timeout: Duration::from_millis(1500),
            read_timeout: Duration::from_millis(500),
            move_timeout: Duration::from_secs(2),
            heartbeat_interval: Some(Duration::from_millis(500)),
            max_clock_offset: Duration::from_secs(2),
            remind_interval: Duration::from_millis(200),
            open_timeout: Duration::from_secs(10),
            most_open: 256,
            reader_timeout: Duration::from_secs(600),
            epoch: 1,
            is_loss_accepted: false,
            is_copy_accepted: false,
        }
    }
}

impl Options {
    /// Returns the placement of the copies of index pages.
    pub(crate) const fn placement(&self) -> Placement {
        #[cfg(feature = "baseline-protocols")]
        {
            self.placement
        }
        #[cfg(not(feature = "baseline-protocols"))]
        {
            Placement::FatBtree
        }
    }

    /// Checks that the settings are consistent.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] names the setting to change.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Settings(what.to_owned()));
        if self.leaf_rows < 2 {
            return refuse("leaf_rows: a leaf must hold two rows, or it cannot be split");
        }
        if !(1..=MAX_LEAF_BYTES).contains(&self.leaf_bytes) {
            return refuse(
                "leaf_bytes: more than half a frame between nodes, so a leaf could not be moved; or 0",
            );
        }
        if self.index_entries < 3 {
            return refuse("index_entries: an index page must hold three entries, or it cannot be split");
        }
        if self.heartbeat_interval.is_some_and(|interval| interval.is_zero()) {
            return refuse("heartbeat_interval: 0; give a time above 0, or none");
        }
        if self.read_timeout > self.request_timeout {
            return refuse("read_timeout: longer than request_timeout, so a read would never be sent again");
        }
        Ok(())
    }
}
