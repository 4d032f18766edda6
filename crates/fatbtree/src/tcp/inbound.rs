//! Inbound connections: the connections over which other nodes send to this node, at most one for each node.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::id::PeId;

/// The inbound connection of each member that has one.
#[derive(Default)]
pub(super) struct InboundConnections {
    connections: RefCell<BTreeMap<PeId, Inbound>>,
    next: Cell<u64>,
}

/// An inbound connection. Dropping it ends the connection.
struct Inbound {
    number: u64,
    _stay: oneshot::Sender<()>,
}

impl InboundConnections {
    /// Registers the connection of a member and ends an earlier one (LISTEN-2). Returns its number, and a
    /// receiver that ends when the connection must end.
    pub(super) fn admit(&self, pe: PeId) -> (u64, oneshot::Receiver<()>) {
        let (stay, gone) = oneshot::channel();
        let number = self.next.get();
        self.next.set(number + 1);
        self.connections.borrow_mut().insert(pe, Inbound { number, _stay: stay });
        (number, gone)
    }

    /// Removes a connection that ended, unless a newer one replaced it.
    pub(super) fn left(&self, pe: PeId, number: u64) {
        let mut connections = self.connections.borrow_mut();
        if connections.get(&pe).is_some_and(|connection| connection.number == number) {
            connections.remove(&pe);
        }
    }

    /// Ends the connection of a member, if it has one.
    pub(super) fn end(&self, pe: PeId) {
        self.connections.borrow_mut().remove(&pe);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn a_newer_connection_ends_the_older_and_is_not_ended_by_its_leaving() {
        let (inbound, pe) = (InboundConnections::default(), PeId(3));
        let (first, mut first_gone) = inbound.admit(pe);
        let (second, mut second_gone) = inbound.admit(pe);
        assert_eq!(first_gone.try_recv(), Err(TryRecvError::Closed));
        inbound.left(pe, first);
        assert_eq!(second_gone.try_recv(), Err(TryRecvError::Empty));
        inbound.end(pe);
        assert_eq!(second_gone.try_recv(), Err(TryRecvError::Closed));
        inbound.left(pe, second);
    }
}
