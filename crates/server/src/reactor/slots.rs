//! The connections of a reactor, by the tokens that their events are told by, and those of them that have
//! something to do, in the order in which they are served.

use std::collections::VecDeque;
use std::time::Instant;

use crate::connection::Connection;

/// State of a connection; see the table at the head of `reactor`.
#[derive(Debug)]
enum Slot {
    Free,
    Here {
        connection: Box<Connection>,
        is_queued: bool,
    },
    /// With a thread; what events came meanwhile.
    Away {
        missed: Missed,
    },
}

/// Events that came for a connection while it was away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Missed {
    #[default]
    None,
    /// There is room for replies.
    Room,
    /// Something has arrived.
    Input,
    /// Something has arrived, or not, and its end has.
    End,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots that are [`Slot::Here`].
    here: usize,
    /// Tokens of those that are here and queued, each once.
    queue: VecDeque<usize>,
}

impl Slots {
    /// A token that no connection has.
    pub(super) fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        })
    }

    /// Nobody has this token any more.
    pub(super) fn release(&mut self, token: usize) {
        self.slots[token] = Slot::Free;
        self.free.push(token);
    }

    /// Puts a connection into its slot, and into the queue if there is something to do for it.
    pub(super) fn put(&mut self, token: usize, connection: Box<Connection>, is_queued: bool) {
        if is_queued {
            self.queue.push_back(token);
        }
        self.slots[token] = Slot::Here { connection, is_queued };
        self.here += 1;
    }

    /// Takes the next connection that has something to do out of its slot.
    pub(super) fn take_next(&mut self) -> Option<Box<Connection>> {
        let token = self.queue.pop_front()?;
        Some(self.take(token))
    }

    /// Takes a connection that is here out of its slot.
    fn take(&mut self, token: usize) -> Box<Connection> {
        match std::mem::replace(&mut self.slots[token], Slot::Away { missed: Missed::None }) {
            Slot::Here { connection, .. } => {
                self.here -= 1;
                connection
            }
            other => unreachable!("only those that are here are taken, not {other:?}"),
        }
    }

    /// Takes out a connection that is here, has nothing to do and is none of those wanted; its slot is as one
    /// that is away.
    pub(super) fn take_unwanted(
        &mut self,
        token: usize,
        is_wanted: impl FnOnce(&Connection) -> bool,
    ) -> Option<Box<Connection>> {
        match &self.slots[token] {
            Slot::Here { connection, is_queued: false } if !is_wanted(connection) => Some(self.take(token)),
            _ => None,
        }
    }

    /// An event came: something has arrived, or its end has, or there is room for replies. Whether it is the
    /// first that the connection misses because it is away (REACT-4).
    pub(super) fn hear(&mut self, token: usize, has_input: bool, is_last: bool) -> bool {
        match self.slots.get_mut(token) {
            Some(Slot::Here { connection, is_queued }) => {
                if has_input || is_last {
                    connection.heard(is_last);
                }
                let is_wanted = connection.is_ready() || connection.has_unsent();
                if is_wanted && !std::mem::replace(is_queued, true) {
                    self.queue.push_back(token);
                }
                false
            }
            Some(Slot::Away { missed }) => {
                let now = match (has_input, is_last) {
                    (_, true) => Missed::End,
                    (true, false) => Missed::Input,
                    (false, false) => Missed::Room,
                };
                std::mem::replace(missed, now.max(*missed)) == Missed::None
            }
            // Of a socket that was closed since.
            Some(Slot::Free) | None => false,
        }
    }

    /// Returns the events that came for a connection that is away.
    pub(super) fn missed(&self, token: usize) -> Missed {
        match self.slots.get(token) {
            Some(Slot::Away { missed }) => *missed,
            _ => Missed::None,
        }
    }

    /// Queues the connections with a deadline that has passed; returns the next deadline.
    pub(super) fn queue_due(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for (token, slot) in self.slots.iter_mut().enumerate() {
            let Slot::Here { connection, is_queued } = slot else { continue };
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
    pub(super) const fn here(&self) -> usize {
        self.here
    }

    /// Tokens are below this.
    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }
}
