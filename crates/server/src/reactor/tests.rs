//! Tests of a reactor that the test's own thread drives step by step. The sockets are real.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use azekura::{Database, TableDefinition};
use azekura_base::blocking;
use rustix::net::sockopt::{set_socket_linger, set_socket_send_buffer_size};

use super::connection_table::MissedEvent;
use super::drive::{hand_over, turn};
use super::group_members::GroupMembers;
use super::reactor_pool::ReactorPool;
use super::{Connection, Reactor};
use crate::channel::Channel;
use crate::clients::Released;
use crate::error::NO_THREAD;
use crate::server::{Server, Shared};
use crate::{Clock, ServerOptions};

/// Time limit of a test, so that a hanging test fails.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Bench {
    /// The reactor; `None` only during a turn.
    reactor: Option<Box<Reactor>>,
    members: GroupMembers,
    pool: Arc<ReactorPool>,
    shared: Arc<Shared>,
    /// The server. Dropped last, because its drop waits for the connections.
    server: Server,
}

impl Bench {
    fn new() -> Self {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let options =
            ServerOptions { listen, reactors: 1, clock: Clock::Manual(Arc::default()), ..Default::default() };
        let server = Server::start(Database::in_memory().expect("memory"), options).expect("a server");
        let (pool, mut reactors) = ReactorPool::idle(1, false).expect("a poll");
        Self {
            shared: server.shared(),
            server,
            pool,
            reactor: reactors.pop(),
            members: GroupMembers::default(),
        }
    }

    fn reactor(&mut self) -> &mut Reactor {
        self.reactor.as_mut().expect("no turn goes on")
    }

    /// Connects a client to this reactor instead of the server's own reactors.
    fn client(&mut self) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        client.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let (stream, _) = listener.accept().expect("it connects");
        set_socket_send_buffer_size(&stream, 32 << 10).expect("a socket");
        let shared = Arc::clone(&self.shared);
        let about = shared.clients.admit(stream.try_into().expect("a socket"), 100).expect("there is room");
        let released = Released::of(Arc::clone(&shared.clients), about.id);
        let connection = Connection::new(&shared, about, released, Channel::Clear);
        self.reactor().register(Box::new(connection));
        self.answer(); // the first read finds no input
        client
    }

    /// Waits until `count` connections are queued.
    fn arrive(&mut self, count: usize) {
        let until = Instant::now() + TIMEOUT;
        while self.reactor().connections.queued() < count {
            assert!(Instant::now() < until, "nothing arrives");
            self.reactor().poll(true);
        }
    }

    /// Removes the first queued connection from its slot.
    fn next(&mut self) -> Box<Connection> {
        self.arrive(1);
        self.reactor().connections.take_next().expect("it is queued")
    }

    /// Waits until `count` connections are queued, then runs turns until all of them are answered.
    fn serve(&mut self, count: usize) {
        self.arrive(count);
        self.answer();
    }

    fn answer(&mut self) {
        self.turns_until(|reactor| reactor.connections.queued() == 0 && reactor.waiting.is_empty());
    }

    fn turns_until(&mut self, is_so: impl Fn(&Reactor) -> bool) {
        let until = Instant::now() + TIMEOUT;
        while !is_so(self.reactor()) {
            assert!(Instant::now() < until);
            let mut reactor = self.reactor.take().expect("no turn goes on");
            reactor.next_scan = Some(Instant::now()); // the poll of this turn does not block
            self.reactor = turn(&self.pool, reactor, &mut self.members);
            assert!(!self.members.group.is_open(), "GROUP-2");
        }
    }

    fn groups(&self) -> (u64, u64) {
        let counters = &self.shared.counters;
        (counters.groups.get(), counters.grouped.get())
    }

    fn value(&self, key: &str) -> Option<Vec<u8>> {
        let keys = TableDefinition::<[u8], [u8]>::new("redis.keys");
        let db = &self.shared.engine.db;
        db.transact(|tx| tx.table(&keys)?.get(key.as_bytes())).expect("a store in memory")
    }
}

fn say(client: &mut TcpStream, text: &str) {
    client.write_all(text.as_bytes()).expect("it listens");
}

fn expect(client: &mut TcpStream, wanted: &str) {
    let mut got = vec![0; wanted.len()];
    client.read_exact(&mut got).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&got), wanted);
}

fn expect_the_end(client: &mut TcpStream) {
    // The end of the stream, or a reset if the server did not read all input.
    assert!(matches!(client.read(&mut [0; 64]), Ok(0) | Err(_)), "it goes on");
}

