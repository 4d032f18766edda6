//! Connections between a node and another node that the test simulates. A request from a node that could not
//! be reached before is answered too.

use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use azekura::Database;
use azekura_auth::AuthKey;
use azekura_fatbtree::frame::{self, Address};
use azekura_fatbtree::store::{Change, DatabaseStore, Inline, LeafStore, NoAttachments};
use azekura_fatbtree::tcp::handshake::{self, Identity};
use azekura_fatbtree::tcp::{LinkState, LinkStatus, NodeConfig, NodeHandle, NodeThread};
use azekura_fatbtree::{
    Answer, Application, Credentials, Error, Find, ListMark, Member, Membership, Message, NoApplication,
    Options, PageNo, PeId, RequestId, Target, Work,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const CLUSTER: u64 = 0x11;
/// The node under test, and the node that the test simulates.
const NODE: PeId = PeId(0);
const PLAYED: PeId = PeId(1);
const ME: Identity =
    Identity { cluster: CLUSTER, pe: PLAYED, epoch: 1, store: STORE, list: NO_LIST, clock_ms: 0 };
/// List mark without a version.
const NO_LIST: ListMark = ListMark { version: 0, digest: 0 };
const STORE: Credentials = Credentials { birth: 5, is_settled: true, is_loss_accepted: false };
/// Number of failing calls before the simulated node connects. By then the pauses between calls are long.
const FAILED_CALLS: usize = 8;
/// Time limit, so that a hanging test fails, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a trial until it succeeds, at most four times. A node waits three seconds for a handshake, and drops
/// the frames of the connection after that. A busy machine may delay the simulated node for longer.
fn one_of_four(trial: impl Fn()) {
    let succeeds = |_| catch_unwind(AssertUnwindSafe(&trial)).is_ok();
    if !(0..3).any(succeeds) {
        trial();
    }
}

fn key() -> AuthKey {
    AuthKey::new(b"a key that both of them know").expect("long enough")
}

/// Starts the node under test, and returns the listener of the simulated node, which sends no heartbeats and
/// may not run for some seconds.
fn node() -> (NodeThread, TcpListener) {
    let mut options = Options::default();
    options.request_timeout = TIMEOUT;
    options.heartbeat_interval = None;
    node_with(options)
}

fn node_with(options: Options) -> (NodeThread, TcpListener) {
    let played = TcpListener::bind("127.0.0.1:0").expect("a port");
    let node = node_beside(played.local_addr().expect("it listens"), options);
    played.set_nonblocking(true).expect("a socket");
    (node, played)
}

/// Starts the node under test. The simulated node has the address `played`.
fn node_beside(played: SocketAddr, options: Options) -> NodeThread {
    let own = TcpListener::bind("127.0.0.1:0").expect("a port");
    let member = |pe, address, from: &str| Member {
        pe,
        address,
        clients: None,
        from: Some(from.to_owned()),
        left: false,
    };
    let members = vec![member(NODE, own.local_addr().expect("it listens"), ""), member(PLAYED, played, "m")];
    let members = Membership::new(CLUSTER, "unused".into(), members).expect("fine");
    let config =
        NodeConfig { pe: NODE, members, key: key(), listener: own, options, rows: "rows".to_owned() };
    let db = settled(&config.members);
    let application = |_| -> Rc<dyn Application> { Rc::new(NoApplication) };
    NodeThread::start(db, Arc::new(NoAttachments), application, config).expect("it starts")
}

/// Returns a settled store, so that the node does not wait for entries of the simulated node.
fn settled(members: &Membership) -> Database {
    let db = Database::in_memory().expect("memory");
    let store = DatabaseStore::new(db.clone(), "rows", Rc::new(Inline), Arc::new(NoAttachments));
    let founding = members.founding(NODE);
    play(store.recover(founding.clone())).expect("a new store");
    play(store.change(Change { put: founding.heads(), settles: true, ..Change::default() })).expect("memory");
    db
}

fn link(node: &NodeThread) -> LinkStatus {
    let status = node.handle().ask(|here| Box::pin(async move { here.status() })).expect("it runs");
    status.links.into_iter().next().expect("there is one other node")
}

/// Connects to the node as the simulated node. The node ends a handshake that takes some seconds: then it is
/// repeated.
async fn come_in(node: &NodeThread) -> TcpStream {
    loop {
        let mut stream = TcpStream::connect(node.address()).await.expect("it listens");
        if handshake::call(&mut stream, ME, NODE, 1, &key()).await.is_ok() {
            return stream;
        }
    }
}

/// Accepts a connection of the node as the simulated node. The node may have given up earlier calls.
async fn be_called(listener: &tokio::net::TcpListener) -> TcpStream {
    loop {
        let (mut stream, _) = listener.accept().await.expect("a call");
        let answered =
            handshake::answer(&mut stream, ME, &key(), |pe| pe == NODE, async |_, _| Some(true)).await;
        if let Ok(caller) = answered {
            assert_eq!(caller, NODE);
            return stream;
        }
    }
}

/// Returns a request for a key of the node, as a frame.
fn find(number: u64, work: Work) -> (RequestId, Vec<u8>) {
    let id = RequestId { origin: PLAYED, incarnation: 1, number };
    let target = Target::At(b"a".to_vec());
    let find = Find { id, target, work, page: PageNo::ROOT, floor: 0, hops: 1, time_ms: 60_000, until: None };
    let address = Address { cluster: CLUSTER, from: PLAYED, epoch: 1 };
    (id, frame::encode(address, &Message::Find(find)))
}

async fn ask(stream: &mut TcpStream, number: u64, work: Work) -> RequestId {
    let (id, frame) = find(number, work);
    stream.write_all(&frame).await.expect("it takes it");
    id
}

/// Reads the next message of the node.
async fn next_message(stream: &mut TcpStream) -> Message {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.expect("it goes on");
    let mut body = vec![0; frame::length(head).expect("a frame")];
    stream.read_exact(&mut body).await.expect("it goes on");
    let (from, message) = frame::decode(&body, CLUSTER, 1).expect("a message");
    assert_eq!(from, NODE);
    message
}

/// Reads messages of the node until the answer to a request.
async fn answer_to(stream: &mut TcpStream, id: RequestId) -> Answer {
    loop {
        match next_message(stream).await {
            Message::Answered { id: answered, result, .. } if answered == id => {
                return result.expect("it is done");
            }
            _ => {}
        }
    }
}

fn play<T>(part: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, part).await.expect("nobody waits for ever") })
}

