//! Splits and moves of leaves during requests of clients.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use azekura_fatbtree::sim::{Event, History, Seen};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::nodes::Nodes;
use crate::support::wait_until;

/// Moves and splits leaves at random while `work` runs. Returns the number of completed moves.
fn while_leaves_move(nodes: &Nodes, seed: u64, work: impl FnOnce()) -> usize {
    while_leaves_move_at_times(nodes, seed, 0, work)
}

/// Like [`while_leaves_move`], with at most `most` other requests between two moves.
fn while_leaves_move_at_times(nodes: &Nodes, seed: u64, most: usize, work: impl FnOnce()) -> usize {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let (mut rng, mut moved) = (SmallRng::seed_from_u64(seed), 0);
            let mut client = nodes.client(0);
            // Makes at least ten moves, even if `work` ends early.
            while !is_over.load(Relaxed) || moved < 10 {
                let key = char::from(rng.random_range(b'a'..=b'z'));
                let to = rng.random_range(0..nodes.len());
                moved += usize::from(client.ask(&format!("AZ.CLUSTER MOVE {key} {to}")) == "OK");
                for _ in 0..rng.random_range(0..=most) {
                    assert_eq!(client.ask("PING"), "PONG");
                }
            }
            moved
        });
        work();
        is_over.store(true, Relaxed);
        mover.join().unwrap()
    })
}

#[test]
fn no_increment_is_lost_while_leaves_split_and_move() {
    const CLIENTS: usize = 4;
    const EACH: u64 = 120;
    let seed = rand::random();
    println!("seed {seed}");
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 4);
    let moved = while_leaves_move(&nodes, seed, || {
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                let nodes = &nodes;
                scope.spawn(move || {
                    let mut client = nodes.client(number % nodes.len());
                    let mut rng = SmallRng::seed_from_u64(seed ^ number as u64);
                    for _ in 0..EACH {
                        let key = char::from(rng.random_range(b'a'..=b'z'));
                        let reply = client.ask(&format!("INCR {key}"));
                        assert!(reply.starts_with(':'), "seed {seed}: {reply}");
                    }
                });
            }
        });
    });
    let rows = nodes.client(1).ask("AZ.RANGE - +");
    let words: Vec<_> = rows.trim_matches(['[', ']']).split(' ').collect();
    let sum: u64 = words.chunks(2).map(|row| row[1].parse::<u64>().unwrap()).sum();
    assert_eq!(sum, CLIENTS as u64 * EACH, "seed {seed}, {moved} moves: {rows}");
    assert!(words.chunks(2).is_sorted_by(|one, two| one[0] < two[0]), "seed {seed}: {rows}");
    for node in 0..nodes.len() {
        assert_eq!(nodes.info(node, "failure"), "", "seed {seed}");
        assert_eq!(nodes.info(node, "refused_frames"), "0", "seed {seed}");
    }
}

#[test]
fn scans_meet_each_key_once_and_in_order_while_leaves_split_and_move() {
    let seed = rand::random();
    println!("seed {seed}");
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 4);
    let mut client = nodes.client(0);
    let there: Vec<String> = (b'a'..=b'z').map(|c| format!("{}0", char::from(c))).collect();
    for key in &there {
        assert_eq!(client.ask(&format!("SET {key} x")), "OK");
    }
    while_leaves_move_at_times(&nodes, seed, 200, || {
        for turn in 0..12 {
            // Other keys are inserted meanwhile.
            let other = char::from(b'a' + (turn * 7 % 26) as u8);
            nodes.client(turn % 3).ask(&format!("SET {other}1 x"));
            let (reverse, mut client) = (turn % 2 == 1, nodes.client((turn + 1) % 3));
            let request = if reverse { "AZ.RANGE - + KEYS REV" } else { "AZ.RANGE - + KEYS" };
            // A range is refused with -RETRY while one of its leaves moves.
            let reply = (0..).map(|_| client.ask(request)).find(|reply| !reply.starts_with("-RETRY"));
            let reply = reply.unwrap();
            let mut found: Vec<_> = reply.trim_matches(['[', ']']).split(' ').map(str::to_owned).collect();
            if reverse {
                found.reverse();
            }
            assert!(found.is_sorted_by(|one, two| one < two), "seed {seed}: {found:?}");
            found.retain(|key| key.ends_with('0'));
            assert_eq!(found, there, "seed {seed}");
        }
    });
}

