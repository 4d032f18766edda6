//! Foreign processes, wrong keys, other versions and malformed bytes at the listener for nodes. Each is
//! refused with a clear error, and other connections are not disturbed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use azekura_auth::AuthKey;
use azekura_fatbtree::frame::{self, Address};
use azekura_fatbtree::tcp::handshake::{self, HandshakeError, Identity};
use azekura_fatbtree::{
    Answer, Credentials, KeyRange, ListMark, Message, PageNo, PeId, Refusal, RouteEntry, Work,
};

use crate::nodes::{KEY, Nodes};
use crate::support::{Client, wait_until};

const CLUSTER: u64 = 0xc1;

fn connect(nodes: &Nodes) -> TcpStream {
    let stream = TcpStream::connect(nodes.node_address(0)).unwrap();
    // Time limit, so that a hanging test fails.
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Returns `true` if the node closes the connection, after any reply.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_ok() || stream.read(&mut [0]).is_ok()
}

/// Runs the handshake as node `pe`, with the cluster's list of members. Returns the stream if the handshake
/// succeeds.
fn introduce(nodes: &Nodes, cluster: u64, pe: u16, key: &[u8]) -> Result<TcpStream, HandshakeError> {
    introduce_by_list(nodes, nodes.members.mark(), cluster, pe, key)
}

fn introduce_by_list(
    nodes: &Nodes,
    list: ListMark,
    cluster: u64,
    pe: u16,
    key: &[u8],
) -> Result<TcpStream, HandshakeError> {
    // A handshake has three seconds. A busy machine may delay a thread for longer.
    let mut shaken = Err(HandshakeError::TooMany);
    wait_until("an end of the handshake in time", || {
        shaken = introduce_once(nodes, list, cluster, pe, key);
        !matches!(shaken, Err(HandshakeError::Io(_)))
    });
    shaken
}

fn introduce_once(
    nodes: &Nodes,
    list: ListMark,
    cluster: u64,
    pe: u16,
    key: &[u8],
) -> Result<TcpStream, HandshakeError> {
    let stream = connect(nodes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let for_shake = stream.try_clone().unwrap();
        for_shake.set_nonblocking(true).unwrap();
        let mut shaken = tokio::net::TcpStream::from_std(for_shake).unwrap();
        let birth = match usize::from(pe) < nodes.len() {
            true => azekura_fatbtree::store::birth(&nodes.database(pe.into())).unwrap().unwrap(),
            false => 0,
        };
        let store = Credentials { birth, is_settled: true, is_loss_accepted: false };
        let me = Identity { cluster, pe: PeId(pe), epoch: 1, store, list, clock_ms: 0 };
        handshake::call(&mut shaken, me, PeId(0), 1, &AuthKey::new(key).unwrap()).await?;
        Ok::<_, HandshakeError>(())
    })?;
    stream.set_nonblocking(false).unwrap();
    Ok(stream)
}

/// Accepts a call of node 0 as node 1, which must not run.
fn be_called(nodes: &Nodes) -> TcpStream {
    let birth = azekura_fatbtree::store::birth(&nodes.database(1)).unwrap().unwrap();
    let store = Credentials { birth, is_settled: true, is_loss_accepted: false };
    let list = nodes.members.mark();
    let me = Identity { cluster: CLUSTER, pe: PeId(1), epoch: 1, store, list, clock_ms: 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = AuthKey::new(KEY).unwrap();
    nodes.listener(1).set_nonblocking(false).unwrap();
    loop {
        // Node 0 may have given up earlier calls.
        let (stream, _) = nodes.listener(1).accept().unwrap();
        let answered = runtime.block_on(async {
            let for_shake = stream.try_clone().unwrap();
            for_shake.set_nonblocking(true).unwrap();
            let mut shaken = tokio::net::TcpStream::from_std(for_shake).unwrap();
            handshake::answer(&mut shaken, me, &key, |pe| pe == PeId(0), async |_, _| Some(true)).await
        });
        if answered.is_ok() {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            return stream;
        }
    }
}

fn next_message(stream: &mut TcpStream) -> Message {
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; frame::length(head).unwrap()];
    stream.read_exact(&mut body).unwrap();
    frame::decode(&body, CLUSTER, 1).unwrap().1
}

