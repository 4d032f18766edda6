//! What a test makes a memory server do wrong: die, stall, lie.

use std::fmt::Debug;

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// As it should be.
    Serve,
    /// The session ends here, as when the machine is gone.
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
pub trait Mischief: Debug + Send + Sync {
    /// What is done when page `page` is put (`is_put`) or asked for.
    fn act(&self, is_put: bool, page: u64) -> Act;
}
