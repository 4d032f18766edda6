//! The server: listens, gives each connection to a reactor, removes what has ended, and stops in order.
//!
//! Stopping: 1. no new connections; 2. every connection answers the requests that had arrived and is closed,
//! open interactive transactions are rolled back; 3. the server drops its handle of the store,
//! which closes with its last handle. What was answered is durable at every moment, so a kill loses nothing
//! of it.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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
use crate::keyspace::{self, Around};
use crate::options::ServerOptions;
use crate::reactor::Fleet;
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
    pub(crate) events: Arc<Events>,
    /// Snapshots that `AZ.SNAPSHOT` has opened.
    pub(crate) snapshots: Arc<Snapshots>,
    tls: Option<Tls>,
    /// The node, if it serves as one.
    pub(crate) cluster: OnceLock<Cluster>,
}

/// A running server. Dropped without [`stop`](Self::stop) it stops the same way, without telling what went
/// wrong.
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
/// let mut client = std::net::TcpStream::connect(server.address())?;
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
    fleet: Arc<Fleet>,
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    /// Its end tells the threads below to end.
    stopping: Option<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    /// Stops after the last connection.
    node: Option<NodeThread>,
}

impl Server {
    /// Opens the door to `db`. Clients can connect when it returns.
    ///
    /// # Errors
    ///
    /// [`ServerError::PublicWithoutPassword`], [`ServerError::Listen`] and [`ServerError::Tls`] say what to
    /// change.
    pub fn start(db: Database, mut options: ServerOptions) -> Result<Self, ServerError> {
        options.validate()?;
        options.max_clients = descriptors::most_clients(options.max_clients);
        let tls = options.tls.as_ref().map(Tls::load).transpose()?;
        let listener = listen(options.listen)?;
        let metrics_listener = options.metrics.map(listen).transpose()?;
        let local = |listener: &TcpListener| listener.local_addr().map_err(ServerError::Thread);
        let address = local(&listener)?;
        let metrics_address = metrics_listener.as_ref().map(local).transpose()?;
        db.transact(keyspace::make_tables)?;
        let around = Around {
            watches: Watches::default(),
            cursors: Cursors::new(db.clone(), options.cluster.as_ref().map_or(0, |cluster| cluster.pe.0)),
            max_value_bytes: cluster::max_value_bytes(&options),
            max_key_bytes: keyspace::max_key_bytes(&db),
            max_reply_bytes: options.max_reply_bytes,
        };
        let events = Arc::new(Events::default());
        let engine = Engine::new(db, around, &options, Arc::clone(&events));
        let shared = Arc::new(Shared {
            engine,
            options,
            clients: Arc::default(),
            counters: Counters::new(),
            began: Instant::now(),
            unfinished: Budget::default(),
            events,
            snapshots: Arc::default(),
            tls,
            cluster: OnceLock::new(),
        });
        let node = cluster::start(&shared)?;
        let fleet = Fleet::start(shared.options.reactors, shared.options.adapts_reactors)
            .map_err(ServerError::Thread)?;
        let (stopping, stopped) = UnixStream::pair().map_err(ServerError::Thread)?;
        let mut server = Self {
            shared: Some(Arc::clone(&shared)),
            address,
            metrics_address,
            fleet: Arc::clone(&fleet),
            stopping: Some(stopping),
            threads: Vec::new(),
            node,
        };
        server.spawn("expiry", &shared, &stopped, expire)?;
        server.spawn("listener", &shared, &stopped, move |shared, stopped| {
            accept_all(&listener, stopped, &shared.events, |stream| admit(shared, &fleet, stream));
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

    /// For tests that serve connections themselves.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(self.shared.as_ref().expect("it runs"))
    }

    /// The address for clients.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Most connections at once: as the options have it, or fewer if the process may not open so many files.
    #[must_use]
    pub fn max_clients(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.options.max_clients)
    }

    /// The address of `/metrics` and `/healthz`.
    #[must_use]
    pub const fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The address for other nodes of the cluster.
    #[must_use]
    pub fn node_address(&self) -> Option<SocketAddr> {
        self.node.as_ref().map(NodeThread::address)
    }

    /// Stops in order. Blocks until requests that were accepted are answered,
    /// [`drain_timeout`](ServerOptions::drain_timeout) at most. The store stays open for other handles; the
    /// last one closes it, and [`Database::close`] tells whether that went well.
    ///
    /// # Errors
    ///
    /// [`ServerError::StillInUse`]. What was answered is safe all the same.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.shut()
    }

    fn shut(&mut self) -> Result<(), ServerError> {
        let Some(shared) = self.shared.take() else { return Ok(()) };
        tracing::info!(address = %self.address, clients = shared.clients.len(), "server stopping");
        drop(self.stopping.take());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        let cut_off = shared.clients.drain(shared.options.drain_timeout);
        // Those that were cut off are about to end.
        shared.clients.wait_for_none(CUT_OFF);
        self.fleet.stop(CUT_OFF);
        if let Some(node) = self.node.take() {
            node.stop();
        }
        tracing::info!(address = %self.address, cut_off, "server stopped");
        match Arc::try_unwrap(shared) {
            // Not closed: the program may use the store by other handles.
            Ok(_) => Ok(()),
            // A thread still waits for a lock or the disk.
            Err(_) => Err(ServerError::StillInUse),
        }
    }
}