/// A node opens its snapshot for a scan, and does not answer in time. Until it is closed, the snapshot would
/// stay open for ten minutes, and a node has at most 1,024 of them.
#[test]
fn a_snapshot_of_a_scan_is_closed_though_the_node_has_not_answered() {
    let mut nodes = Nodes::with(&["", "h"], |options| options.request_timeout = Duration::from_secs(4));
    nodes.stop(1);
    let mut from_node = be_called(&nodes);
    let mut to_node = introduce(&nodes, CLUSTER, 1, KEY).unwrap();
    wait_until("node 0 is connected", || nodes.info(0, "nodes_reached") == "1");
    let mut client = nodes.client(0);
    let mut is_read = false;
    client.send(&["KEYS", "*"]);
    loop {
        let Message::Find(find) = next_message(&mut from_node) else { continue };
        match &find.work {
            Work::Read { .. } => is_read = true,
            Work::Rows { .. } => {
                let (range, page) = (KeyRange::new(*b"h", None), PageNo(1));
                let route_entry = Some(RouteEntry { range, pe: PeId(1), page, version: 1 });
                let result = Ok(Answer::Rows { rows: Vec::new(), is_more: false });
                let answer = Message::Answered { id: find.id, result, route_entry, hops: find.hops };
                let address = Address { cluster: CLUSTER, from: PeId(1), epoch: 1 };
                to_node.write_all(&frame::encode(address, &answer)).unwrap();
            }
            Work::End { coordinator: PeId(1), is_commit: false, .. } => break,
            work => panic!("{work:?}"),
        }
    }
    assert!(is_read);
    assert!(client.reply().starts_with("-UNAVAIL"));
}

/// The coordinator refuses the commit because it cannot reach a third node, so the commit does nothing. Until
/// the transaction is rolled back, it would hold its locks for the time of a transaction.
#[test]
fn a_commit_that_was_not_executed_rolls_the_transaction_back() {
    let mut nodes = Nodes::three();
    nodes.stop(2);
    nodes.stop(1);
    let mut from_node = be_called(&nodes);
    let mut to_node = introduce(&nodes, CLUSTER, 1, KEY).unwrap();
    wait_until("node 0 is connected", || nodes.info(0, "nodes_reached") == "1");
    let mut client = nodes.client(0);
    let mut begun = None;
    assert_eq!(client.ask("AZ.BEGIN"), "OK");
    client.send(&["SET", "i", "1"]);
    loop {
        let Message::Find(find) = next_message(&mut from_node) else { continue };
        let mut answer = |result| {
            let range = KeyRange::new(*b"h", Some(b"p"));
            let route_entry = Some(RouteEntry { range, pe: PeId(1), page: PageNo(1), version: 1 });
            let answer = Message::Answered { id: find.id, result, route_entry, hops: find.hops };
            let address = Address { cluster: CLUSTER, from: PeId(1), epoch: 1 };
            to_node.write_all(&frame::encode(address, &answer)).unwrap();
        };
        match &find.work {
            Work::Step { id, .. } => {
                begun = Some(*id);
                answer(Ok(Answer::Ran(b"\0\x05+OK\r\n".to_vec()))); // `Said::Replied`
                assert_eq!(client.reply(), "OK");
                client.send(&["AZ.COMMIT"]);
            }
            // Repeated until node 0 knows that it cannot reach the third node either.
            Work::End { is_commit: true, .. } => {
                answer(Err(Refusal::Away { pe: PeId(2), reason: "it is down".into() }));
            }
            Work::End { id, coordinator: PeId(1), is_commit: false } => {
                assert_eq!(Some(*id), begun);
                break;
            }
            _ => {}
        }
    }
    assert!(client.reply().starts_with("-UNAVAIL"));
}

/// Waits until a value of node 0's `INFO cluster` contains `wanted`. No event announces the change.
fn comes_to_say(nodes: &Nodes, name: &str, wanted: &str) {
    wait_until(&format!("{name} with {wanted:?}"), || nodes.info(0, name).contains(wanted));
}

/// Lets `attempt` cause a refusal until node 0 reports it. A node reports its last eight refusals, and the
/// refusal is another one if a busy machine delays the attempt for more than the time of a handshake.
fn refused_with<T>(nodes: &Nodes, wanted: &str, mut attempt: impl FnMut() -> T) -> T {
    let mut done = None;
    wait_until(&format!("a refusal with {wanted:?}"), || {
        done = Some(attempt());
        let begun = Instant::now();
        let is_reported = || nodes.info(0, "last_refusals").contains(wanted);
        while !is_reported() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        is_reported()
    });
    done.unwrap()
}

