//! Reconnecting to lost servers.

use super::Shared;
use crate::client::{Connection, Replica, Sink};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// Interval between two attempts to reconnect.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Shared {
    /// Runs the maintenance thread until the cache is closed.
    pub(super) fn maintenance(self: &Arc<Self>) {
        loop {
            let inner = self.lock();
            let (inner, _) = self
                .ends
                .wait_timeout_while(inner, RETRY_INTERVAL, |inner| !inner.closing)
                .unwrap_or_else(PoisonError::into_inner);
            if inner.closing {
                return;
            }
            drop(inner);
            self.ask_all();
        }
    }

    /// Tries to reconnect each lost server once.
    pub(super) fn ask_all(self: &Arc<Self>) {
        for (index, address) in self.servers.iter().enumerate() {
            if self.lock().connections.get(index).is_some_and(|connection| connection.is_none()) {
                self.ask(index, address);
            }
        }
    }

    fn ask(self: &Arc<Self>, index: usize, address: &str) {
        let sink: Arc<dyn Sink> = self.clone();
        let sink: Weak<dyn Sink> = Arc::downgrade(&sink);
        match Connection::connect(address, index, &self.options, sink) {
            Ok(connection) => self.regain(index, Arc::new(connection)),
            Err(error) => {
                let why =
                    std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
                self.lock().stats.last_loss = Some(format!("{error}{why}"));
            }
        }
    }

    fn regain(&self, index: usize, connection: Arc<Connection>) {
        let mut inner = self.lock();
        // If the connection is already lost, its reader reports that, and maintenance tries to reconnect
        // later.
        if inner.closing || connection.is_closed() {
            drop(inner);
            return connection.close();
        }
        inner.slots.regain(index);
        inner.connections[index] = Some(connection);
    }
}
