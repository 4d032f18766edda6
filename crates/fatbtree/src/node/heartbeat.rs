//! Heartbeats: notice a node with a stopped process, or with a cut network that left the connection standing.
//!
//! - **BEAT-1** Each node sends a heartbeat to every other member once per `heartbeat_interval`. Any message
//!   counts as a sign of life.
//! - **BEAT-2** Silence is counted in ticks of this node, not by the clock: a node that was stopped itself
//!   does not take the others for silent when it goes on.
//! - **BEAT-3** A node that was heard once and has been silent for [`MISSED_HEARTBEATS`] ticks is down until
//!   it is heard again: requests that were sent to it end as if the connection had ended, and requests for
//!   its keys are refused at once.
//! - **BEAT-4** A heartbeat tells the sender's clock. A node with a clock that is too far off is down until a
//!   later heartbeat tells another time.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::clock_offset::{self, ClockOffset};
use crate::id::PeId;
use crate::message::Message;
use crate::node::Node;

/// Ticks without a sign of life after which a node is down.
pub const MISSED_HEARTBEATS: u32 = 4;

/// Ticks since the last message of each node; a node without any message has no entry.
#[derive(Default)]
pub(super) struct Heartbeats {
    missed: RefCell<BTreeMap<PeId, u32>>,
    /// Nodes with clocks that are too far off.
    offsets: RefCell<BTreeMap<PeId, ClockOffset>>,
}

impl Heartbeats {
    fn is_silent(&self, pe: PeId) -> bool {
        self.missed.borrow().get(&pe).is_some_and(|missed| *missed >= MISSED_HEARTBEATS)
    }
}

impl Node {
    /// Sends heartbeats and counts those of the others, until the node ends. Without effect if the options
    /// have no interval.
    pub(super) fn send_heartbeats(&self) {
        let Some(interval) = self.options.heartbeat_interval else { return };
        // Not by `spawn`, which would keep the node alive.
        let (node, clock) = (self.itself.clone(), self.world.clock.clone());
        self.world.tasks.spawn(Box::pin(async move {
            while let Some(node) = node.upgrade() {
                node.beat();
                drop(node);
                clock.sleep(interval).await;
            }
        }));
    }

    fn beat(&self) {
        for pe in self.others() {
            // A frame for a link that is down would be lost, and end the other node's connection (LINK-5).
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

    /// A message of this node has come.
    pub(super) fn heard(&self, from: PeId) {
        let missed = self.heartbeats.missed.borrow_mut().insert(from, 0);
        if missed.is_some_and(|missed| missed >= MISSED_HEARTBEATS) {
            tracing::info!(node = from.0, missed, "node is heard again");
        }
    }

    /// Records the time of another node.
    pub(super) fn heard_clock(&self, from: PeId, clock_ms: Option<u64>) {
        let (Some(told), Some(now)) = (clock_ms, self.application.clock_ms()) else { return };
        let offset = clock_offset::judge_message(told, now, self.options.max_clock_offset);
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

    /// Returns how far a node's clock is off, if that is too far.
    pub(crate) fn clock_offset(&self, pe: PeId) -> Option<ClockOffset> {
        self.heartbeats.offsets.borrow().get(&pe).copied()
    }

    /// Judges another node's time, sent in a handshake between two moments of this node's clock.
    pub(crate) fn judge_clock(&self, told_ms: u64, between_ms: (u64, u64)) -> Option<ClockOffset> {
        clock_offset::judge(told_ms, between_ms, self.options.max_clock_offset)
    }

    /// The time of the application; 0 without one.
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

    /// Returns whether a node is known to be unreachable: the last attempt to connect failed, or it is silent
    /// (BEAT-3). `false` while it is being connected.
    #[must_use]
    pub fn is_down(&self, pe: PeId) -> bool {
        self.world.net.is_down(pe) || self.heartbeats.is_silent(pe) || self.clock_offset(pe).is_some()
    }
}
