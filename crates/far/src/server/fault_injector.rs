//! Faults that tests inject into a memory server: crashes, stalls, wrong answers.

use std::fmt::Debug;

/// Action on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedAction {
    /// As it should be.
    Serve,
    /// The session ends here, as if the machine failed.
    Die,
    /// Nothing more is ever answered, and the connection stays open.
    Stall,
    /// One bit of the page is another, and its digest fits it.
    Lie,
    /// One bit of the page is flipped in flight.
    Damage,
    /// The page is all zeros, and its digest fits it.
    Zeros,
    /// "No such page."
    Deny,
    /// The answer is no frame.
    Babble,
}

/// Decides over each request for a page. Called by the sessions' threads.
pub trait FaultInjector: Debug + Send + Sync {
    /// Returns the action when page `page` is stored (`is_put`) or requested.
    fn act(&self, is_put: bool, page: u64) -> InjectedAction;
}
