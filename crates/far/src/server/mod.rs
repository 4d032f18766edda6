//! A memory server: stores pages for authenticated clients, separately for each client.
//!
//! Every client has one session with one thread. The session has its own set of pages, so a request of one
//! client cannot name, read or change a page of another client (F6). The pages are freed when the session
//! ends. A session ends when the client closes it, or when its connection breaks and the client does not
//! reconnect in time. All sessions share one counter of promised bytes. A child process made by `fork` begins
//! with the pages of its parent's session, because it has the secret name of that session.
//!
//! | module | noun |
//! |---|---|
//! | `session` | one client: its pages, its requests |
//! | `resume` | reconnection of a client to its session |
//! | `session_pages` | the pages of one session, and the directory of the pages of all sessions |
//! | `capacity` | the memory of all sessions together |
//! | [`fault_injector`] | faults that tests inject |

mod capacity;
pub mod fault_injector;
pub(crate) mod resume;
mod session;
mod session_pages;

use crate::setters::setters;
use crate::wire::auth::AuthKey;
use capacity::Capacity;
use fault_injector::FaultInjector;
use resume::ResumeTable;
use rustix::net::sockopt;
use session::Newcomer;
use session_pages::SessionDirectory;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time limit for a login: proving the key, and opening or resuming a session.
const LOGIN: Duration = Duration::from_secs(5);
/// Largest number of connections without a login from one address. One more connection closes the oldest of
/// them.
const LOGINS_PER_ADDRESS: usize = 32;
/// Largest number of connections without a login from all addresses together.
const LOGINS: usize = 256;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    capacity_bytes: u64,
    quota_bytes: u64,
    max_sessions: usize,
    linger: Duration,
    key: Option<AuthKey>,
    fault_injector: Option<Arc<dyn FaultInjector>>,
}

/// Error of starting a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is reachable from other machines, and no key was given.
    #[error("{0} can be reached from other machines: give a key (--auth-key FILE), or listen on 127.0.0.1")]
    Open(SocketAddr),
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address to listen on.
        address: String,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// Counters and current content of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Current number of connections that are logged in.
    pub sessions: u64,
    /// Sessions with a broken connection that the client may resume.
    pub waiting: u64,
    /// Connections that resumed a session.
    pub resumed: u64,
    /// Sessions since the start.
    pub sessions_ever: u64,
    /// Connections that were rejected: failed handshakes and refused sessions.
    pub turned_away: u64,
    /// Current number of stored pages.
    pub pages: u64,
    /// Current number of stored bytes.
    pub held_bytes: u64,
    /// Current number of bytes stored or reserved.
    pub promised_bytes: u64,
    /// Number of pages that clients stored.
    pub puts: u64,
    /// Number of pages that clients fetched.
    pub gets: u64,
    /// Number of requests that were refused.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    sessions_ever: AtomicU64,
    resumed: AtomicU64,
    turned_away: AtomicU64,
    pages: AtomicU64,
    puts: AtomicU64,
    gets: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    setting: ServerBuilder,
    capacity: Capacity,
    directory: SessionDirectory,
    resume_table: ResumeTable<Newcomer>,
    counters: Counters,
    ends: AtomicBool,
    /// Connections by number, so that other threads can close them.
    connections: Mutex<HashMap<u64, Connection>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    address: IpAddr,
    has_logged_in: bool,
}

/// A connection in the list of connections; dropping the value removes it from the list.
#[derive(Debug)]
struct ConnectionGuard {
    shared: Arc<Shared>,
    number: u64,
}

impl ConnectionGuard {
    fn number(&self) -> u64 {
        self.number
    }

    /// Marks the connection as logged in, so that it does not count toward the limits of logins.
    fn log_in(&self) {
        if let Some(connection) = lock(&self.shared.connections).get_mut(&self.number) {
            connection.has_logged_in = true;
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        lock(&self.shared.connections).remove(&self.number);
    }
}

impl Shared {
    /// Closes a connection. The thread that serves it gets an error.
    fn end_connection(&self, number: u64) {
        if let Some(connection) = lock(&self.connections).get(&number) {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }
}

/// A running memory server. Dropping it shuts it down.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// The socket that accepts connections, and its thread.
    listener: Option<(Arc<TcpListener>, JoinHandle<()>)>,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        Self {
            capacity_bytes: 1 << 30,
            quota_bytes: u64::MAX,
            max_sessions: 1024,
            linger: Duration::from_secs(10),
            key: None,
            fault_injector: None,
        }
    }
}

impl ServerBuilder {
    setters! {
        /// Largest memory of all sessions together in bytes [default: 1 GiB].
        capacity(bytes: u64) -> capacity_bytes = bytes;

        /// Largest memory of one session in bytes [default: the capacity].
        quota(bytes: u64) -> quota_bytes = bytes;

        /// Largest number of concurrent sessions [default: 1024]. Each session uses a thread.
        max_sessions(sessions: usize) -> max_sessions = sessions;

        /// Time for which the pages of a client are kept after its connection broke [default: 10 s], unless
        /// another session needs the memory. A client tries to reconnect for its own stall time
        /// ([`stall`](crate::FarMemoryBuilder::stall)).
        linger(linger: Duration) -> linger = linger;

        /// Authentication key. Clients without this key are refused.
        auth_key(key: AuthKey) -> key = Some(key);

        /// Fault injector, for tests.
        fault_injector(fault_injector: Arc<dyn FaultInjector>) -> fault_injector = Some(fault_injector);
    }