/// Refuses calls until the pauses between them are long.
async fn refuse_calls(node: &NodeThread, listener: &tokio::net::TcpListener) {
    for _ in 0..FAILED_CALLS {
        drop(listener.accept().await.expect("a call"));
    }
    while !matches!(link(node).state, LinkState::Down(_)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_node_that_connects_is_called_at_once_and_its_first_request_is_answered() {
    one_of_four(|| {
        let (node, listener) = node();
        play(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            refuse_calls(&node, &listener).await;
            let mut to_node = come_in(&node).await;
            let id = ask(&mut to_node, 1, Work::Put(b"1".to_vec())).await;
            let mut from_node = be_called(&listener).await;
            assert_eq!(answer_to(&mut from_node, id).await, Answer::Done { existed: false });
            assert_eq!(link(&node).state, LinkState::Up);
        });
    });
}

/// The greeting at the start of the node was dropped when its calls failed.
#[test]
fn a_node_that_is_reached_for_the_first_time_after_failed_calls_is_greeted() {
    one_of_four(|| {
        let (node, listener) = node();
        play(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            refuse_calls(&node, &listener).await;
            let _to_node = come_in(&node).await;
            let mut from_node = be_called(&listener).await;
            while next_message(&mut from_node).await != Message::Hello {}
        });
    });
}

#[test]
fn a_call_in_flight_when_a_node_connects_is_repeated() {
    one_of_four(|| {
        let (node, listener) = node();
        play(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            // The simulated node accepts the call and sends nothing.
            let (call, _) = listener.accept().await.expect("a call");
            let mut to_node = come_in(&node).await;
            let id = ask(&mut to_node, 1, Work::Get).await;
            drop(call);
            let mut from_node = be_called(&listener).await;
            assert_eq!(answer_to(&mut from_node, id).await, Answer::Value(None));
        });
    });
}

