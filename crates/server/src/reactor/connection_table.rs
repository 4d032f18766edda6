//! The connections of a reactor, indexed by their poll tokens, and a queue of the connections with work, in
//! service order.

use std::collections::VecDeque;
use std::time::Instant;

use crate::connection::Connection;

/// State of a connection; see the table at the head of `reactor`.
#[derive(Debug)]
enum Slot {
    Free,
    Present {
        connection: Box<Connection>,
        is_queued: bool,
    },
    /// A thread serves the connection; `missed`: events that arrived meanwhile.
    Taken {
        missed: MissedEvent,
    },
}

/// Most important event that arrived while a thread had the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MissedEvent {
    #[default]
    None,
    /// The socket accepts more bytes of replies.
    Room,
    /// Input has arrived.
    Input,
    /// The client closed the connection, or an error occurred; input may have arrived before.
    End,
}

/// Table of connections; the token of a connection is the index of its slot.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Number of slots in state [`Slot::Present`].
    present: usize,
    /// Tokens of the present connections with work, each at most once.
    queue: VecDeque<usize>,
}

impl ConnectionTable {
    /// Reserves an unused token.
    pub(super) fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        })
    }

    /// Frees a token.
    pub(super) fn release(&mut self, token: usize) {
        self.slots[token] = Slot::Free;
        self.free.push(token);
    }

    /// Returns a connection to its slot, and queues it if it has work.
    pub(super) fn put(&mut self, token: usize, connection: Box<Connection>, is_queued: bool) {
        if is_queued {
            self.queue.push_back(token);
        }
        self.slots[token] = Slot::Present { connection, is_queued };
        self.present += 1;
    }

    /// Removes the next queued connection from its slot.
    pub(super) fn take_next(&mut self) -> Option<Box<Connection>> {
        let token = self.queue.pop_front()?;
        Some(self.take(token))
    }

    /// Removes a present connection from its slot.
    fn take(&mut self, token: usize) -> Box<Connection> {
        match std::mem::replace(&mut self.slots[token], Slot::Taken { missed: MissedEvent::None }) {
            Slot::Present { connection, .. } => {
                self.present -= 1;
                connection
            }
            other => unreachable!("only those that are here are taken, not {other:?}"),
        }
    }

    /// Removes a present connection that has no work and for which `is_wanted` returns `false`. Its slot
    /// becomes [`Slot::Taken`].
    pub(super) fn take_unwanted(
        &mut self,
        token: usize,
        is_wanted: impl FnOnce(&Connection) -> bool,
    ) -> Option<Box<Connection>> {
        match &self.slots[token] {
            Slot::Present { connection, is_queued: false } if !is_wanted(connection) => {
                Some(self.take(token))
            }
            _ => None,
        }
    }

    /// Records an event: input, end of the connection, or space for replies. Returns `true` if it is the
    /// first event that a taken connection misses (REACT-4).
    pub(super) fn on_event(&mut self, token: usize, has_input: bool, is_last: bool) -> bool {
        match self.slots.get_mut(token) {
            Some(Slot::Present { connection, is_queued }) => {
                if has_input || is_last {
                    connection.note_input(is_last);
                }
                let is_wanted = connection.is_ready() || connection.has_unsent();
                if is_wanted && !std::mem::replace(is_queued, true) {
                    self.queue.push_back(token);
                }
                false
            }
            Some(Slot::Taken { missed }) => {
                let now = match (has_input, is_last) {
                    (_, true) => MissedEvent::End,
                    (true, false) => MissedEvent::Input,
                    (false, false) => MissedEvent::Room,
                };
                std::mem::replace(missed, now.max(*missed)) == MissedEvent::None
            }
            // An event of a socket that has been closed since.
            Some(Slot::Free) | None => false,
        }
    }

    /// Returns the missed event of a taken connection.
    pub(super) fn missed(&self, token: usize) -> MissedEvent {
        match self.slots.get(token) {
            Some(Slot::Taken { missed }) => *missed,
            _ => MissedEvent::None,
        }
    }

    /// Queues the connections with an expired deadline; returns the next deadline.
    pub(super) fn queue_due(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (token, slot) in self.slots.iter_mut().enumerate() {
            let Slot::Present { connection, is_queued } = slot else { continue };
            let Some(deadline) = connection.deadline() else { continue };
            if deadline > now {
                next = Some(next.map_or(deadline, |at| at.min(deadline)));
            } else if !std::mem::replace(is_queued, true) {
                self.queue.push_back(token);
            }
        }
        next
    }

    /// Returns the number of connections with work.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of connections in their slots.
    pub(super) const fn present(&self) -> usize {
        self.present
    }

    /// Returns the number of slots; every token is smaller.
    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }
}