#[test]
fn foreign_connections_are_refused_by_name_and_members_are_served() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    assert_eq!(client.ask("SET z 1"), "OK");

    let wrong_key = introduce(&nodes, CLUSTER, 1, b"some other key than theirs");
    assert!(matches!(wrong_key, Err(HandshakeError::Key)), "{wrong_key:?}");
    comes_to_say(&nodes, "last_refusals", "the keys differ");
    let wrong_cluster = introduce(&nodes, 7, 1, KEY);
    assert!(matches!(wrong_cluster, Err(HandshakeError::Cluster { .. })), "{wrong_cluster:?}");
    comes_to_say(&nodes, "last_refusals", "belongs to cluster");
    let no_member = introduce(&nodes, CLUSTER, 77, KEY);
    assert!(matches!(no_member, Err(HandshakeError::NoMember(PeId(77)))), "{no_member:?}");
    comes_to_say(&nodes, "last_refusals", "not on the list");

    let mark = nodes.members.mark();
    let changed = ListMark { digest: mark.digest ^ 1, ..mark };
    let other_list = introduce_by_list(&nodes, changed, CLUSTER, 1, KEY);
    assert!(matches!(other_list, Err(HandshakeError::List(1))), "{other_list:?}");
    comes_to_say(&nodes, "last_refusals", "with different contents");

    refused_with(&nodes, "not an azekura node", || {
        let mut http = connect(&nodes);
        // The node may have closed the connection because of the time limit.
        let _ = http.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(is_closed(http));
    });
    drop(connect(&nodes)); // closes without sending anything
    comes_to_say(&nodes, "last_refusals", "ended in the handshake");
    assert_eq!(client.ask("GET z"), "1");
}

#[test]
fn a_flood_of_silent_connections_keeps_no_member_out() {
    let mut nodes = Nodes::three();
    nodes.stop(1);
    let silent = refused_with(&nodes, "too many connections from this address", || {
        let silent: Vec<_> = (0..200).map(|_| connect(&nodes)).collect();
        introduce(&nodes, CLUSTER, 1, KEY).expect("it knows the key");
        silent
    });
    assert!(is_closed(silent.into_iter().next().unwrap()));
}

#[test]
fn a_member_that_sends_invalid_bytes_loses_only_its_connection() {
    // Node 3 is stopped, so that it accepts no connection of the cluster while the test acts as node 3.
    let mut nodes = Nodes::with(&["", "h", "p", "x"], |_| ());
    nodes.stop(3);
    let mut client = nodes.client(0);
    assert_eq!(client.ask("SET q 1"), "OK");
    let address = Address { cluster: CLUSTER, from: PeId(3), epoch: 1 };
    let good = frame::encode(address, &Message::Hello);
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let of_another = frame::encode(Address { from: PeId(2), ..address }, &Message::Hello);
    let other_epoch = frame::encode(Address { epoch: 9, ..address }, &Message::Hello);
    let cases: [(&[u8], &str); 6] = [
        (&damaged, "checksum"),
        (&u32::MAX.to_le_bytes(), "the limit is"),
        (&[3, 0, 0, 0, 1, 2, 3], "fewer than its header"),
        (&of_another, "over the connection of PE 3"),
        (&other_epoch, "for epoch 9"),
        (&good[..good.len() - 1], "read a frame"),
    ];
    for (bytes, why) in cases {
        let mut stream = introduce(&nodes, CLUSTER, 3, KEY).expect("it knows the key");
        stream.write_all(&good).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_closed(stream));
        comes_to_say(&nodes, "last_refusals", why);
    }
    assert_eq!(client.ask("GET q"), "1");
    assert_eq!(nodes.client(1).ask("GET a"), "nil");
    assert_eq!(nodes.info(0, "failure"), "");
}

/// An answer that does not fit into a message between nodes must not hide that a transaction has run.
#[test]
fn a_transaction_with_a_reply_too_long_for_a_message_changes_nothing() {
    let nodes = Nodes::three();
    let (mut gateway, mut owner) = (nodes.client(0), nodes.client(1));
    let value = "x".repeat(4 << 20);
    for key in ["h1", "h2", "h3", "h4"] {
        assert_eq!(owner.ask(&format!("SET {key} {value}")), "OK");
    }
    let exec = |client: &mut Client| {
        assert_eq!(client.ask("MULTI"), "OK");
        for request in ["INCR hits", "GET h1", "GET h2", "GET h3", "GET h4"] {
            assert_eq!(client.ask(request), "QUEUED");
        }
        client.ask("EXEC")
    };
    let refused = exec(&mut gateway);
    assert!(refused.starts_with("-ERR nothing was changed: the reply would exceed"), "{refused:.200}");
    assert_eq!(gateway.ask("GET hits"), "nil");
    let done = exec(&mut owner);
    assert!(done.starts_with("[:1 xxx"), "{done:.200}");
    assert_eq!(gateway.ask("GET hits"), "1");
}
