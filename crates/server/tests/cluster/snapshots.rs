//! Reads over snapshots of several nodes. Each transfer runs at one node and keeps the sum of all values, so
//! every read of all keys must return that sum, whatever clients and moves of leaves do meanwhile.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::nodes::Nodes;
use crate::support::{Client, seed};

const WRITERS: usize = 3;

/// Starts three nodes with small leaves, and stores a key for each letter.
fn three() -> Nodes {
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 3);
    let mut client = nodes.client(0);
    for letter in 'a'..='z' {
        assert_eq!(client.ask(&format!("SET {letter} 0")), "OK");
    }
    nodes
}

/// Transfers between two random keys of one node until `is_over` is set. Sometimes renames a key. Returns the
/// number of transfers.
fn transfer(nodes: &Nodes, number: usize, seed: u64, is_over: &AtomicBool) -> usize {
    let mut client = nodes.client(number % nodes.len());
    let (mut rng, mut done) = (SmallRng::seed_from_u64(seed.wrapping_add(number as u64)), 0);
    // Relaxed: a flag that orders nothing.
    while !is_over.load(Relaxed) || done < 20 {
        let (from, to) = (rng.random_range('a'..='z'), rng.random_range('a'..='z'));
        assert_eq!(client.ask("MULTI"), "OK");
        client.ask(&format!("DECR {from}"));
        client.ask(&format!("INCR {to}"));
        let reply = client.ask("EXEC");
        assert!(reply.starts_with("[:") || reply.starts_with("-CROSSNODE"), "seed {seed}: {reply}");
        done += usize::from(reply.starts_with("[:"));
        let there = format!("{from}x");
        // A renamed key keeps its value.
        let (one, two) =
            if rng.random_bool(0.5) { (from.to_string(), there) } else { (there, from.to_string()) };
        client.ask("MULTI");
        client.ask(&format!("RENAMENX {one} {two}"));
        let reply = client.ask("EXEC");
        let is_refused = reply.starts_with("-CROSSNODE");
        assert!(is_refused || reply.starts_with('['), "seed {seed}: {reply}");
    }
    done
}

/// Returns the sum of the values in a reply of alternating keys and values.
fn sum(reply: &str) -> i64 {
    let words: Vec<_> = reply.trim_matches(['[', ']']).split(' ').collect();
    words.chunks(2).map(|row| row[1].parse::<i64>().unwrap()).sum()
}

/// Guard that ends the other threads of a test, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed); // Relaxed: a flag that orders nothing
    }
}

/// Runs writers while `work` runs, and moves leaves if `moves` is set. Returns the number of transfers.
fn beside_writers(nodes: &Nodes, seed: u64, moves: bool, work: impl FnOnce()) -> usize {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let is_over = &is_over;
        let writers: Vec<_> =
            (0..WRITERS).map(|number| scope.spawn(move || transfer(nodes, number, seed, is_over))).collect();
        let mover = scope.spawn(move || {
            let (mut rng, mut client) = (SmallRng::seed_from_u64(!seed), nodes.client(0));
            // Relaxed: a flag that orders nothing.
            while moves && !is_over.load(Relaxed) {
                let (key, to) = (rng.random_range('a'..='z'), rng.random_range(0..nodes.len()));
                client.ask(&format!("AZ.CLUSTER MOVE {key} {to}"));
                for _ in 0..rng.random_range(0..100) {
                    assert_eq!(client.ask("PING"), "PONG");
                }
            }
        });
        {
            let _ends = Ends(is_over);
            work();
        }
        mover.join().unwrap();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    })
}

/// Returns a reply, or `None` if the request was refused because a leaf had moved.
fn read(client: &mut Client, request: &str, refused: &mut usize) -> Option<String> {
    let reply = client.ask(request);
    if reply.starts_with("-RETRY") {
        assert!(reply.contains("moved"), "{reply}");
        *refused += 1;
        return None;
    }
    assert!(!reply.starts_with('-'), "{request}: {reply}");
    Some(reply)
}

#[test]
fn a_walk_over_all_nodes_sees_no_transaction_in_part() {
    let seed = seed("AZEKURA_CLUSTER_SEED");
    for moves in [false, true] {
        let nodes = three();
        let (mut seen, mut refused) = (0, 0);
        let transfers = beside_writers(&nodes, seed, moves, || {
            let mut client = nodes.client(1);
            for turn in 0.. {
                if seen >= 30 || (moves && turn >= if seen > 0 { 120 } else { 5000 }) {
                    break;
                }
                let request = ["AZ.RANGE - +", "AZ.RANGE - + REV"][turn % 2];
                if let Some(reply) = read(&mut client, request, &mut refused) {
                    assert_eq!(sum(&reply), 0, "seed {seed}: {reply}");
                    seen += 1;
                }
            }
        });
        println!("moves {moves}: {transfers} transfers, {seen} walks, {refused} refused");
        assert!(transfers > 0 && seen > 0 && (moves || refused == 0), "{seen} {refused}");
        nodes.wait_until_none_is_open();
    }
}

