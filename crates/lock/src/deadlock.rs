//! Exact deadlock detection: when a wait begins, the waits-for graph is searched in its present state.
//!
//! An edge A → B means: A waits, and B is one of its blockers. A blocker is a holder in conflict, or, for a
//! newcomer, a conflicting waiter before it; see `queue`. Edges are not stored: the edges of A are derived
//! from A's queue, under the latch of its stripe. One mutex, the *waits latch*, is held from before a request
//! is added to the waiters until the search for cycles through it is complete. It is also held by each thread
//! that withdraws a waiting request (timeouts, victims). Grants and releases do not need it. Latch order:
//! waits latch, then one stripe's latch, then an owner's intents.
//!
//! - **WAIT-1** A request joins the waiters, and leaves them other than by a grant, only under the waits
//!   latch.
//! - **WAIT-2** A waiting transaction keeps all its locks.
//!
//! **No cycle is missed.** A cycle consists of waiting transactions. Let T be the member that last began to
//! wait, or last was queued before others as a conversion. Only T's wait can close the cycle, because a
//! waiter's blockers grow only by a conversion. The conversion may be granted; then its owner runs, closes a
//! cycle only if it waits later, and is then itself "last". Or it begins to wait before others. (A newcomer
//! that is granted while others wait is compatible with all of them. A waiter that is granted blocks the
//! waiters after it as before.) T's search starts after T is in its queue, and by WAIT-1 all other members of
//! the cycle are in their queues. Edges of the cycle persist while all its members wait (next paragraph). So
//! the search finds the cycle.
//!
//! **No cycle is false.** The search reads one queue after another, so suppose it reports T1 → … → Tn → T1
//! and the edges did not all exist at once. Let Ti → Ti+1 be the first of them to end after it was read. It
//! ends only if Ti stops waiting, or if Ti+1 stops being a blocker. By WAIT-1 the former needs a grant, and
//! so the end of all of Ti's blockers. For the latter, Ti+1 released (then it ran: WAIT-2), or it left the
//! queue by a grant, after which it still blocks, or under the waits latch. In each case Ti+1 was not waiting
//! at some moment before the search ended. But the search found Ti+1 waiting. If it did so after that moment,
//! Ti+1 began to wait during the search, against WAIT-1. If it did so before, the edge Ti+1 → Ti+2 ended
//! before Ti → Ti+1 did, against "first". So all edges exist at once.
//!
//! **Shortcut.** A cycle through T needs a transaction that waits for T. A transaction that begins to wait
//! marks its blockers (`Owner::note_waiter`), and a conversion that is queued before waiters marks itself.
//! Without the mark T skips the search.
//!
//! **One thread, several transactions.** While a thread waits for one of its transactions, its other
//! transactions cannot continue. So there is an edge from each of them to the waiting one. A wait of a thread
//! with other open transactions is in the list `with_mates` from before its search until after its end. It is
//! searched without the shortcut, so the last search finds an edge of this kind, too. In a cycle with such an
//! edge the transaction at the edge's end becomes the victim, with an error that a retry would only repeat.
//! (A transaction that has moved to another thread since its last request counts as one of the former thread:
//! see `LockTable::detach`.)
//!
//! The victim is the youngest transaction of the cycle. One wait can close several cycles. They are broken
//! one by one until no cycle contains T, or T itself was chosen.

use azekura_base::TxnId;

use crate::error::LockError;
use crate::owner::Owners;
use crate::stripe::NONE;

/// Location of an owner's waiting request, present or past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitPlace {
    pub(crate) stripe: u32,
    pub(crate) request: u32,
}

const NOWHERE: WaitPlace = WaitPlace { stripe: NONE, request: NONE };

/// The state that the waits latch protects.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The location of each owner's waiting request, by owner number. An entry remains when the wait ends
    /// with a grant, so it is checked against the request itself. A waiting owner has its present location
    /// here (WAIT-1).
    places: Vec<WaitPlace>,
    /// Victims that have not returned their error yet.
    pub(crate) sentences: Vec<(u32, LockError)>,
    pub(crate) begun: u64,
    pub(crate) deadlocks: u64,
    pub(crate) timeouts: u64,
    /// `true` if waits are closed: no request may begin to wait.
    pub(crate) is_closed: bool,
    /// Owners that wait while their thread has other open transactions, and the number of that thread. The
    /// other transactions cannot end before the wait does. An entry may outlast its wait briefly.
    pub(crate) with_mates: Vec<(u32, u32)>,
}

