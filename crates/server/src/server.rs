//! The server: accepts connections and assigns them to reactors, removes expired keys, and stops in order.
//!
//! Stopping: 1. no new connections are accepted; 2. every connection replies to the requests that had
//! arrived and is closed, and open interactive transactions are rolled back; 3. the server drops its handle
//! of the store, which closes with its last handle. At every moment, every acknowledged write is durable, so
//! a kill loses none of them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use azekura::Database;
use azekura_fatbtree::tcp::NodeThread;
use rustix::event::{PollFd, PollFlags, poll};

use crate::budget::Budget;
use crate::channel::Channel;
use crate::clients::{Clients, Released};
use crate::cluster::{self, Cluster};
use crate::connection::Connection;
use crate::counters::Counters;
use crate::cursor::Cursors;
use crate::engine::Engine;
use crate::error::{CommandError, ServerError};
use crate::events::{Events, Refusal};
use crate::keyspace::{self, KeyspaceContext};
use crate::listener::{Accepted, ListenAddress, Listener, Socket, listen};
use crate::options::ServerOptions;
use crate::reactor::ReactorPool;
use crate::resp::{Protocol, Reply};
use crate::session::Snapshots;
use crate::tls::Tls;
use crate::watch::Watches;
use crate::{descriptors, http, metrics};

/// State that all threads of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) options: ServerOptions,
    pub(crate) clients: Arc<Clients>,
    pub(crate) counters: Counters,
    pub(crate) began: Instant,
    pub(crate) unfinished: Budget,
    pub(crate) unsent: Budget,
    pub(crate) events: Arc<Events>,
    /// Snapshots that `AZ.SNAPSHOT` has opened.
    pub(crate) snapshots: Arc<Snapshots>,
    tls: Option<Tls>,
    /// The cluster node, if the server is one.
    pub(crate) cluster: OnceLock<Cluster>,
}

/// A running server. Dropping it stops it as [`stop`](Self::stop) does, without reporting errors.
///
/// ```
/// use std::io::{Read, Write};
/// use azekura_server::{Server, ServerOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut options = ServerOptions::default();
/// options.listen = "127.0.0.1:0".parse()?;
/// let server = Server::start(azekura::Database::in_memory()?, options)?;
///
/// let mut client = std::net::TcpStream::connect(server.address().tcp().unwrap())?;
/// client.write_all(b"SET greeting hello\r\nGET greeting\r\n")?;
/// let mut answers = [0; 16];
/// client.read_exact(&mut answers)?;
/// assert_eq!(&answers, b"+OK\r\n$5\r\nhello\r\n");
/// server.stop()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Option<Arc<Shared>>,
    pool: Arc<ReactorPool>,
    address: ListenAddress,
    metrics_address: Option<SocketAddr>,
    /// Socket that stops `threads`: they end when this socket is closed.
    stopping: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    /// Thread of the cluster node. Stopped after the last connection has ended.
    node: Option<NodeThread>,
}