#[test]
fn single_keys_are_linearizable_through_different_nodes() {
    let seed = rand::random();
    println!("seed {seed}");
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 2);
    let (history, began) = (Mutex::new(History::default()), Instant::now());
    while_leaves_move(&nodes, seed, || {
        thread::scope(|scope| {
            for number in 0..3 {
                let (nodes, history) = (&nodes, &history);
                scope.spawn(move || {
                    let mut client = nodes.client(number);
                    let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
                    for turn in 0..60 {
                        let key = ["c", "k", "s", "t"][rng.random_range(0..4)];
                        let value = format!("{number}.{turn}");
                        let kind = rng.random_range(0..4);
                        let asked = match kind {
                            0 => format!("SET {key} {value}"),
                            1 => format!("DEL {key}"),
                            _ => format!("GET {key}"),
                        };
                        let at = began.elapsed();
                        let reply = client.ask(&asked);
                        let ended = Some(began.elapsed());
                        let seen = match kind {
                            0 => Seen::Wrote { value: Some(value.into_bytes()), existed: None },
                            1 => Seen::Wrote { value: None, existed: Some(reply == ":1") },
                            _ => Seen::Read((reply != "nil").then(|| reply.clone().into_bytes())),
                        };
                        assert!(!reply.starts_with('-'), "seed {seed}: {asked}: {reply}");
                        let event = Event { began: at, ended, seen };
                        history.lock().unwrap().add(key.as_bytes().to_vec(), event);
                    }
                });
            }
        });
    });
    let history = history.into_inner().unwrap();
    assert_eq!(history.len(), 180);
    let violations: Vec<String> = history.violations().iter().map(ToString::to_string).collect();
    assert_eq!(violations, Vec::<String>::new(), "seed {seed}");
}

#[test]
fn transfers_between_keys_of_several_leaves_keep_the_sum_while_leaves_split_and_move() {
    let seed = rand::random();
    println!("seed {seed}");
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 2);
    while_leaves_move(&nodes, seed, || {
        thread::scope(|scope| {
            for number in 0..3 {
                let nodes = &nodes;
                scope.spawn(move || {
                    let mut client = nodes.client(number);
                    let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
                    let mut done = 0;
                    while done < 30 {
                        let (from, to) = (rng.random_range(b'a'..=b'z'), rng.random_range(b'a'..=b'z'));
                        client.ask("MULTI");
                        client.ask(&format!("DECR {}", char::from(from)));
                        client.ask(&format!("INCR {}", char::from(to)));
                        let reply = client.ask("EXEC");
                        // The two keys are at different nodes, so nothing was changed.
                        if !reply.starts_with("-CROSSNODE") {
                            assert!(reply.starts_with("[:"), "seed {seed}: {reply}");
                            done += 1;
                        }
                    }
                });
            }
        });
    });
    let rows = nodes.client(1).ask("AZ.RANGE - +");
    let words: Vec<_> = rows.trim_matches(['[', ']']).split(' ').collect();
    let sum: i64 = words.chunks(2).map(|row| row[1].parse::<i64>().unwrap()).sum();
    assert_eq!(sum, 0, "seed {seed}: {rows}");
}

/// `INFO keyspace` of each node describes the keys of this node.
#[test]
fn the_nodes_describe_their_own_keys_while_leaves_split_and_move() {
    let seed = rand::random();
    println!("seed {seed}");
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 4);
    let mut expiring = 0;
    while_leaves_move(&nodes, seed, || {
        let (mut client, mut rng) = (nodes.client(1), SmallRng::seed_from_u64(seed));
        for number in 0..150 {
            let letter = char::from(rng.random_range(b'a'..=b'z'));
            let expires = rng.random_range(0..3) == 0;
            expiring += usize::from(expires);
            let key = format!("{letter}{number}");
            match rng.random_range(0..3) {
                0 => {
                    assert!(client.ask(&format!("INCR {letter}x")).starts_with(':'));
                    assert_eq!(client.ask(&format!("SET {key} 1")), "OK");
                }
                1 => {
                    // A transaction ends if its leaf must move.
                    let all = ["AZ.BEGIN".into(), format!("SET {key} 1"), "AZ.COMMIT".into()];
                    while !all.iter().map(|ask| client.ask(ask)).all(|reply| reply == "OK") {
                        client.ask("AZ.ABORT");
                    }
                }
                _ => assert_eq!(client.ask(&format!("SET {key} 1")), "OK"),
            }
            if expires {
                assert_eq!(client.ask(&format!("EXPIRE {key} 1000")), ":1");
            }
            if number % 10 == 9 {
                assert!(client.ask(&format!("DEL {letter}x")).starts_with(':'));
            }
        }
    });
    let number = |text: &str, name: &str| {
        let rest = text.split(name).nth(1).unwrap_or("0,");
        rest.split(',').next().unwrap().parse::<usize>().unwrap()
    };
    // The receiver of the last move may not know yet that it has the keys.
    let all = nodes.client(0).ask("DBSIZE");
    wait_until("the numbers of all nodes have the right sums", || {
        let info: Vec<_> = (0..nodes.len()).map(|node| nodes.client(node).ask("INFO keyspace")).collect();
        println!("{all}, {expiring} expire: {info:?}");
        let sum = |name: &str| info.iter().map(|text| number(text, name)).sum::<usize>();
        format!(":{}", sum("keys=")) == all && sum("expires=") == expiring
    });
}
