//! Periodic work: the policy's timer, attempts to reconnect lost servers, and the count of unmanaged memory.
//!
//! A reconnected server has a new, empty session. Pages with too few copies are copied there.

use super::Pager;
use crate::client::{Connection, ConnectionOptions};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Interval between two attempts to reconnect a lost server.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two counts of unmanaged memory is at least this multiple of the time of a count.
const COUNT_PAUSE: u32 = 100;

/// Address and options of a server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) options: ConnectionOptions,
}

impl Pager {
    /// Runs the maintenance thread until the pager is closed.
    pub(super) fn maintenance(self: &Arc<Self>, servers: &[Server]) {
        let timer = self.lock().timer();
        let turn = timer.unwrap_or(RETRY_INTERVAL).min(RETRY_INTERVAL);
        let mut asked = Instant::now();
        let mut ticked = asked;
        let mut next_count = asked;
        loop {
            let core = self.lock();
            if core.is_closing() {
                return;
            }
            let (mut core, _) = self.ends.wait_timeout(core, turn).unwrap_or_else(PoisonError::into_inner);
            if core.is_closing() {
                return;
            }
            if timer.is_some_and(|timer| ticked.elapsed() >= timer) {
                ticked = Instant::now();
                core.on_timer();
            }
            core.recopy();
            core.serve_waiting();
            let lost = core.lost_servers();
            drop(core);
            if asked.elapsed() >= RETRY_INTERVAL {
                asked = Instant::now();
                self.ask_again(servers, &lost);
                let begun = Instant::now();
                if begun >= next_count {
                    self.count_unmanaged();
                    next_count = Instant::now() + begun.elapsed() * COUNT_PAUSE;
                }
            }
        }
    }

    fn ask_again(self: &Arc<Self>, servers: &[Server], lost: &[usize]) {
        for &index in lost {
            // Reserves nothing, because the server may have promised the bytes to other clients meanwhile.
            let options = ConnectionOptions { reserve_bytes: 0, ..servers[index].options.clone() };
            let Ok(connection) = Connection::connect(&servers[index].address, index, &options, self.sink())
            else {
                continue;
            };
            let connection = Arc::new(connection);
            if self.lock().regained(index, connection.clone()) {
                self.streams_changed();
            } else {
                crate::client::Replica::close(&*connection);
            }
        }
    }
}