/// Time for connections that were cut off to notice it.
const CUT_OFF: Duration = Duration::from_secs(5);

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.shut();
    }
}

pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| ServerError::Listen { address, source })
}

/// Hands each new connection to `serve`, until `stopped` ends.
fn accept_all(
    listener: &TcpListener,
    stopped: &UnixStream,
    events: &Events,
    mut serve: impl FnMut(TcpStream),
) {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut ready, None).is_err() {
            continue; // a signal
        }
        if !ready[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                if stream.set_nonblocking(true).is_ok() {
                    serve(stream);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // No more files, or a client that has gone again: let others end first.
            Err(error) => {
                events.cannot_accept(&error);
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Takes a connection in, and gives it to a reactor.
fn admit(shared: &Arc<Shared>, fleet: &Arc<Fleet>, stream: TcpStream) {
    shared.counters.connections.inc();
    let client = match shared.clients.admit(stream, shared.options.max_clients) {
        Ok(client) => client,
        Err(mut stream) => {
            shared.counters.rejected.inc();
            let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
            shared.events.refused(stream.peer_addr().unwrap_or(unknown), Refusal::TooManyClients);
            let mut out = Vec::new();
            Reply::Error(CommandError::TooManyClients).encode(Protocol::Resp2, &mut out);
            // It may have gone already.
            let _ = stream.write_all(&out);
            return;
        }
    };
    let released = Released::of(Arc::clone(&shared.clients), client.id);
    // A small reply goes at once.
    let _ = client.stream.set_nodelay(true);
    let channel = shared.tls.as_ref().map_or(Ok(Channel::Clear), Tls::accept);
    if let Ok(channel) = channel {
        fleet.admit(Box::new(Connection::new(shared, client, released, channel)));
    }
}

/// Removes what has ended, step by step: at intervals while keys end, and seldom while none does.
fn expire(shared: &Arc<Shared>, stopped: &UnixStream) {
    let mut pause = shared.options.expiry_interval;
    loop {
        let timeout = rustix::event::Timespec::try_from(pause).unwrap_or_default();
        let mut ready = [PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0) {
            return;
        }
        let mut next_ms = None;
        for _ in 0..MAX_STEPS {
            // An error is one of the store, and comes to those who use it.
            let now_ms = shared.engine.clock.now_ms();
            let Ok(dropped) = keyspace::drop_ended(&shared.engine.db, now_ms) else { break };
            shared.counters.expired.add(dropped.records as u64);
            next_ms = dropped.next_ms.map(|at| at.saturating_sub(now_ms));
            if !dropped.is_more {
                break;
            }
        }
        pause = pause_until(shared.options.expiry_interval, next_ms);
    }
}

/// The time to the next look if the next key ends in so many milliseconds: a key that comes meanwhile and
/// ends earlier takes its space for [`LONGEST_PAUSE`] intervals at most.
fn pause_until(interval: Duration, next_ms: Option<u64>) -> Duration {
    let longest = interval.saturating_mul(LONGEST_PAUSE);
    next_ms.map_or(longest, Duration::from_millis).clamp(interval, longest)
}

/// Intervals between two looks while no key ends: with the default interval a server without work wakes once
/// in a second.
const LONGEST_PAUSE: u32 = 10;

/// Steps in a row before it looks whether to stop.
const MAX_STEPS: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

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

    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";

    fn connect(server: &Server) -> TcpStream {
        let client = TcpStream::connect(server.address()).expect("it listens");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a test that hangs fails instead");
        client
    }

    fn set(client: &mut TcpStream) -> io::Result<[u8; 5]> {
        let mut reply = [0; 5];
        client.write_all(SET)?;
        client.read_exact(&mut reply)?;
        Ok(reply)
    }

    /// REACT-5: also of connections that wait for a lock, or say nothing, while the number changes.
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
            server.fleet.use_reactors(1 + round / 2 % 4);
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
        // A connection that is asked twice with one number in use is at home in between. Of the 16 numbers in
        // a row 14 at least have two homes or more in each row of four.
        let moved = server.fleet.moved.load(Relaxed);
        assert!(moved >= 14 * 2 * 14, "{moved} moves");
        server.stop().expect("nothing is left");
    }

    /// The committer of a reactor that panics leaves nobody waiting: it ends that one connection, without a
    /// reply that may be wrong.
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
            // A commit that happens to be durable at once is not waited for.
            while set(&mut broken).is_ok() {}
            assert!(!shared.engine.breaks_next_wait.load(Relaxed), "its commit was waited for");
            assert_eq!(&set(&mut other).expect("a reply"), b"+OK\r\n");
            assert_eq!(&set(&mut connect(&server)).expect("a reply"), b"+OK\r\n");
        }
        server.stop().expect("nothing is left");
    }
}