#[test]
fn a_snapshot_of_the_cluster_does_not_change() {
    let seed = seed("AZEKURA_CLUSTER_SEED");
    let nodes = three();
    let transfers = beside_writers(&nodes, seed, false, || {
        let (mut owner, mut other) = (nodes.client(1), nodes.client(1));
        for _ in 0..5 {
            let number = owner.ask("AZ.SNAPSHOT").trim_start_matches(':').to_owned();
            let rows: Vec<String> = [&mut owner, &mut other]
                .into_iter()
                .flat_map(|client| {
                    assert_eq!(client.ask(&format!("AZ.BEGIN RO AT {number}")), "OK");
                    let both = [client.ask("AZ.RANGE - +"), client.ask("AZ.RANGE - +")];
                    let (names, count) = (client.ask("KEYS *"), client.ask("DBSIZE"));
                    let names: Vec<_> = names.trim_matches(['[', ']']).split(' ').collect();
                    assert_eq!(format!(":{}", names.len()), count);
                    // A request for one key, and requests for keys of several nodes.
                    let words: Vec<_> = both[0].trim_matches(['[', ']']).split(' ').collect();
                    assert_eq!(client.ask(&format!("GET {}", words[0])), words[1]);
                    assert!(client.ask("MGET a q").starts_with("-CROSSNODE"));
                    assert!(client.ask("SET a 1").starts_with("-NOPERM"));
                    assert_eq!(client.ask("AZ.COMMIT"), "OK");
                    both
                })
                .collect();
            assert!(rows.iter().all(|one| *one == rows[0]), "seed {seed}: {rows:?}");
            assert_eq!(sum(&rows[0]), 0, "seed {seed}: {rows:?}");
            assert_eq!(owner.ask(&format!("AZ.SNAPSHOT CLOSE {number}")), "OK");
        }
    });
    assert!(transfers > 0, "seed {seed}");
}

/// `AZ.BEGIN RO` runs at one node and locks nothing there.
#[test]
fn a_read_only_transaction_neither_waits_nor_blocks() {
    let nodes = Nodes::three();
    let (mut writer, mut reader) = (nodes.client(0), nodes.client(2));
    assert_eq!(writer.ask("MSET i 1 j 2"), "OK");
    for (request, wanted) in [("AZ.BEGIN", "OK"), ("SET i 7", "OK"), ("DEL j", ":1"), ("SET k 3", "OK")] {
        assert_eq!(writer.ask(request), wanted);
    }
    for (request, wanted) in [("AZ.BEGIN RO", "OK"), ("GET i", "1"), ("MGET j k", "[2 nil]")] {
        assert_eq!(reader.ask(request), wanted);
    }
    // The writer does not wait for the reader. The reader still reads the state of its first request.
    assert_eq!(writer.ask("AZ.COMMIT"), "OK");
    for (request, wanted) in [
        ("GET i", "1"),
        ("AZ.RANGE [h (p", "[i 1 j 2]"),
        ("GET a", "-CROSSNODE the keys"),
        ("DBSIZE", "-CROSSNODE the range"),
        ("AZ.COMMIT", "OK"),
        ("AZ.RANGE - +", "[i 7 k 3]"),
    ] {
        let reply = reader.ask(request);
        assert!(reply.starts_with(wanted), "{request}: {reply}");
    }
    assert_eq!(nodes.info(1, "open_transactions"), "0");
}

/// A snapshot of the cluster ends with `RETRY` when one of its leaves moves to another node (READER-3).
#[test]
fn a_snapshot_of_the_cluster_ends_when_a_leaf_moves() {
    let nodes = Nodes::three();
    let (mut client, mut mover) = (nodes.client(0), nodes.client(2));
    for key in ["a", "i", "q"] {
        assert_eq!(client.ask(&format!("SET {key} 1")), "OK");
    }
    let number = client.ask("AZ.SNAPSHOT OPEN").trim_start_matches(':').to_owned();
    assert_eq!(client.ask(&format!("AZ.BEGIN RO AT {number}")), "OK");
    assert_eq!(client.ask("AZ.RANGE - +"), "[a 1 i 1 q 1]");
    assert_eq!(mover.ask("AZ.CLUSTER MOVE i 2"), "OK");
    let reply = client.ask("DBSIZE");
    assert!(reply.starts_with("-RETRY") && reply.contains("moved"), "{reply}");
    assert!(client.ask("GET a").starts_with("-RETRY"));
    assert!(client.ask("AZ.COMMIT").starts_with("-RETRY"));
    // Every later transaction over this snapshot ends with `RETRY` too.
    assert_eq!(client.ask(&format!("AZ.BEGIN RO AT {number}")), "OK");
    assert!(client.ask("GET q").starts_with("-RETRY"));
    assert_eq!(client.ask("AZ.ABORT"), "OK");
    assert_eq!(client.ask(&format!("AZ.SNAPSHOT CLOSE {number}")), "OK");
    // A new snapshot finds the leaf at its new node. Snapshots are closed when their connection resets.
    let reply = client.ask("AZ.SNAPSHOT");
    assert_eq!(client.ask(&format!("AZ.BEGIN RO AT {}", reply.trim_start_matches(':'))), "OK");
    assert_eq!(client.ask("AZ.RANGE - +"), "[a 1 i 1 q 1]");
    assert_eq!(client.ask("RESET"), "RESET");
    nodes.wait_until_none_is_open();
}