#[test]
fn writes_of_several_clients_in_one_turn_are_one_transaction() {
    let mut bench = Bench::new();
    let mut clients: Vec<TcpStream> = (0..5).map(|_| bench.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        say(client, &format!("SET k{i} {i}\r\nINCR n\r\n"));
    }
    bench.serve(5);
    for (i, client) in clients.iter_mut().enumerate() {
        expect(client, "+OK\r\n:");
        let mut rest = [0; 3];
        client.read_exact(&mut rest).expect("a number");
        assert_eq!(bench.value(&format!("k{i}")), Some(format!("\0{i}").into_bytes()));
    }
    assert_eq!((bench.value("n"), bench.groups()), (Some(b"\x005".to_vec()), (1, 10)));
}

/// GROUP-3: a store and a removal are never in one group.
#[test]
fn requests_that_store_and_remove_share_no_transaction() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    say(&mut client, "SET a 1\r\nDEL a\r\nSET a 2\r\nGET a\r\nSET b 1\r\n");
    bench.serve(1);
    expect(&mut client, "+OK\r\n:1\r\n+OK\r\n$1\r\n2\r\n+OK\r\n");
    assert_eq!(bench.groups(), (4, 4));
}

/// GROUP-5: a group has at most `MEMBERS` members and about `BYTES` bytes.
#[test]
fn a_group_takes_no_more_than_so_many() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    say(&mut client, &"INCR n\r\n".repeat(200));
    bench.serve(1);
    (1..=200).for_each(|n| expect(&mut client, &format!(":{n}\r\n")));
    assert_eq!(bench.groups(), (4, 200));
    let long = "x".repeat(5000);
    say(&mut client, &format!("SET long {long}\r\n").repeat(8));
    bench.serve(1);
    (0..8).for_each(|_| expect(&mut client, "+OK\r\n"));
    let (groups, grouped) = bench.groups();
    assert!(groups >= 6 && grouped == 208, "four of them are beyond the bound: {groups}");
    say(&mut client, &format!("SET long {}\r\nSET short 1\r\n", long.repeat(4)));
    bench.serve(1);
    expect(&mut client, "+OK\r\n+OK\r\n");
    assert_eq!(bench.groups().1, 209, "one that is too large joins none");
}