impl Waits {
    pub(crate) fn set_place(&mut self, owner: u32, place: WaitPlace) {
        let index = owner as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, NOWHERE);
        }
        self.places[index] = place;
    }

    /// Returns the location at which `owner` waits, if it waits.
    pub(crate) fn place(&self, owner: u32) -> Option<WaitPlace> {
        self.places.get(owner as usize).copied().filter(|p| p.request != NONE)
    }

    pub(crate) fn sentence(&mut self, owner: u32, cycle: &[u32], owners: &Owners) {
        let cycle: Vec<TxnId> = cycle.iter().map(|&o| owners.get(o).txn()).collect();
        self.deadlocks += 1;
        self.sentences.push((owner, LockError::Deadlock { victim: owners.get(owner).txn(), cycle }));
    }

    /// Ends the wait of an owner that closes a cycle through its own thread, in which `holder` is open.
    pub(crate) fn sentence_self(&mut self, owner: u32, holder: u32, owners: &Owners) {
        let (victim, holder) = (owners.get(owner).txn(), owners.get(holder).txn());
        self.deadlocks += 1;
        self.sentences.push((owner, LockError::SelfDeadlock { victim, holder }));
    }

    /// Returns the owners that wait or have waited, with their locations.
    pub(crate) fn places(&self) -> Vec<(u32, WaitPlace)> {
        (0..).zip(self.places.iter().copied()).filter(|(_, place)| place.request != NONE).collect()
    }

    pub(crate) fn take_sentence(&mut self, owner: u32) -> LockError {
        let at = self.sentences.iter().position(|s| s.0 == owner).expect("a victim has a sentence");
        self.sentences.swap_remove(at).1
    }
}

/// Returns the youngest transaction of a cycle, which has the largest number and loses the least work.
pub(crate) fn youngest(cycle: &[u32], owners: &Owners) -> u32 {
    cycle.iter().copied().max_by_key(|&o| owners.get(o).txn()).expect("a cycle has members")
}

/// Returns a cycle through `start`, in order, beginning with `start`; `blockers` returns a node's edges.
///
/// Searches depth first and visits each node once: the cost is the number of reachable edges.
pub(crate) fn find_cycle(start: u32, mut blockers: impl FnMut(u32) -> Vec<u32>) -> Option<Vec<u32>> {
    let mut seen = std::collections::HashSet::from([start]);
    let mut path = vec![start];
    let mut pending = vec![blockers(start)];
    while let Some(edges) = pending.last_mut() {
        let Some(next) = edges.pop() else {
            pending.pop();
            path.pop();
            continue;
        };
        if next == start {
            return Some(path);
        }
        if seen.insert(next) {
            path.push(next);
            pending.push(blockers(next));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns `true` if `to` can be reached from `from` by at least one edge, by repeated squaring of the
    /// edge relation.
    fn reaches(edges: &[Vec<u32>], from: u32, to: u32) -> bool {
        let n = edges.len();
        let mut reach = vec![vec![false; n]; n];
        for (a, targets) in edges.iter().enumerate() {
            for &b in targets {
                reach[a][b as usize] = true;
            }
        }
        for k in 0..n {
            for a in 0..n {
                for b in 0..n {
                    reach[a][b] |= reach[a][k] && reach[k][b];
                }
            }
        }
        reach[from as usize][to as usize]
    }

    proptest! {
        #[test]
        fn a_cycle_is_found_exactly_when_there_is_one(
            edges in (2usize..12).prop_flat_map(|n| {
                proptest::collection::vec(proptest::collection::vec(0..n as u32, 0..3), n)
            }),
        ) {
            for start in 0..edges.len() as u32 {
                let found = find_cycle(start, |node| edges[node as usize].clone());
                prop_assert_eq!(found.is_some(), reaches(&edges, start, start));
                if let Some(cycle) = found {
                    prop_assert_eq!(cycle[0], start);
                    for (i, &node) in cycle.iter().enumerate() {
                        let next = cycle[(i + 1) % cycle.len()];
                        prop_assert!(edges[node as usize].contains(&next), "{} -> {} in {:?}",
                            node, next, cycle);
                    }
                }
            }
        }
    }
}