    /// Starts the server. Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn listen(self, address: &str) -> Result<Server, ServeError> {
        let refused = |source| ServeError::Listen { address: address.into(), source };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(refused)?.collect();
        if let Some(open) = addresses.iter().find(|a| !a.ip().is_loopback())
            && self.key.is_none()
        {
            return Err(ServeError::Open(*open));
        }
        let listener = TcpListener::bind(&addresses[..]).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let shared = Arc::new(Shared {
            capacity: Capacity::new(self.capacity_bytes),
            directory: SessionDirectory::default(),
            resume_table: ResumeTable::default(),
            setting: self,
            counters: Counters::default(),
            ends: AtomicBool::new(false),
            connections: Mutex::default(),
            threads: Mutex::default(),
        });
        let (accepting, listener) = (Arc::clone(&shared), Arc::new(listener));
        let listening = Arc::clone(&listener);
        let thread = thread::Builder::new()
            .name("far-listen".into())
            .spawn(move || accept(&accepting, &listening))
            .map_err(refused)?;
        Ok(Server { address, shared, listener: Some((listener, thread)) })
    }
}

impl Server {
    /// Returns a builder with the default settings.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counters and the current content.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let counters = &self.shared.counters;
        let connections = lock(&self.shared.connections);
        let sessions = connections.values().filter(|connection| connection.has_logged_in).count() as u64;
        drop(connections);
        let waiting = self.shared.resume_table.waiting() as u64;
        // Relaxed: independent counters.
        ServerStats {
            sessions,
            waiting,
            resumed: counters.resumed.load(Relaxed),
            sessions_ever: counters.sessions_ever.load(Relaxed),
            turned_away: counters.turned_away.load(Relaxed),
            pages: counters.pages.load(Relaxed),
            held_bytes: self.shared.capacity.held(),
            promised_bytes: self.shared.capacity.promised(),
            puts: counters.puts.load(Relaxed),
            gets: counters.gets.load(Relaxed),
            refused: counters.refused.load(Relaxed),
        }
    }

    /// Serves one client over an existing stream on this thread. Returns when the session has ended. The
    /// client ends the session by closing the stream; [`shutdown`](Self::shutdown) does not end it.
    pub fn serve(&self, stream: UnixStream) {
        session::run(&self.shared, stream);
    }

    /// Ends all sessions and waits for their threads. For its clients the server is lost: they use other
    /// replicas of their pages, or must end.
    pub fn shutdown(&mut self) {
        // Relaxed: an independent flag. The threads read it after their streams are closed.
        self.shared.ends.store(true, Relaxed);
        if let Some((listener, thread)) = self.listener.take() {
            // Ends a call of `accept`, and every later one. Needs no descriptor: sessions may use them all.
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
            let _ = thread.join();
        }
        self.shared.resume_table.close();
        for connection in lock(&self.shared.connections).values() {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        let threads = std::mem::take(&mut *lock(&self.shared.threads));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for number in 0.. {
        let (stream, address) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(_) if shared.ends.load(Relaxed) => return, // Relaxed: an independent flag
            // The process has no free descriptors, or the client has disconnected. The next `accept` may
            // succeed.
            Err(_) => {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
        };
        if shared.ends.load(Relaxed) {
            return;
        }
        begin(shared, number, stream, address.ip());
    }
}

/// Closes the oldest connection without a login that `is_meant` accepts, if there are too many of them.
fn limit_logins(
    connections: &mut HashMap<u64, Connection>,
    most: usize,
    is_meant: impl Fn(&Connection) -> bool,
) {
    let logins = connections.iter().filter(|(_, one)| !one.has_logged_in && is_meant(one));
    let (count, oldest) =
        logins.fold((0, u64::MAX), |(count, oldest), (&number, _)| (count + 1, oldest.min(number)));
    // The thread of the connection gets an error, and counts a rejected connection.
    if count >= most
        && let Some(ended) = connections.remove(&oldest)
    {
        let _ = ended.stream.shutdown(Shutdown::Both);
    }
}

/// Starts a thread for a connection. If no thread can be started, the connection is closed.
fn begin(shared: &Arc<Shared>, number: u64, stream: TcpStream, address: IpAddr) {
    let Ok(handle) = stream.try_clone() else { return };
    let mut connections = lock(&shared.connections);
    limit_logins(&mut connections, LOGINS_PER_ADDRESS, |one| one.address == address);
    limit_logins(&mut connections, LOGINS, |_| true);
    connections.insert(number, Connection { stream: handle, address, has_logged_in: false });
    drop(connections);
    let mine = Arc::clone(shared);
    let guard = ConnectionGuard { shared: Arc::clone(shared), number };
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    let started = thread::Builder::new()
        .name(format!("far-{number}"))
        .spawn(move || session::run_in_turn(&mine, stream, guard));
    let mut threads = lock(&shared.threads);
    threads.retain(|thread| !thread.is_finished());
    // If no thread was started, dropping the closure has removed the connection from the list.
    threads.extend(started);
}

/// Enables keep-alive probes. The server then detects within about a minute that the machine of a client has
/// failed without closing the connection. A client process that is only stopped is not affected.
fn keep_alive(stream: &TcpStream) {
    // If this fails, the memory is freed later, or when another session needs it.
    let _ = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, Duration::from_secs(30)))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10)))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, 3));
}