/// GROUP-5: a group accepts no member while a transaction waits for its locks.
#[test]
fn a_group_with_a_waiter_takes_no_more() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    say(&mut client, "SET k 1\r\n");
    let until = Instant::now() + TIMEOUT;
    let mut connection = bench.next();
    connection.serve(&mut bench.members.group);
    assert!(connection.is_member() && !bench.members.group.is_full());
    std::thread::scope(|scope| {
        let (server, key) = (&bench.server, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        let waiter = scope.spawn(|| {
            let mut client = TcpStream::connect(server.address().tcp().expect("a port")).expect("it listens");
            client.set_read_timeout(Some(TIMEOUT)).expect("a socket");
            say(&mut client, key);
            expect(&mut client, "$1\r\n1\r\n");
        });
        while !bench.members.group.is_full() {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        bench.members.part(Some(&mut connection), |_| unreachable!("nobody else is kept"));
        waiter.join().expect("the value that the group left");
    });
    connection.wait();
    connection.send();
    expect(&mut client, "+OK\r\n");
}

/// GROUP-4: after a panic of a member, every member of the group gets an error or no reply; other connections
/// continue.
#[test]
fn a_panic_in_a_group_ends_its_connections_without_a_reply_that_is_wrong_and_no_other() {
    let mut bench = Bench::new();
    let (mut first, mut broken, mut last) = (bench.client(), bench.client(), bench.client());
    say(&mut first, "SET a 1\r\nGET a\r\nSET a 2\r\n");
    bench.serve(1);
    expect(&mut first, "+OK\r\n$1\r\n1\r\n+OK\r\n");
    say(&mut first, "SET a 3\r\n");
    let mut connection = bench.next();
    connection.serve(&mut bench.members.group);
    bench.members.keep(connection);
    bench.shared.engine.breaks_next_member.store(true, Relaxed);
    say(&mut broken, "SET b 1\r\n");
    bench.arrive(1);
    say(&mut last, "SET c 1\r\n");
    bench.serve(2);
    expect(&mut first, "-UNAVAIL the transaction");
    let mut text = String::new();
    first.read_to_string(&mut text).expect("text");
    expect_the_end(&mut broken);
    expect(&mut last, "+OK\r\n");
    assert_eq!((bench.value("a"), bench.value("b")), (Some(b"\x002".to_vec()), None));
    assert_eq!(bench.value("c"), Some(b"\x001".to_vec()));
}

/// The server sends the rest of a large reply when the client has read the first part. This also holds if the
/// event for free space in the socket arrives while a thread has the connection: that event does not repeat.
#[test]
fn replies_continue_after_space_that_arrived_during_a_commit_wait() {
    const BYTES: usize = 12 << 20;
    let mut bench = Bench::new();
    let keys = TableDefinition::<[u8], [u8]>::new("redis.keys");
    let db = bench.shared.engine.db.clone();
    db.transact(|tx| tx.table(&keys)?.insert(b"big", &vec![0; BYTES + 1])).expect("a store in memory");
    let mut client = bench.client();
    say(&mut client, "GET big\r\n");
    let until = Instant::now() + TIMEOUT;
    let mut connection = bench.next();
    let token = connection.token.expect("it is registered");
    connection.serve(&mut bench.members.group);
    connection.wait();
    connection.send();
    assert!(connection.has_unsent(), "the socket took all of it");
    // The client reads all bytes that have arrived. The event comes while the test has the connection.
    client.set_nonblocking(true).expect("a socket");
    let (mut taken, mut some) = (0, vec![0; 1 << 20]);
    while bench.reactor().connections.missed(token) == MissedEvent::None {
        assert!(Instant::now() < until, "no event");
        taken += client.read(&mut some).unwrap_or(0);
        bench.reactor().poll(true);
    }
    assert_eq!(bench.reactor().connections.missed(token), MissedEvent::Room);
    bench.reactor().put_back(token, Some(connection));
    assert_eq!(bench.reactor().connections.queued(), 1, "it is tried again, though no event will come");
    client.set_nonblocking(false).expect("a socket");
    let rest = std::thread::spawn(move || {
        let mut rest = vec![0; format!("${BYTES}\r\n").len() + BYTES + 2 - taken];
        client.read_exact(&mut rest).is_ok()
    });
    // Runs until the client has read everything and disconnects.
    bench.turns_until(|reactor| reactor.connections.present() == 0);
    assert!(rest.join().expect("no panic"));
}

/// Other connections do not wait for a pipeline of slow requests, even if none of the requests blocks.
#[test]
fn a_long_run_of_requests_is_announced() {
    thread_local! {
        static ANNOUNCED: Cell<u32> = const { Cell::new(0) };
    }
    const BYTES: usize = 4 << 20;
    let mut bench = Bench::new();
    let keys = TableDefinition::<[u8], [u8]>::new("redis.keys");
    let db = bench.shared.engine.db.clone();
    db.transact(|tx| tx.table(&keys)?.insert(b"big", &vec![0; BYTES + 1])).expect("a store in memory");
    let mut client = bench.client();
    say(&mut client, &"BITCOUNT big\r\n".repeat(60));
    let mut connection = bench.next();
    blocking::on_block(Some(|| {
        ANNOUNCED.set(ANNOUNCED.get() + 1);
        true
    }));
    connection.serve(&mut bench.members.group);
    blocking::on_block(None);
    assert!(ANNOUNCED.get() > 0, "60 counts of 32 million bits take some milliseconds each");
    connection.wait();
    connection.send();
    (0..60).for_each(|_| expect(&mut client, ":0\r\n"));
}

/// The client that holds the lock is a connection of the same reactor: its commit cannot arrive while the
/// reactor's thread waits.
#[test]
fn a_request_does_not_wait_for_a_lock_if_no_thread_can_be_created() {
    let mut bench = Bench::new();
    let (mut holder, mut other) = (bench.client(), bench.client());
    say(&mut holder, "AZ.BEGIN\r\nSET k 1\r\n");
    bench.serve(1);
    expect(&mut holder, "+OK\r\n+OK\r\n");
    bench.pool.workers.end(); // no thread starts any more
    blocking::on_block(Some(hand_over));
    say(&mut other, "GET k\r\n");
    bench.serve(1);
    expect(&mut other, &format!("-RETRY {NO_THREAD}; the transaction was rolled back, begin it again\r\n"));
    say(&mut holder, "AZ.COMMIT\r\n");
    bench.serve(1);
    expect(&mut holder, "+OK\r\n");
    say(&mut other, "GET k\r\n");
    bench.serve(1);
    blocking::on_block(None);
    expect(&mut other, "$1\r\n1\r\n");
}

/// REACT-2: the rollback of a transaction may take long, so the reactor is offered meanwhile.
#[test]
fn a_connection_that_ends_while_it_is_answered_is_dropped_in_a_turn_of_its_own() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    say(&mut client, "AZ.BEGIN\r\nSET a 1\r\n");
    let until = Instant::now() + TIMEOUT;
    let mut connection = bench.next();
    let token = connection.token.expect("it is registered");
    connection.serve(&mut bench.members.group);
    // A socket without a linger time resets its connection.
    set_socket_linger(&client, Some(Duration::ZERO)).expect("a socket");
    drop(client);
    while bench.reactor().connections.missed(token) != MissedEvent::End {
        assert!(Instant::now() < until, "no event");
        bench.reactor().poll(true);
    }
    bench.reactor().answer(connection);
    assert_eq!(bench.reactor().connections.queued(), 1, "it is over, and not dropped");
    bench.answer();
    assert_eq!((bench.reactor().connections.present(), bench.value("a")), (0, None));
}
