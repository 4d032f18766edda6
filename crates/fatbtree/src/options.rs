//! Settings of a node.

use std::time::Duration;

#[cfg(feature = "baseline-protocols")]
use crate::baseline::Protocol;
use crate::error::Error;
use crate::placement::Placement;

/// Most that `leaf_bytes` can be: a leaf may grow somewhat beyond it before it is split.
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
    /// A leaf with more rows than this is split.
    pub leaf_rows: usize,
    /// A leaf with more bytes of keys and values than this is split. A whole leaf must fit into a frame to be
    /// moved.
    pub leaf_bytes: usize,
    /// Entries of an index page.
    pub index_entries: usize,
    /// `true` if a request that needs an index page of another PE goes to the one that owns the leaf, or to
    /// any that has a copy (the paper).
    #[cfg(feature = "baseline-protocols")]
    pub is_choice_by_range: bool,
    /// A request is answered, or refused, after this time: shorter than the time-outs of the usual clients. A
    /// split or move has twice [`move_timeout`](Self::move_timeout) besides, a step of an open transaction at
    /// least [`open_timeout`](Self::open_timeout).
    pub request_timeout: Duration,
    /// A read without an answer for this time is sent again: reading twice does no harm.
    pub read_timeout: Duration,
    /// Longest time for which writers wait for a leaf in flight; then the leaf stays where it was.
    pub move_timeout: Duration,
    /// Interval of the heartbeats by which nodes tell each other that they are alive; `None`: none at all. A
    /// node is down after [`MISSED_HEARTBEATS`](crate::MISSED_HEARTBEATS) intervals without a message of it,
    /// until the next one comes.
    pub heartbeat_interval: Option<Duration>,
    /// Most that the clocks of two nodes may differ; beyond it they refuse each other. Of an application that
    /// judges rows by the time.
    pub max_clock_offset: Duration,
    /// Interval at which the decision about a move is requested, or repeated.
    pub remind_interval: Duration,
    /// A transaction that is open for this time is rolled back.
    pub open_timeout: Duration,
    /// Transactions that may be open at this node at once.
    pub most_open: usize,
    /// A snapshot that a reader of several nodes has opened here is closed after this time without use.
    pub reader_timeout: Duration,
    /// Raised when another machine takes this PE over: frames for the old one are refused.
    pub epoch: u32,
    /// The store is new, and what an older one of this PE had is lost for good: the others may take the new
    /// one in its place. Without effect once the store has its keys.
    pub is_loss_accepted: bool,
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
        }
    }
}

impl Options {
    /// Placement of the copies of index pages.
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

    /// Checks that the settings fit together.
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
