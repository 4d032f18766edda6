//! Connections to the node port that have not proved the shared key yet. There are at most
//! [`MAX_UNAUTHENTICATED`]. A further one is accepted at once and replaces the oldest connection of the
//! address with the most connections. A node proves the key as soon as it is connected, so a flood of silent
//! connections does not exclude a node.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::oneshot;

/// Maximum of unauthenticated connections.
pub(super) const MAX_UNAUTHENTICATED: usize = 64;

/// The connections by number, the oldest first.
#[derive(Default)]
pub(super) struct Unauthenticated {
    connections: RefCell<BTreeMap<u64, PendingConnection>>,
    next: Cell<u64>,
}

/// One connection; dropping it closes the connection.
struct PendingConnection {
    address: IpAddr,
    _stay: oneshot::Sender<()>,
}

impl Unauthenticated {
    /// Registers a connection. The receiver ends when the connection must be closed.
    pub(super) fn admit(&self, address: IpAddr) -> (u64, oneshot::Receiver<()>) {
        let mut connections = self.connections.borrow_mut();
        if connections.len() >= MAX_UNAUTHENTICATED
            && let Some(number) = victim(&connections)
        {
            connections.remove(&number);
        }
        let (stay, must_close) = oneshot::channel();
        let number = self.next.get();
        self.next.set(number + 1);
        connections.insert(number, PendingConnection { address, _stay: stay });
        (number, must_close)
    }

    /// Removes a connection that has ended, or has proved the key.
    pub(super) fn leave(&self, number: u64) {
        self.connections.borrow_mut().remove(&number);
    }
}

/// Returns the oldest connection of the address with the most connections.
fn victim(connections: &BTreeMap<u64, PendingConnection>) -> Option<u64> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in connections.values() {
        *counts.entry(connection.address).or_default() += 1;
    }
    let (crowded, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    connections.iter().find(|(_, connection)| connection.address == crowded).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_flood_from_one_address_ends_its_own_oldest_connections() {
        let unauthenticated = Unauthenticated::default();
        let (_, mut of_a_node) = unauthenticated.admit(address(1));
        let mut flood: Vec<_> =
            (0..3 * MAX_UNAUTHENTICATED).map(|_| unauthenticated.admit(address(9)).1).collect();
        let is_here = |must_close: &mut oneshot::Receiver<()>| {
            must_close.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        assert!(is_here(&mut of_a_node));
        let connections: Vec<_> = flood.iter_mut().map(is_here).collect();
        let gone = connections.iter().filter(|is_here| !**is_here).count();
        assert_eq!(gone, 2 * MAX_UNAUTHENTICATED + 1);
        assert!(connections[gone..].iter().all(|is_here| *is_here), "the newest stay");
    }

    #[test]
    fn a_closed_connection_frees_its_slot() {
        let unauthenticated = Unauthenticated::default();
        let mut all: Vec<_> = (0..MAX_UNAUTHENTICATED).map(|_| unauthenticated.admit(address(9))).collect();
        unauthenticated.leave(all[0].0);
        unauthenticated.admit(address(9));
        assert_eq!(all[1].1.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }
}
