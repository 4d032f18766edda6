//! Look-ahead: announces the keys of pipelined requests to the store before the first of them runs, so that
//! the device reads their pages at once. Without it, each request waits for the read of its own page.

use super::Session;
use crate::command;
use crate::error::Failure;
use crate::keyspace::Keyspace;
use crate::resp::{OwnedRequest, Request, RequestReader};

/// Largest number of requests that one look-ahead parses.
const MOST_REQUESTS: usize = 256;
/// Number of reads of input without a look-ahead after one that announced nothing, so that the cost is small
/// for a store that fits into the system's page cache.
const PAUSE: u8 = 15;

impl Session {
    /// Announces the keys of the requests that have arrived, if there are at least two. Nothing is announced
    /// in a cluster.
    pub(crate) fn look_ahead(&mut self, reader: &mut RequestReader) {
        if self.look_ahead_pause > 0 {
            self.look_ahead_pause -= 1;
            return;
        }
        let is_useful = self.is_authenticated && self.shared.engine.should_prefetch();
        if !is_useful || self.shared.cluster.get().is_some() {
            return;
        }
        let mut keys = OwnedRequest::default();
        // Relaxed: written by this thread. Clients often repeat a command.
        let mut guess = self.client.last_command.load(std::sync::atomic::Ordering::Relaxed);
        reader.look_ahead(MOST_REQUESTS, |request| {
            if let Some((at, spec)) = command::find_near(request.arg(0), guess) {
                guess = at;
                // A request with several keys announces them itself.
                command::only_key(spec, request).into_iter().for_each(|key| keys.push(key));
            }
        });
        // An error is ignored: the request itself meets it again.
        if keys.as_request().len() < 2 || self.announce(keys.as_request()).is_ok_and(|absent| absent == 0) {
            self.look_ahead_pause = PAUSE;
        }
    }

    /// Announces keys, and returns the number of announced pages. Uses a transaction that waits for no lock:
    /// this thread may have an open group (GROUP-2), and the client an open transaction. A snapshot would
    /// make all writers store versions.
    fn announce(&self, keys: Request<'_>) -> Result<usize, Failure> {
        let engine = &self.shared.engine;
        let tx = engine.db.begin()?;
        tx.set_nowait(true)?;
        Ok(Keyspace::open(&tx, 0, &engine.context)?.prefetch(keys.iter())?)
    }
}
