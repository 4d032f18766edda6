//! F4, F6: a broken connection is not a lost server. The client continues its session over another connection
//! if it proves that it has the session's name. No other client can do that.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_far::wire::auth::{Handshake, introduce};
use azekura_far::wire::{HEADER, Header, Kind, Open, Opened};
use azekura_far::{FarMemory, FarMemoryBuilder, Server, ServerBuilder};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 8 << 10;
const PAGES: usize = 48;
/// Longer than the delays of any machine.
const LONG: Duration = Duration::from_secs(300);

/// A relay between client and server that cuts each connection after a number of bytes from the server.
struct Relay {
    address: SocketAddr,
    cuts: Arc<AtomicU64>,
}

impl Relay {
    /// Each connection transfers at least the handshake and one page before it is cut, so that each one makes
    /// progress.
    fn new(server: SocketAddr, seed: u64) -> Self {
        const LEAST: u64 = 400 + PAGE as u64;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let (rng, counted) = (Mutex::new(StdRng::seed_from_u64(seed)), Arc::clone(&cuts));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { return };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let most = rng.lock().unwrap().random_range(LEAST..30 * PAGE as u64);
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
                let counted = Arc::clone(&counted);
                thread::spawn(move || {
                    let copied = std::io::copy(&mut (&server).take(most), &mut &client).unwrap_or(0);
                    if copied == most {
                        counted.fetch_add(1, Relaxed);
                    }
                    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
                });
            }
        });
        Self { address, cuts }
    }
}

fn listen(builder: ServerBuilder) -> Server {
    builder.listen("127.0.0.1:0").unwrap()
}

fn server() -> ServerBuilder {
    Server::builder().capacity(32 << 20)
}