impl Server {
    /// Starts a server on `db`. Clients can connect when this function returns.
    ///
    /// # Errors
    ///
    /// [`ServerError::PublicWithoutPassword`], [`ServerError::Listen`] and [`ServerError::Tls`] name the
    /// setting to change.
    pub fn start(db: Database, mut options: ServerOptions) -> Result<Self, ServerError> {
        options.validate()?;
        options.limit_times();
        options.max_clients = descriptors::most_clients(options.max_clients, options.reactors);
        let tls = options.tls.as_ref().map(Tls::load).transpose()?;
        let listener = Listener::bind(&options.listen)?;
        let metrics_listener = options.metrics.map(listen).transpose()?;
        let local = |listener: &TcpListener| listener.local_addr().map_err(ServerError::Thread);
        let address = listener.address().map_err(ServerError::Thread)?;
        options.listen = address.clone(); // with the port that the system has chosen, for `INFO` and `CONFIG`
        let metrics_address = metrics_listener.as_ref().map(local).transpose()?;
        keyspace::prepare(&db)?;
        let context = KeyspaceContext {
            watches: Watches::default(),
            cursors: Cursors::new(db.clone(), options.cluster.as_ref().map_or(0, |cluster| cluster.pe.0)),
            max_value_bytes: cluster::max_value_bytes(&options),
            max_key_bytes: keyspace::max_key_bytes(&db),
            max_reply_bytes: options.max_reply_bytes,
        };
        let events = Arc::new(Events::default());
        let engine = Engine::new(db, context, &options, Arc::clone(&events));
        let shared = Arc::new(Shared {
            engine,
            options,
            clients: Arc::default(),
            counters: Counters::new(),
            began: Instant::now(),
            unfinished: Budget::default(),
            unsent: Budget::default(),
            events,
            snapshots: Arc::default(),
            tls,
            cluster: OnceLock::new(),
        });
        let node = cluster::start(&shared)?;
        let pool = ReactorPool::start(shared.options.reactors, shared.options.adapts_reactors)
            .map_err(ServerError::Thread)?;
        let (stopping, stopped) = UnixStream::pair().map_err(ServerError::Thread)?;
        let mut server = Self {
            shared: Some(Arc::clone(&shared)),
            address,
            metrics_address,
            pool: Arc::clone(&pool),
            stopping: Some(stopping),
            threads: Vec::new(),
            node,
        };
        server.spawn("expiry", &shared, &stopped, expire)?;
        server.spawn("listener", &shared, &stopped, move |shared, stopped| {
            accept_all(&listener, stopped, &shared.events, |accepted| admit(shared, &pool, accepted));
        })?;
        if let Some(listener) = metrics_listener {
            server.spawn("metrics", &shared, &stopped, move |shared, stopped| {
                http::serve_all(&listener, stopped, |path| metrics::page(shared, path));
            })?;
        }
        server.report_start(&shared);
        Ok(server)
    }

    fn report_start(&self, shared: &Shared) {
        let show = |address: Option<SocketAddr>| address.map_or_else(|| "none".to_owned(), |a| a.to_string());
        let options = &shared.options;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            address = %self.address,
            metrics_address = show(self.metrics_address),
            node = options.cluster.as_ref().map(|cluster| cluster.pe.0),
            node_address = show(self.node_address()),
            durability = ?options.durability,
            has_password = options.password.is_some(),
            has_tls = options.tls.is_some(),
            max_clients = options.max_clients,
            max_reactors = options.reactors,
            slow_request_ms = u64::try_from(options.slow_request.as_millis()).unwrap_or(u64::MAX),
            "server started"
        );
    }

    fn spawn(
        &mut self,
        name: &str,
        shared: &Arc<Shared>,
        stopped: &UnixStream,
        body: impl FnOnce(&Arc<Shared>, &UnixStream) + Send + 'static,
    ) -> Result<(), ServerError> {
        let (shared, stopped) = (Arc::clone(shared), stopped.try_clone().map_err(ServerError::Thread)?);
        let thread =
            thread::Builder::new().name(format!("azekura-{name}")).spawn(move || body(&shared, &stopped));
        self.threads.push(thread.map_err(ServerError::Thread)?);
        Ok(())
    }

    /// Returns the shared state, for tests that serve connections themselves.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(self.shared.as_ref().expect("it runs"))
    }

    /// Returns the address for clients.
    #[must_use]
    pub const fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Returns the limit of connections: the configured one, or less if the process may not open enough
    /// files.
    #[must_use]
    pub fn max_clients(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.options.max_clients)
    }

    /// Returns the address of `/metrics` and `/healthz`.
    #[must_use]
    pub const fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Returns the address for other nodes of the cluster.
    #[must_use]
    pub fn node_address(&self) -> Option<SocketAddr> {
        self.node.as_ref().map(NodeThread::address)
    }

    /// Stops in order. Blocks until the accepted requests are answered. After
    /// [`drain_timeout`](ServerOptions::drain_timeout) the remaining connections are closed. Their requests
    /// and then the threads of the server have half of that time each to end, but 1 to 5 seconds. The store
    /// stays open for its other handles. The last handle closes the store, and [`Database::close`] returns
    /// the error if closing fails.
    ///
    /// # Errors
    ///
    /// [`ServerError::StillInUse`]: a thread still uses the store. Acknowledged writes are durable
    /// nevertheless.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.shut()
    }

    fn shut(&mut self) -> Result<(), ServerError> {
        let Some(shared) = self.shared.take() else { return Ok(()) };
        tracing::info!(address = %self.address, clients = shared.clients.len(), "server stopping");
        drop(self.stopping.take());
        for thread in self.threads.drain(..) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
        let drain_timeout = shared.options.drain_timeout;
        let cut_off = shared.clients.drain(drain_timeout);
        // Connections that `drain` has cut off end soon.
        let limit = (drain_timeout / 2).clamp(SHORTEST_END, LONGEST_END);
        shared.clients.wait_for_none(limit);
        self.pool.stop(limit);
        if let Some(node) = self.node.take() {
            node.stop();
        }
        tracing::info!(address = %self.address, cut_off, "server stopped");
        match Arc::try_unwrap(shared) {
            // The store is not closed here: the program may use it by other handles.
            Ok(_) => Ok(()),
            // A thread still holds the shared state: it waits for a lock or the device.
            Err(_) => Err(ServerError::StillInUse),
        }
    }
}

