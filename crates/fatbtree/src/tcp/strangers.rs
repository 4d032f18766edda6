//! Connections to the node port that have not shown the key yet.
//!
//! There are at most [`MOST_STRANGERS`]. One more never waits: it takes the place of the oldest connection of
//! the address that has the most. A node shows the key as soon as it is connected, so a flood of silent
//! connections does not keep it out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::oneshot;

/// Strangers at once.
pub(super) const MOST_STRANGERS: usize = 64;

/// The connections, by their numbers: the oldest first.
#[derive(Default)]
pub(super) struct Strangers {
    here: RefCell<BTreeMap<u64, Stranger>>,
    next: Cell<u64>,
}

/// Dropped, it ends the connection.
struct Stranger {
    address: IpAddr,
    _stay: oneshot::Sender<()>,
}

impl Strangers {
    /// Takes a connection in. The receiver ends when it has to go.
    pub(super) fn admit(&self, address: IpAddr) -> (u64, oneshot::Receiver<()>) {
        let mut here = self.here.borrow_mut();
        if here.len() >= MOST_STRANGERS
            && let Some(number) = victim(&here)
        {
            here.remove(&number);
        }
        let (stay, must_go) = oneshot::channel();
        let number = self.next.get();
        self.next.set(number + 1);
        here.insert(number, Stranger { address, _stay: stay });
        (number, must_go)
    }

    /// The connection has ended, or has shown the key.
    pub(super) fn leave(&self, number: u64) {
        self.here.borrow_mut().remove(&number);
    }
}

/// The oldest connection of the address that has the most.
fn victim(here: &BTreeMap<u64, Stranger>) -> Option<u64> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for stranger in here.values() {
        *counts.entry(stranger.address).or_default() += 1;
    }
    let (crowded, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    here.iter().find(|(_, stranger)| stranger.address == crowded).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_flood_from_one_address_ends_its_own_oldest_connections() {
        let strangers = Strangers::default();
        let (_, mut of_a_node) = strangers.admit(address(1));
        let mut flood: Vec<_> = (0..3 * MOST_STRANGERS).map(|_| strangers.admit(address(9)).1).collect();
        let is_here = |must_go: &mut oneshot::Receiver<()>| {
            must_go.try_recv() == Err(oneshot::error::TryRecvError::Empty)
        };
        assert!(is_here(&mut of_a_node));
        let here: Vec<_> = flood.iter_mut().map(is_here).collect();
        let gone = here.iter().filter(|is_here| !**is_here).count();
        assert_eq!(gone, 2 * MOST_STRANGERS + 1);
        assert!(here[gone..].iter().all(|is_here| *is_here), "the newest stay");
    }

    #[test]
    fn a_connection_that_has_left_makes_room() {
        let strangers = Strangers::default();
        let mut all: Vec<_> = (0..MOST_STRANGERS).map(|_| strangers.admit(address(9))).collect();
        strangers.leave(all[0].0);
        strangers.admit(address(9));
        assert_eq!(all[1].1.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }
}