fn setting(addresses: &[SocketAddr]) -> FarMemoryBuilder {
    let names = addresses.iter().map(ToString::to_string);
    FarMemory::builder().bytes(PAGES * PAGE).local(12 * PAGE).page(PAGE).servers(names).stall(LONG)
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < LONG, "{what}: not within {LONG:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Writes, reads and discards, and compares with a plain array.
fn work(memory: &mut FarMemory, rng: &mut StdRng, rounds: usize) {
    let mut plain = vec![0_u8; memory.len()];
    for round in 0..rounds {
        let at = rng.random_range(0..PAGES) * PAGE;
        let span = at..at + PAGE;
        match rng.random_range(0..8) {
            0..4 => {
                let value = rng.random();
                memory[span.clone()].fill(value);
                plain[span].fill(value);
            }
            4 => {
                memory.discard(span.clone());
                plain[span].fill(0);
            }
            _ => assert!(memory[span.clone()] == plain[span], "round {round}, page {}", at / PAGE),
        }
    }
    assert!(memory[..] == plain[..], "the whole at the end");
}

#[test]
fn f4_connections_that_break_again_and_again_lose_nothing() {
    for trial in 0..6_u64 {
        println!("seed {trial}");
        let mut rng = StdRng::seed_from_u64(trial);
        let servers: Vec<Server> = (0..1 + trial % 2).map(|_| listen(server().linger(LONG))).collect();
        let relays: Vec<Relay> = servers.iter().map(|server| Relay::new(server.address(), trial)).collect();
        let addresses: Vec<SocketAddr> = relays.iter().map(|relay| relay.address).collect();
        let mut memory = setting(&addresses).build().unwrap();
        work(&mut memory, &mut rng, 400);
        let (cuts, stats) =
            (relays.iter().map(|relay| relay.cuts.load(Relaxed)).sum::<u64>(), memory.stats());
        assert_eq!((stats.replicas_lost, stats.replicas_regained), (0, 0), "{stats:?}");
        assert!(cuts > 5 && stats.replicas_resumed > 5, "{cuts} cuts, {stats:?}");
        drop(memory);
        for server in &servers {
            assert!(server.stats().resumed > 2);
            wait_for("the end of the session", || server.stats().promised_bytes == 0);
        }
    }
}

/// A client that sends single frames, without the library.
struct Client {
    stream: TcpStream,
    handshake: Handshake,
}

impl Client {
    fn new(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let handshake = introduce(&mut stream, None).unwrap();
        Self { stream, handshake }
    }

    fn say(&mut self, kind: Kind, page: u64, payload: &[u8]) {
        let header = Header { page, ..Header::with(kind, 1, 0, payload) };
        self.stream.write_all(&header.encode()).unwrap();
        self.stream.write_all(payload).unwrap();
    }

    fn hear(&mut self) -> (Kind, Vec<u8>) {
        let mut head = [0; HEADER];
        self.stream.read_exact(&mut head).unwrap();
        let header = Header::decode(&head).unwrap();
        let mut payload = vec![0; header.length as usize];
        self.stream.read_exact(&mut payload).unwrap();
        (header.kind, payload)
    }

    /// Opens a new session. Returns its name.
    fn open(&mut self, reserve_bytes: u64) -> Result<u128, String> {
        let open = Open { page_bytes: 4096, reserve_bytes, like: 0 }.encode();
        self.say(Kind::Open, 0, &open);
        match self.hear() {
            (Kind::Opened, payload) => Ok(Opened::decode(&payload).unwrap().session),
            (_, why) => Err(String::from_utf8(why).unwrap()),
        }
    }

    fn resume(&mut self, proof: [u8; Handshake::PROOF]) -> Result<u128, String> {
        self.say(Kind::Resume, 0, &proof);
        match self.hear() {
            (Kind::Opened, payload) => Ok(Opened::decode(&payload).unwrap().session),
            (_, why) => Err(String::from_utf8(why).unwrap()),
        }
    }

    fn resume_named(&mut self, session: u128) -> Result<u128, String> {
        let proof = self.handshake.proof(session);
        self.resume(proof)
    }

    fn put(&mut self, page: u64, byte: u8) {
        self.say(Kind::Put, page, &[byte; 4096]);
        assert_eq!(self.hear().0, Kind::Stored);
    }

    fn get(&mut self, page: u64) -> u8 {
        self.say(Kind::Get, page, &[]);
        let (kind, bytes) = self.hear();
        assert_eq!(kind, Kind::Page);
        bytes[0]
    }

    fn has_ended(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn f6_a_session_is_resumed_only_with_its_name() {
    let server = listen(server().linger(LONG));
    let mut first = Client::new(&server);
    let name = first.open(0).unwrap();
    first.put(7, 77);
    let overheard = first.handshake.proof(name);
    for wrong in [[0; Handshake::PROOF], [255; Handshake::PROOF], overheard] {
        assert!(Client::new(&server).resume(wrong).unwrap_err().contains("no such session"));
    }
    assert!(Client::new(&server).resume_named(name ^ 2).is_err());
    assert_eq!(first.get(7), 77, "and the session was not disturbed");
    // A client with the name takes over the session even while the old connection is open, because a client
    // may detect a broken connection before the server does.
    let mut second = Client::new(&server);
    assert_eq!(second.resume_named(name), Ok(name));
    assert!(first.has_ended());
    assert_eq!(second.get(7), 77);
    second.put(8, 88);
    drop(second);
    let mut third = Client::new(&server);
    assert_eq!(third.resume_named(name), Ok(name));
    assert_eq!((third.get(7), third.get(8)), (77, 88));
    assert_eq!((server.stats().sessions_ever, server.stats().resumed), (1, 2));
}

#[test]
fn a_session_ends_with_its_client_or_after_the_linger_time() {
    for (linger, says_bye) in [(LONG, true), (Duration::from_millis(1), false)] {
        let server = listen(server().linger(linger));
        let mut client = Client::new(&server);
        let name = client.open(8192).unwrap();
        client.put(7, 77);
        if says_bye {
            client.say(Kind::Bye, 0, &[]);
            assert!(client.has_ended());
        }
        drop(client);
        wait_for("its room", || server.stats().promised_bytes == 0);
        assert_eq!((server.stats().pages, server.stats().waiting), (0, 0));
        assert!(Client::new(&server).resume_named(name).unwrap_err().contains("no such session"));
    }
}

#[test]
fn f6_waiting_sessions_are_evicted_for_space_oldest_first() {
    let server = listen(Server::builder().capacity(3 * 8192).linger(LONG));
    let names: Vec<u128> = (0..3)
        .map(|waiting| {
            let mut client = Client::new(&server);
            let name = client.open(8192).unwrap();
            client.put(1, waiting as u8);
            drop(client);
            wait_for("it to wait", || server.stats().waiting == waiting + 1);
            name
        })
        .collect();
    let mut live = Client::new(&server);
    live.open(8192).unwrap();
    assert_eq!(server.stats().waiting, 2);
    assert!(Client::new(&server).resume_named(names[0]).is_err());
    // A page beyond the reservation needs memory, too.
    live.put(1, 1);
    live.put(2, 2);
    live.put(3, 3);
    assert_eq!(server.stats().waiting, 1);
    assert!(Client::new(&server).resume_named(names[1]).is_err());
    let mut back = Client::new(&server);
    assert_eq!(back.resume_named(names[2]), Ok(names[2]));
    assert_eq!(back.get(1), 2);
    // A session with a connection is not evicted.
    assert!(Client::new(&server).open(2 * 8192).unwrap_err().contains("are available here"));
    assert_eq!(server.stats().waiting, 0);
}

#[test]
fn a_shutdown_waits_for_no_client() {
    let mut server = listen(server().linger(LONG));
    let mut client = Client::new(&server);
    client.open(0).unwrap();
    drop(client);
    wait_for("it to wait", || server.stats().waiting == 1);
    server.shutdown();
    assert_eq!(server.stats().waiting, 0);
}

/// Each connection sends one byte and waits. There are as many connections as a listener can queue, more than
/// the server's largest number of sessions.
#[test]
fn f6_connections_that_do_not_log_in_keep_no_client_out() {
    let server = Server::builder().capacity(64 << 20).max_sessions(8).listen("127.0.0.1:0").unwrap();
    let strangers: Vec<TcpStream> = (0..1024)
        .map(|_| {
            let mut stranger = TcpStream::connect(server.address()).unwrap();
            stranger.write_all(b"A").unwrap();
            stranger
        })
        .collect();
    let make = || {
        FarMemory::builder()
            .bytes(1 << 20)
            .local(256 << 10)
            .page(4096)
            .reserve(0)
            .servers([server.address().to_string()])
            .stall(LONG)
            .build()
    };
    let clients: Vec<FarMemory> = (0..8).map(|_| make().unwrap()).collect();
    let more: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    for mut client in clients {
        client.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        assert!(client.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    }
    // The threads of closed connections count them shortly afterward.
    wait_for("their count", || server.stats().turned_away >= 1024 - 32);
    drop((strangers, more));
}