#[test]
fn a_wait_for_a_lost_answer_ends_with_its_connection() {
    one_of_four(|| {
        let (node, listener) = node();
        play(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            let mut to_node = come_in(&node).await;
            // All calls fail, including the one that the inbound connection causes.
            let refusing = async {
                loop {
                    drop(listener.accept().await.expect("a call"));
                }
            };
            let asking = async {
                for number in 1.. {
                    let sent = to_node.write_all(&find(number, Work::Get).1).await;
                    let is_ended = || matches!(to_node.try_read(&mut [0]), Ok(0));
                    if sent.is_err() || is_ended() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! { () = refusing => {}, () = asking => {} }
        });
        assert!(link(&node).dropped > 0);
    });
}

/// Requests a key of the simulated node from the node under test. With `retry`, repeats it while the
/// simulated node is known to be down.
fn ask_for_its_key(node: &NodeHandle, retry: bool) -> Result<Option<Vec<u8>>, Error> {
    loop {
        let got = node.ask(|here| Box::pin(async move { here.node.get(*b"z").await })).expect("it runs");
        if !retry || !matches!(got, Err(Error::Unreachable { .. })) {
            return got;
        }
    }
}

/// Returns options by which a request waits for an hour, unless the node is known to be down.
fn waiting() -> Options {
    let mut options = Options::default();
    options.request_timeout = Duration::from_secs(3600);
    options.read_timeout = Duration::from_secs(3600);
    options.heartbeat_interval = Some(Duration::from_millis(20));
    options
}

#[test]
fn a_request_for_a_key_of_a_node_that_refuses_connections_is_refused_at_once() {
    // The socket keeps its port and never listens, so the kernel refuses every connection.
    let played = TcpSocket::new_v4().expect("a socket");
    played.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let node = node_beside(played.local_addr().expect("it is bound"), waiting());
    let refused = ask_for_its_key(&node.handle(), false);
    let Err(Error::Unreachable { pe: PLAYED, reason }) = refused else { panic!("{refused:?}") };
    assert!(reason.to_lowercase().contains("refused"), "{reason}");
}

/// The simulated node has connections in both directions and sends nothing more, like a stopped process.
#[test]
fn a_node_that_is_connected_and_silent_is_down_until_it_is_heard_again() {
    one_of_four(|| {
        let (node, listener) = node_with(waiting());
        let said =
            |message: &Message| frame::encode(Address { cluster: CLUSTER, from: PLAYED, epoch: 1 }, message);
        let found = play(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            let mut to_node = come_in(&node).await;
            let mut from_node = be_called(&listener).await;
            to_node.write_all(&said(&Message::Heartbeat { clock_ms: None })).await.expect("it takes it");
            let ask = |retry| {
                let handle = node.handle();
                tokio::task::spawn_blocking(move || ask_for_its_key(&handle, retry))
            };
            let refused = ask(false).await.expect("no panic");
            assert!(matches!(refused, Err(Error::Unreachable { pe: PLAYED, .. })), "{refused:?}");
            let LinkState::Down(reason) = link(&node).state else { panic!("{:?}", link(&node)) };
            assert!(reason.contains("no sign of life"), "{reason}");

            let asked = ask(true);
            loop {
                to_node.write_all(&said(&Message::Heartbeat { clock_ms: None })).await.expect("it takes it");
                let mut head = [0; 4];
                from_node.read_exact(&mut head).await.expect("it goes on");
                let mut body = vec![0; frame::length(head).expect("a frame")];
                from_node.read_exact(&mut body).await.expect("it goes on");
                // Requests from before the failure was detected are answered too. The node has abandoned
                // them.
                if let (_, Message::Find(find)) = frame::decode(&body, CLUSTER, 1).expect("a message") {
                    let result = Ok(Answer::Value(Some(b"striped".to_vec())));
                    let answer =
                        Message::Answered { id: find.id, result, route_entry: None, hops: find.hops };
                    to_node.write_all(&said(&answer)).await.expect("it takes it");
                }
                if asked.is_finished() {
                    return asked.await.expect("no panic");
                }
            }
        });
        assert_eq!(found.expect("an answer"), Some(b"striped".to_vec()));
    });
}

/// A burst of large answers waits for the connection. Dropped answers would end the connection, and the
/// outcome of all writes over it would be unknown.
#[test]
fn a_burst_of_large_answers_is_delayed_and_not_dropped() {
    const BYTES: usize = 1 << 20;
    const REQUESTS: u64 = 200;
    one_of_four(|| {
        let (node, listener) = node();
        play(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            let mut to_node = come_in(&node).await;
            let mut from_node = be_called(&listener).await;
            let stored = ask(&mut to_node, 0, Work::Put(vec![1; BYTES])).await;
            assert_eq!(answer_to(&mut from_node, stored).await, Answer::Done { existed: false });
            let mut asked = Vec::new();
            for number in 1..=REQUESTS {
                asked.push(ask(&mut to_node, number, Work::Get).await);
            }
            let worked = || {
                let status = node.handle().ask(|here| Box::pin(async move { here.status() }));
                status.expect("it runs").counts.worked
            };
            while worked() <= REQUESTS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut answered = Vec::new();
            while answered.len() < asked.len() {
                if let Message::Answered { id, result, .. } = next_message(&mut from_node).await {
                    let Ok(Answer::Value(Some(value))) = result else { panic!("{result:?}") };
                    assert_eq!(value.len(), BYTES);
                    answered.push(id);
                }
            }
            answered.sort_unstable();
            assert_eq!(answered, asked);
        });
        assert_eq!(link(&node).dropped, 0);
    });
}
