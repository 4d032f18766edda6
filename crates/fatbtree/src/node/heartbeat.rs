//! Heartbeats: detect a node with a stopped process, or with a broken network and a connection that seems
//! open.
//!
//! - **BEAT-1** Each node sends a heartbeat to every other member once per `heartbeat_interval`. Any message
//!   counts as a heartbeat.
//! - **BEAT-2** Silence is counted in ticks of this node, not by the clock. So a node that was suspended does
//!   not treat the others as silent when it continues.
//! - **BEAT-3** A node that has sent a message before and has been silent for [`MISSED_HEARTBEATS`] ticks is
//!   down until its next message. Requests that were sent to it end as if the connection had ended, and
//!   requests for its keys are refused at once.
//! - **BEAT-4** A heartbeat contains the sender's clock. A node with a clock that differs too much is down
//!   until a later heartbeat shows an allowed offset.
//! - **BEAT-5** A process that was suspended for at least the time limit of a request closes the connections
//!   of the other nodes without reading them. Their requests may have timed out. A write must not run after
//!   its client got an unknown outcome and has written again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock_offset::{self, ClockOffset};
use crate::id::PeId;
use crate::message::Message;
use crate::node::Node;

/// Number of ticks without a message after which a node is down.
pub const MISSED_HEARTBEATS: u32 = 4;

/// Ticks since the last message of each node; a node without any message has no entry.
#[derive(Default)]
pub(super) struct Heartbeats {
    missed: RefCell<BTreeMap<PeId, u32>>,
    /// Nodes with clocks that differ too much.
    offsets: RefCell<BTreeMap<PeId, ClockOffset>>,
    /// Time at which the node's thread was last seen running.
    ran_at: Cell<Duration>,
    /// Number of times that the process did not run for the time of a request.
    suspensions: Cell<u64>,
}

impl Heartbeats {
    fn is_silent(&self, pe: PeId) -> bool {
        self.missed.borrow().get(&pe).is_some_and(|missed| *missed >= MISSED_HEARTBEATS)
    }
}

impl Node {
    /// Sends heartbeats and counts missing heartbeats of the other nodes, until this node ends. Does nothing
    /// if the options contain no interval.
    pub(super) fn send_heartbeats(&self) {
        let Some(interval) = self.options.heartbeat_interval else { return };
        // `spawn` is not used here, because it would keep the node alive.
        let (node, clock) = (self.itself.clone(), self.world.clock.clone());
        self.world.tasks.spawn(Box::pin(async move {
            while let Some(node) = node.upgrade() {
                node.beat();
                drop(node);
                clock.sleep(interval).await;
            }
        }));
    }

    /// Returns how many times the process did not run for the time of a request (BEAT-5). Call this at every
    /// frame; heartbeats call it in between.
    pub(crate) fn suspensions(&self) -> u64 {
        let Heartbeats { ran_at, suspensions, .. } = &self.heartbeats;
        let now = self.world.clock.now();
        let idle = now.saturating_sub(ran_at.replace(now));
        let is_suspension = |interval: Duration| idle >= self.options.request_timeout.max(2 * interval);
        if self.options.heartbeat_interval.is_some_and(is_suspension) {
            suspensions.set(suspensions.get() + 1);
        }
        suspensions.get()
    }

    fn beat(&self) {
        self.suspensions();
        for pe in self.others() {
            // A frame for a broken link would be lost, and would end the other node's connection (LINK-5).
            if self.world.net.is_up(pe) {
                self.send(pe, &Message::Heartbeat { clock_ms: self.application.clock_ms() });
            }
            let missed = self.heartbeats.missed.borrow_mut().get_mut(&pe).map(|missed| {
                *missed = missed.saturating_add(1);
                *missed
            });
            if missed == Some(MISSED_HEARTBEATS) {
                tracing::warn!(node = pe.0, missed, "a connected node does not answer: treated as down");
                self.lost_touch(pe);
            }
        }
    }

    /// Records a message from a node.
    pub(super) fn heard(&self, from: PeId) {
        let missed = self.heartbeats.missed.borrow_mut().insert(from, 0);
        if missed.is_some_and(|missed| missed >= MISSED_HEARTBEATS) {
            tracing::info!(node = from.0, missed, "node answers again");
        }
    }

    /// Records the clock of another node.
    pub(super) fn heard_clock(&self, from: PeId, clock_ms: Option<u64>) {
        let (Some(reported), Some(now)) = (clock_ms, self.application.clock_ms()) else { return };
        let offset = clock_offset::judge_message(reported, now, self.options.max_clock_offset);
        let before = match offset {
            Some(offset) => self.heartbeats.offsets.borrow_mut().insert(from, offset),
            None => self.heartbeats.offsets.borrow_mut().remove(&from),
        };
        match (before, offset) {
            (None, Some(offset)) => {
                let node = from.0;
                tracing::warn!(node, reason = %offset, "clock of a node is too far off: treated as down");
                self.lost_touch(from);
            }
            (Some(_), None) => tracing::info!(node = from.0, "clock of the node is right again"),
            _ => {}
        }
    }

    /// Returns the offset of a node's clock, if it is too large.
    pub(crate) fn clock_offset(&self, pe: PeId) -> Option<ClockOffset> {
        self.heartbeats.offsets.borrow().get(&pe).copied()
    }

    /// Checks the clock of another node, as read in a handshake between two times of this node's clock.
    pub(crate) fn judge_clock(&self, told_ms: u64, between_ms: (u64, u64)) -> Option<ClockOffset> {
        clock_offset::judge(told_ms, between_ms, self.options.max_clock_offset)
    }

    /// Returns the clock of the application; 0 if it uses none.
    pub(crate) fn clock_ms(&self) -> u64 {
        self.application.clock_ms().unwrap_or(0)
    }

    /// Returns the reason that no request can be sent to a node now; `None` if one can.
    pub(crate) fn trouble_with(&self, pe: PeId) -> Option<String> {
        if !self.world.net.is_up(pe) {
            return Some(self.world.net.trouble(pe));
        }
        if let Some(offset) = self.clock_offset(pe) {
            return Some(format!("{pe}: {offset}"));
        }
        self.heartbeats.is_silent(pe).then(|| format!("{pe}: no sign of life, though it is connected"))
    }

    /// Returns `true` if a node is known to be unreachable: the last attempt to connect failed, or the node
    /// is silent (BEAT-3). Returns `false` while a connection is being established.
    #[must_use]
    pub fn is_down(&self, pe: PeId) -> bool {
        self.world.net.is_down(pe) || self.heartbeats.is_silent(pe) || self.clock_offset(pe).is_some()
    }
}