/// Shortest and longest time limit for closed connections, and then for the reactor threads, to end. Threads
/// without requests also need some time, on a busy machine.
const SHORTEST_END: Duration = Duration::from_secs(1);
const LONGEST_END: Duration = Duration::from_secs(5);

impl Drop for Server {
    fn drop(&mut self) {
        // A drop has no caller to return the error to.
        let _ = self.shut();
    }
}

/// Passes each new connection to `serve`, until `stopped` is closed.
fn accept_all(listener: &Listener, stopped: &UnixStream, events: &Events, mut serve: impl FnMut(Accepted)) {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut ready, None).is_err() {
            continue; // interrupted by a signal
        }
        if !ready[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok(accepted) => serve(accepted),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Out of file descriptors, or the client has disconnected: wait until other connections end.
            Err(error) => {
                events.cannot_accept(&error);
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Accepts a connection and assigns it to a reactor.
fn admit(shared: &Arc<Shared>, pool: &Arc<ReactorPool>, accepted: Accepted) {
    shared.counters.connections.inc();
    let refuse = |socket: &Socket, refusal, error| {
        shared.counters.rejected.inc();
        shared.events.refused(&socket.peer, refusal);
        let mut out = Vec::new();
        Reply::Error(error).encode(Protocol::Resp2, &mut out);
        // The client may have disconnected.
        let _ = (&*socket).write_all(&out);
    };
    let socket = match accepted {
        Accepted::Client(socket) => socket,
        Accepted::OtherUser(socket) => return refuse(&socket, Refusal::OtherUser, CommandError::OtherUser),
    };
    if let Some(idle) = shared.options.tcp_keepalive {
        socket.keep_alive(idle);
    }
    let client = match shared.clients.admit(socket, shared.options.max_clients) {
        Ok(client) => client,
        Err(socket) => return refuse(&socket, Refusal::TooManyClients, CommandError::TooManyClients),
    };
    let released = Released::of(Arc::clone(&shared.clients), client.id);
    let channel = shared.tls.as_ref().map_or(Ok(Channel::Clear), Tls::accept);
    if let Ok(channel) = channel {
        pool.admit(Box::new(Connection::new(shared, client, released, channel)));
    }
}

/// Removes expired keys in steps: every `expiry_interval` while keys expire, and less often otherwise.
fn expire(shared: &Arc<Shared>, stopped: &UnixStream) {
    let mut pause = shared.options.expiry_interval;
    loop {
        let timeout = rustix::event::Timespec::try_from(pause).unwrap_or_default();
        let mut ready = [PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0) {
            return;
        }
        pause = remove_expired(shared);
    }
}

/// Removes expired keys in at most [`MAX_STEPS`] steps. Returns the pause before the next call: none if more
/// keys have expired, because clients can store keys that expire faster than one call per interval removes.
fn remove_expired(shared: &Shared) -> Duration {
    let interval = shared.options.expiry_interval;
    for _ in 0..MAX_STEPS {
        let now_ms = shared.engine.clock.now_ms();
        let Ok(dropped) = keyspace::remove_expired(&shared.engine.db, now_ms) else {
            // A table is locked, or the store has failed, which the commands that use it report.
            return pause_until(interval, None);
        };
        shared.counters.expired.add(dropped.records as u64);
        if !dropped.is_more {
            return pause_until(interval, dropped.next_ms.map(|at| at.saturating_sub(now_ms)));
        }
    }
    Duration::ZERO
}

/// Returns the pause before the next check if the next key expires in `next_ms`. A key that is added
/// meanwhile and expires earlier keeps its space for at most [`LONGEST_PAUSE`] intervals.
fn pause_until(interval: Duration, next_ms: Option<u64>) -> Duration {
    let longest = interval.saturating_mul(LONGEST_PAUSE);
    next_ms.map_or(longest, Duration::from_millis).clamp(interval, longest)
}

/// Maximum of intervals between two checks while no key expires. With the default interval an idle server
/// wakes once per second.
const LONGEST_PAUSE: u32 = 10;

/// Maximum of removal steps between two checks of the stop signal.
const MAX_STEPS: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::engine::Pending;
    use crate::keyspace::Expiry;

    #[test]
    fn ended_keys_are_looked_for_when_one_ends_and_seldom_otherwise() {
        let interval = Duration::from_millis(100);
        for (next_ms, pause_ms) in
            [(None, 1000), (Some(0), 100), (Some(450), 450), (Some(5000), 1000), (Some(u64::MAX), 1000)]
        {
            assert_eq!(pause_until(interval, next_ms), Duration::from_millis(pause_ms), "{next_ms:?}");
        }
        assert_eq!(pause_until(Duration::MAX, None), Duration::MAX);
    }

    /// Keys that expire faster than one call per interval removes them use no more and more space.
    #[test]
    fn the_removal_of_expired_keys_pauses_only_when_none_is_left() {
        let listen = "127.0.0.1:0".parse().expect("an address");
        // The thread of the server itself removes nothing during the test.
        let expiry_interval = Duration::from_secs(3600);
        let options = ServerOptions { listen, expiry_interval, ..ServerOptions::default() };
        let server = Server::start(Database::in_memory().expect("memory"), options).expect("a server");
        let shared = server.shared();
        let keys_in_a_step = 128;
        let stored = shared.engine.run(&mut Pending::default(), |keys| {
            (0..=MAX_STEPS * keys_in_a_step)
                .try_for_each(|i| keys.put(&i.to_be_bytes(), b"", Expiry::AtMs(1)))
        });
        stored.expect("the store works");
        assert_eq!(remove_expired(&shared), Duration::ZERO);
        assert_eq!(remove_expired(&shared), expiry_interval);
        assert_eq!(shared.counters.expired.get(), (MAX_STEPS * keys_in_a_step + 1) as u64);
    }

    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";

    fn connect(server: &Server) -> TcpStream {
        let client = TcpStream::connect(server.address().tcp().expect("a port")).expect("it listens");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a test that hangs fails instead");
        client
    }

    fn set(client: &mut TcpStream) -> io::Result<[u8; 5]> {
        let mut reply = [0; 5];
        client.write_all(SET)?;
        client.read_exact(&mut reply)?;
        Ok(reply)
    }

    /// REACT-5: replies stay in order when the number of reactors changes, also for a connection that waits
    /// for a lock or is idle meanwhile.
    #[test]
    fn connections_move_between_reactors_and_each_gets_all_its_answers_in_order() {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let options = ServerOptions {
            listen,
            reactors: 4,
            adapts_reactors: false,
            transaction_timeout: Duration::from_secs(600),
            ..ServerOptions::default()
        };
        let server = Server::start(Database::in_memory().expect("memory"), options).expect("a server");
        let ask = |client: &mut TcpStream, text: &str| client.write_all(text.as_bytes()).expect("it listens");
        let expect = |client: &mut TcpStream, wanted: &str| {
            let mut got = vec![0; wanted.len()];
            client.read_exact(&mut got).expect("an answer");
            assert_eq!(String::from_utf8_lossy(&got), wanted);
        };
        let mut clients: Vec<TcpStream> = (0..16).map(|_| connect(&server)).collect();
        let mut silent: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
        let (mut holder, mut waiter) = (connect(&server), connect(&server));
        for round in 1..=120 {
            if round % 10 == 1 {
                ask(&mut holder, &format!("AZ.BEGIN\r\nSET k {round}\r\n"));
                expect(&mut holder, "+OK\r\n+OK\r\n");
                ask(&mut waiter, "GET k\r\nECHO after\r\n");
            }
            server.pool.use_reactors(1 + round / 2 % 4);
            for (i, client) in clients.iter_mut().enumerate() {
                ask(client, &format!("INCR n{i}\r\nECHO {i}.{round}\r\nINCR n{i}\r\n"));
            }
            for (i, client) in clients.iter_mut().enumerate() {
                let echo = format!("{i}.{round}");
                let wanted = format!(":{}\r\n${}\r\n{echo}\r\n:{}\r\n", 2 * round - 1, echo.len(), 2 * round);
                expect(client, &wanted);
            }
            if round % 10 == 0 {
                ask(&mut holder, "AZ.COMMIT\r\n");
                expect(&mut holder, "+OK\r\n");
                let held = (round - 9).to_string();
                expect(&mut waiter, &format!("${}\r\n{held}\r\n$5\r\nafter\r\n", held.len()));
            }
        }
        for client in &mut silent {
            assert_eq!(&set(client).expect("a reply"), b"+OK\r\n");
        }
        // Each number of reactors is in use for two consecutive rounds. A connection that is served in both
        // rounds is at its assigned reactor in between. Of the 16 consecutive connection numbers, at least 14
        // change their assignment twice or more in each cycle of four reactor counts.
        let moved = server.pool.moved.load(Relaxed);
        assert!(moved >= 14 * 2 * 14, "{moved} moves");
        server.stop().expect("nothing is left");
    }

    #[test]
    fn a_read_is_repeated_while_its_snapshots_become_too_old() {
        const ROWS: azekura::TableDefinition<u32, u32> = azekura::TableDefinition::new("rows");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let options = ServerOptions { listen, reactors: 1, ..ServerOptions::default() };
        let builder = Database::builder().background(false).version_bytes(50_000);
        let server = Server::start(builder.open_in_memory().expect("memory"), options).expect("a server");
        let engine = &server.shared.as_ref().expect("it runs").engine;
        for too_old in 0..4 {
            let mut tries = 0;
            let read = engine.repeat(|| {
                tries += 1;
                let write = |value| {
                    let put = |tx: &azekura::Transaction| {
                        (0..1000).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &value))
                    };
                    engine.db.transact(put)
                };
                write(too_old)?;
                let snapshot = engine.snapshot()?;
                if tries <= too_old {
                    write(9)?;
                    let _newer = engine.snapshot()?;
                    write(10)?;
                }
                Ok(snapshot.table(&ROWS)?.get(&999)?)
            });
            match too_old {
                0..3 => assert_eq!((read, tries), (Ok(Some(too_old)), too_old + 1)),
                _ => assert!(matches!(read, Err(CommandError::Retry(_))) && tries == 3, "{read:?}, {tries}"),
            }
        }
        server.stop().expect("nothing is left");
    }

    /// A panic of a committer ends one connection, without a possibly wrong reply. No other connection waits
    /// forever.
    #[test]
    fn a_panic_while_commits_are_waited_for_ends_one_connection_and_no_other() {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let options = ServerOptions { listen, reactors: 1, ..ServerOptions::default() };
        let server = Server::start(Database::in_memory().expect("memory"), options).expect("a server");
        let mut other = connect(&server);
        assert_eq!(&set(&mut other).expect("a reply"), b"+OK\r\n");
        let shared = server.shared.as_ref().expect("it runs");
        for _ in 0..3 {
            shared.engine.breaks_next_wait.store(true, Relaxed);
            let mut broken = connect(&server);
            // A commit that is durable at once causes no wait.
            while set(&mut broken).is_ok() {}
            assert!(!shared.engine.breaks_next_wait.load(Relaxed), "its commit was waited for");
            assert_eq!(&set(&mut other).expect("a reply"), b"+OK\r\n");
            assert_eq!(&set(&mut connect(&server)).expect("a reply"), b"+OK\r\n");
        }
        server.stop().expect("nothing is left");
    }
}
