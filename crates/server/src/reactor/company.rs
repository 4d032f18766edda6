//! A thread's open group, and the connections that stay with the thread until it has ended (`group`,
//! GROUP-4).
//!
//! | | the group | its connections |
//! |---|---|---|
//! | alone | is closed | none is kept |
//! | in company | is open, or lost | those that were served are kept |
//! | ended | is closed, and how it ended is known | are to be told, before another group is opened |
//!
//! - **COMPANY-1** A connection is kept only while the group is open, or its end not told: it is told, and
//!   goes on its way.
//! - **COMPANY-2** The reactor is lent when the group is closed: to commit may block for the log, or for
//!   pages that are freed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::drive::guarded;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::group::{Ended, Group};

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Company {
    pub(super) group: Group,
    #[expect(clippy::vec_box, reason = "connections move between slots, threads and here as boxes")]
    kept: Vec<Box<Connection>>,
    /// End of the group, for members that do not know it yet.
    ended: Option<Ended>,
}

impl Company {
    /// Keeps a member of the group.
    pub(super) fn keep(&mut self, connection: Box<Connection>) {
        debug_assert!(self.group.is_open() && connection.is_member(), "COMPANY-1");
        self.kept.push(connection);
    }

    /// Ends the group, if it has not ended. May block (COMPANY-2).
    pub(super) fn close(&mut self) {
        if self.ended.is_none() {
            let ended = catch_unwind(AssertUnwindSafe(|| self.group.close()));
            self.ended = ended.unwrap_or_else(|_| Some(Err(broken())));
        }
    }

    /// Ends the group; those that were kept, and `last`, are told of the end, and those that were kept given
    /// to `each`.
    pub(super) fn part(&mut self, last: Option<&mut Connection>, mut each: impl FnMut(Box<Connection>)) {
        self.close();
        let Some(ended) = self.ended.take() else {
            debug_assert!(self.kept.is_empty(), "COMPANY-1");
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

    /// A member panicked in its midst: none of them is done.
    pub(super) fn lose(&mut self) {
        // The panic has been reported.
        let _ = catch_unwind(AssertUnwindSafe(|| self.group.lose(broken())));
    }
}

fn broken() -> CommandError {
    CommandError::Unavailable("the transaction of this request failed with that of another".into())
}
