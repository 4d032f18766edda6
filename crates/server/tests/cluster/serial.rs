//! One serial order explains all replies to single requests, `MULTI`, `WATCH` and interactive transactions
//! with walks, sent to all nodes while leaves split and move.

use std::thread;

use azekura_history::{Level, Recorder, Running, check};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::nodes::Nodes;
use crate::support::{Client, seed};

/// Two keys at each of two nodes at first. A leaf has at most two rows, so leaves split between the keys.
const KEYS: [&str; 4] = ["i1", "i2", "s1", "s2"];
const CLIENTS: usize = 6;
const EACH: usize = 40;

/// A client's operation on a list: read, or append.
type Step = (usize, Option<u64>);

fn request((key, appended): Step) -> String {
    match appended {
        None => format!("GET {}", KEYS[key]),
        Some(value) => format!("APPEND {} {value},", KEYS[key]),
    }
}

/// Parses the numbers of a list that `APPEND` wrote.
fn list(reply: &str) -> Vec<u64> {
    if reply == "nil" {
        Vec::new()
    } else {
        reply.split_terminator(',').map(|number| number.parse().unwrap()).collect()
    }
}

fn note(running: &mut Running<'_>, (key, appended): Step, reply: &str) {
    match appended {
        None => running.read(key as u64, list(reply)),
        Some(value) => running.append(key as u64, value),
    }
}

/// Returns `true` if the request was refused without an effect. No other error is allowed, because no node
/// fails.
fn is_refused(reply: &str) -> bool {
    assert!(!reply.starts_with("-UN"), "{reply}");
    reply.starts_with("-CROSSNODE") || reply.starts_with("-RETRY")
}

/// Runs `EXEC`. Returns `true` if the queue ran.
fn exec(client: &mut Client, running: &mut Running<'_>, steps: &[Step]) -> bool {
    client.send(&["EXEC"]);
    let mut head = String::new();
    std::io::BufRead::read_line(&mut client.stream, &mut head).unwrap();
    if head.starts_with("*-1") || is_refused(&head) {
        return false;
    }
    assert_eq!(head, format!("*{}\r\n", steps.len()));
    for step in steps {
        note(running, *step, &client.reply());
    }
    true
}

fn queued(client: &mut Client, running: &mut Running<'_>, steps: &[Step]) -> bool {
    assert_eq!(client.ask("MULTI"), "OK");
    steps.iter().for_each(|step| assert_eq!(client.ask(&request(*step)), "QUEUED"));
    exec(client, running, steps)
}

fn watched(client: &mut Client, running: &mut Running<'_>, steps: &[Step]) -> bool {
    let key = steps[0].0;
    assert_eq!(client.ask(&format!("WATCH {}", KEYS[key])), "OK");
    running.read(key as u64, list(&client.ask(&request((key, None)))));
    queued(client, running, steps)
}

/// Reads all lists between the first and the last key of `steps` by one walk. An empty list has no row.
fn walk(client: &mut Client, running: &mut Running<'_>, steps: &[Step]) -> bool {
    let keys = || steps.iter().map(|step| step.0);
    let (first, last) = (keys().min().unwrap(), keys().max().unwrap());
    let reply = client.ask(&format!("AZ.RANGE [{} [{}", KEYS[first], KEYS[last]));
    if is_refused(&reply) {
        return false;
    }
    let words: Vec<_> = reply.trim_matches(['[', ']']).split(' ').collect();
    for (key, name) in KEYS.iter().enumerate().take(last + 1).skip(first) {
        let found = words.chunks_exact(2).find(|row| row[0] == *name);
        running.read(key as u64, list(found.map_or("nil", |row| row[1])));
    }
    true
}

fn interactive(client: &mut Client, running: &mut Running<'_>, steps: &[Step], walks: bool) -> bool {
    assert_eq!(client.ask("AZ.BEGIN"), "OK");
    for (number, step) in steps.iter().enumerate() {
        if walks && number == 1 && !walk(client, running, steps) {
            assert_eq!(client.ask("AZ.ABORT"), "OK");
            return false;
        }
        let reply = client.ask(&request(*step));
        if is_refused(&reply) {
            assert_eq!(client.ask("AZ.ABORT"), "OK");
            return false;
        }
        note(running, *step, &reply);
    }
    let reply = client.ask("AZ.COMMIT");
    assert!(reply == "OK" || is_refused(&reply), "{reply}");
    reply == "OK"
}

fn transaction(client: &mut Client, recorder: &Recorder, rng: &mut StdRng) -> bool {
    // Usually selects keys of one half, which begin at one node. Moves may separate or join them.
    let half = rng.random_range(0..2) * 2;
    let mut step = || {
        let key = if rng.random_bool(0.9) { half + rng.random_range(0..2) } else { rng.random_range(0..4) };
        (key, rng.random_bool(0.5).then(|| recorder.value()))
    };
    let steps: Vec<Step> = (0..3).map(|_| step()).collect();
    let mut running = recorder.begin();
    let is_committed = match rng.random_range(0..5) {
        0 => {
            note(&mut running, steps[0], &client.ask(&request(steps[0])));
            true
        }
        1 => queued(client, &mut running, &steps),
        2 => watched(client, &mut running, &steps),
        kind => interactive(client, &mut running, &steps, kind == 4),
    };
    if is_committed {
        running.committed()
    } else {
        running.aborted()
    }
    is_committed
}

#[test]
fn one_order_explains_what_all_clients_of_all_nodes_saw_while_leaves_split_and_move() {
    let seed = seed("AZEKURA_CLUSTER_SEED");
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 2);
    let recorder = Recorder::new();
    let committed: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (nodes, recorder) = (&nodes, &recorder);
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
                    let mut client = nodes.client(number % nodes.len());
                    let mut committed = 0;
                    for turn in 0..EACH {
                        committed += usize::from(transaction(&mut client, recorder, &mut rng));
                        if turn % 4 == 0 {
                            // The reply is ignored: the split or move may be already done, or in progress.
                            let key = KEYS[rng.random_range(0..4)];
                            let request = match rng.random_range(0..3) {
                                0 => format!("AZ.CLUSTER SPLIT {key}"),
                                _ => format!("AZ.CLUSTER MOVE {key} {}", rng.random_range(0..3)),
                            };
                            client.ask(&request);
                        }
                    }
                    committed
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(committed > CLIENTS * EACH / 10, "{committed} committed, seed {seed}");
    let mut client = nodes.client(0);
    let mut last = recorder.begin();
    for (key, name) in (0..).zip(KEYS) {
        last.read(key, list(&client.ask(&format!("GET {name}"))));
    }
    last.committed();
    check(&recorder.finish(), Level::StrictSerializable).assert_clean();
    for node in 0..nodes.len() {
        assert_eq!(nodes.info(node, "failure"), "");
    }
    nodes.wait_until_none_is_open();
}
