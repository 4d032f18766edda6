//! Faults that tests inject into a memory server: crashes, stalls, wrong replies.

use std::fmt::Debug;

/// Action of the server on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedAction {
    /// Executes the request correctly.
    Serve,
    /// Ends the session, as if the machine failed.
    Die,
    /// Never replies again, but keeps the connection open.
    Stall,
    /// Returns the page with one changed bit and a matching digest.
    Lie,
    /// Returns the page with one changed bit and the digest of the original page.
    Damage,
    /// Returns a page of zeros with a matching digest.
    Zeros,
    /// Replies that the page is missing.
    Deny,
    /// Sends bytes that are not a frame.
    Babble,
}

/// Chooses the action for each request for a page. Called by the threads of the sessions.
pub trait FaultInjector: Debug + Send + Sync {
    /// Returns the action for a request that stores (`is_put`) or fetches page `page`.
    fn act(&self, is_put: bool, page: u64) -> InjectedAction;
}
