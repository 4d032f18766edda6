//! Guests: the connections over which other nodes speak to this one, one of each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::id::PeId;

/// The connection of each member that is here.
#[derive(Default)]
pub(super) struct Guests {
    here: RefCell<BTreeMap<PeId, Guest>>,
    next: Cell<u64>,
}

/// Dropped, it ends the connection.
struct Guest {
    number: u64,
    _stay: oneshot::Sender<()>,
}

impl Guests {
    /// Registers the connection of a member and ends an earlier one (LISTEN-2). Returns its number, and a
    /// receiver that ends when the connection must end.
    pub(super) fn admit(&self, pe: PeId) -> (u64, oneshot::Receiver<()>) {
        let (stay, gone) = oneshot::channel();
        let number = self.next.get();
        self.next.set(number + 1);
        self.here.borrow_mut().insert(pe, Guest { number, _stay: stay });
        (number, gone)
    }

    /// Removes a connection that ended, unless a newer one replaced it.
    pub(super) fn left(&self, pe: PeId, number: u64) {
        let mut here = self.here.borrow_mut();
        if here.get(&pe).is_some_and(|guest| guest.number == number) {
            here.remove(&pe);
        }
    }

    /// Ends the connection of a member, if it has one.
    pub(super) fn end(&self, pe: PeId) {
        self.here.borrow_mut().remove(&pe);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn a_newer_connection_ends_the_older_and_is_not_ended_by_its_leaving() {
        let (guests, pe) = (Guests::default(), PeId(3));
        let (first, mut first_gone) = guests.admit(pe);
        let (second, mut second_gone) = guests.admit(pe);
        assert_eq!(first_gone.try_recv(), Err(TryRecvError::Closed));
        guests.left(pe, first);
        assert_eq!(second_gone.try_recv(), Err(TryRecvError::Empty));
        guests.end(pe);
        assert_eq!(second_gone.try_recv(), Err(TryRecvError::Closed));
        guests.left(pe, second);
    }
}
