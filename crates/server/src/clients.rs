//! The list of connected clients.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::listener::Socket;

/// A connection, as other threads see it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    began: Instant,
    pub(crate) socket: Socket,
    pub(crate) about: Mutex<About>,
    /// Index of the last command in the table of commands.
    pub(crate) last_command: AtomicUsize,
    /// Bytes of unsent replies, if they count (`budget`).
    unsent: AtomicUsize,
    /// Bytes of an incomplete request while the connection waits for its rest, if they count (`budget`).
    incomplete: AtomicUsize,
    /// Bytes that the connection releases at its end, because it was ended for its incomplete request.
    released: AtomicUsize,
    /// Time since which replies are unsent, in milliseconds after `began`.
    unsent_since_ms: AtomicU64,
    /// Time of the last input, in milliseconds after `began`; written by its connection only.
    active_ms: AtomicU64,
}

/// Properties that a client has set: name, library, protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) protocol: i64,
}

impl Client {
    /// Returns the name of the last command; `NULL` before the first one.
    pub(crate) fn last_command_name(&self) -> &'static str {
        // Relaxed: a statistic.
        crate::command::TABLE.get(self.last_command.load(Relaxed)).map_or("NULL", |spec| spec.name)
    }

    /// Returns the line of `CLIENT LIST`. It has the fields of Redis 7.2: some clients refuse a line with
    /// other fields, or without one of them. Fields that do not apply are constant.
    pub(crate) fn line(&self) -> String {
        let about = self.about.lock().clone();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let last = self.last_command_name();
        let age = self.age();
        // Relaxed, also below: statistics.
        let idle = age.saturating_sub(Duration::from_millis(self.active_ms.load(Relaxed)));
        format!(
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 \
             qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem=0 events=r \
             cmd={last} user=default redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.socket.peer,
            self.socket.local,
            self.socket.as_raw_fd(),
            text(&about.name),
            age.as_secs(),
            idle.as_secs(),
            self.unsent.load(Relaxed),
            about.protocol.max(2),
            text(&about.library),
            text(&about.library_version),
        )
    }

    /// Records that input has arrived at `now`. Called only by the connection.
    pub(crate) fn note_active(&self, now: Instant) {
        let since_ms = now.saturating_duration_since(self.began).as_millis();
        self.active_ms.store(u64::try_from(since_ms).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the time since the client connected.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Records the size of the unsent replies. Called only by the connection.
    pub(crate) fn note_unsent(&self, bytes: usize) {
        // Relaxed, here and in `unsent`: the values only select a connection to close.
        if self.unsent.swap(bytes, Relaxed) == 0 {
            let now_ms = u64::try_from(self.age().as_millis()).unwrap_or(u64::MAX);
            self.unsent_since_ms.store(now_ms, Relaxed);
        }
    }

    /// Returns the size of the replies that have been unsent for at least `time`.
    fn unsent_for(&self, time: Duration) -> usize {
        let since = Duration::from_millis(self.unsent_since_ms.load(Relaxed));
        if self.age().saturating_sub(since) < time { 0 } else { self.unsent.load(Relaxed) }
    }

    /// Records the memory that the connection holds while it waits for the rest of a request; 0 if it does
    /// not wait. Called only by the connection.
    pub(crate) fn note_incomplete(&self, bytes: usize) {
        // Relaxed, here, in `stalled_for` and in `cut_stalled`: the values only select a connection to close.
        self.incomplete.store(bytes, Relaxed);
    }

    /// Returns the memory of an incomplete request that has waited for input for at least `time`.
    fn stalled_for(&self, time: Duration) -> usize {
        let active = Duration::from_millis(self.active_ms.load(Relaxed));
        if self.age().saturating_sub(active) < time { 0 } else { self.incomplete.load(Relaxed) }
    }

    /// Shuts down the socket, which ends the connection.
    pub(crate) fn cut(&self) {
        self.socket.shutdown(Shutdown::Both);
    }
}

/// Guard that removes the connection from the list when it is dropped, also after a panic.
#[derive(Debug)]
pub(crate) struct Released {
    clients: Arc<Clients>,
    id: u64,
}

impl Released {
    pub(crate) const fn of(clients: Arc<Clients>, id: u64) -> Self {
        Self { clients, id }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        self.clients.release(self.id);
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    none_left: Condvar,
    next_id: AtomicU64,
    /// Time of the last search for a slow client.
    searched_at: Mutex<Option<Instant>>,
}

impl Clients {
    /// Adds a connection, unless the list contains `max` connections.
    pub(crate) fn admit(&self, socket: Socket, max: usize) -> Result<Arc<Client>, Socket> {
        let mut by_id = self.by_id.lock();
        if by_id.len() >= max {
            return Err(socket);
        }
        let client = Arc::new(Client {
            // Relaxed: only uniqueness matters.
            id: self.next_id.fetch_add(1, Relaxed) + 1,
            began: Instant::now(),
            socket,
            about: Mutex::default(),
            last_command: AtomicUsize::new(usize::MAX),
            unsent: AtomicUsize::new(0),
            incomplete: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            unsent_since_ms: AtomicU64::new(0),
            active_ms: AtomicU64::new(0),
        });
        by_id.insert(client.id, Arc::clone(&client));
        Ok(client)
    }

    /// Removes a connection.
    pub(crate) fn release(&self, id: u64) {
        let mut by_id = self.by_id.lock();
        by_id.remove(&id);
        if by_id.is_empty() {
            self.none_left.notify_all();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.lock().len()
    }

    pub(crate) fn list(&self) -> Vec<Arc<Client>> {
        self.by_id.lock().values().cloned().collect()
    }

    /// If more than `most` bytes are unsent, ends the connection with the most replies that have been unsent
    /// for `time`, and returns it. Searches at most once per `pause`.
    pub(crate) fn cut_slowest(&self, most: usize, time: Duration, pause: Duration) -> Option<Arc<Client>> {
        let mut searched_at = self.searched_at.try_lock()?;
        if searched_at.is_some_and(|at| at.elapsed() < pause) {
            return None;
        }
        *searched_at = Some(Instant::now());
        let all = self.list();
        if all.iter().map(|client| client.unsent.load(Relaxed)).sum::<usize>() <= most {
            return None; // connections that were cut before will release their memory
        }
        let all = all.into_iter().map(|client| (client.unsent_for(time), client));
        let (_, client) = all.filter(|(bytes, _)| *bytes > 0).max_by_key(|(bytes, _)| *bytes)?;
        client.note_unsent(0);
        client.cut();
        Some(client)
    }

    /// Makes space for `excess` bytes of incomplete requests: ends the connections that hold most and have
    /// sent nothing for `time`, and passes each to `each`. Returns `false` if these do not hold enough.
    pub(crate) fn cut_stalled(&self, excess: usize, time: Duration, each: impl Fn(&Client)) -> bool {
        let mut all = self.list();
        // Connections that were ended before will release their memory. Relaxed: see `note_incomplete`.
        let released = all.iter().map(|client| client.released.load(Relaxed)).sum();
        let mut excess = excess.saturating_sub(released);
        all.retain(|client| client.stalled_for(time) > 0);
        all.sort_unstable_by_key(|client| client.stalled_for(time));
        while excess > 0 {
            let Some(client) = all.pop() else { return false };
            let bytes = client.incomplete.swap(0, Relaxed);
            if bytes == 0 {
                continue; // the rest of its request has just arrived
            }
            client.released.store(bytes, Relaxed);
            client.cut();
            each(&client);
            excess = excess.saturating_sub(bytes);
        }
        true
    }

    /// Ends all connections: each answers the requests that have arrived, then closes. Shuts the
    /// remaining ones down after `limit`, and returns their number.
    pub(crate) fn drain(&self, limit: Duration) -> usize {
        for client in self.list() {
            // Data in the socket's receive buffer can still be read; the end of the stream follows it.
            client.socket.shutdown(Shutdown::Read);
        }
        if self.wait_for_none(limit) {
            return 0;
        }
        let rest = self.list();
        rest.iter().for_each(|client| client.cut());
        rest.len()
    }

    /// Returns `true` if all connections end within `limit`.
    pub(crate) fn wait_for_none(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut by_id = self.by_id.lock();
        while !by_id.is_empty() {
            if self.none_left.wait_until(&mut by_id, deadline).timed_out() {
                return by_id.is_empty();
            }
        }
        true
    }
}
