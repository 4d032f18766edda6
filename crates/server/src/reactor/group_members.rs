//! A thread's open group, and the connections that stay with the thread until the group has ended
//! (`group`, GROUP-4).
//!
//! | state | the group | its connections |
//! |---|---|---|
//! | empty | is closed | none is kept |
//! | collecting | is open, or has failed | the served members are kept |
//! | ended | is closed, with a known result | must learn the result before another group opens |
//!
//! - **MEMBERS-1** A connection is kept only while the group is open or its result is not delivered.
//!   Delivery of the result releases the connection.
//! - **MEMBERS-2** The thread offers its reactor before it closes the group: the commit may block for the
//!   log, or for pages that it frees.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::drive::guarded;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::group::{Ended, Group};

/// A group with its member connections.
#[derive(Debug, Default)]
pub(super) struct GroupMembers {
    pub(super) group: Group,
    #[expect(clippy::vec_box, reason = "connections move as boxes between slots, threads and lists")]
    kept: Vec<Box<Connection>>,
    /// Result of the group, for members that have not received it yet.
    ended: Option<Ended>,
}

impl GroupMembers {
    /// Keeps a member of the group.
    pub(super) fn keep(&mut self, connection: Box<Connection>) {
        debug_assert!(self.group.is_open() && connection.is_member(), "MEMBERS-1");
        self.kept.push(connection);
    }

    /// Closes the group, if it is not closed. May block (MEMBERS-2).
    pub(super) fn close(&mut self) {
        if self.ended.is_none() {
            let ended = catch_unwind(AssertUnwindSafe(|| self.group.close()));
            self.ended = ended.unwrap_or_else(|_| Some(Err(broken())));
        }
    }

    /// Closes the group, delivers its result to `last` and to the kept members, and passes each kept member
    /// to `each`.
    pub(super) fn part(&mut self, last: Option<&mut Connection>, mut each: impl FnMut(Box<Connection>)) {
        self.close();
        let Some(ended) = self.ended.take() else {
            debug_assert!(self.kept.is_empty(), "MEMBERS-1");
            return;
        };
        if let Some(last) = last {
            guarded(last, |connection| connection.leave(&ended));
        }
        for mut connection in self.kept.drain(..) {
            guarded(&mut connection, |connection| connection.leave(&ended));
            each(connection);
        }
    }

    /// Fails the group after a panic of a member: no write of it is committed.
    pub(super) fn fail_group(&mut self) {
        // The panic hook has reported it.
        let _ = catch_unwind(AssertUnwindSafe(|| self.group.fail(broken())));
    }
}

fn broken() -> CommandError {
    CommandError::Unavailable("the transaction of this request failed with that of another".into())
}
