//! Many concurrent clients: no write is lost, and one serial order explains all replies.

use std::thread;
use std::time::Duration;

use azekura_history::{Level, Recorder, check};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::{Client, TestServer, encoded, info_number, seed};

const CLIENTS: u64 = 6;

#[test]
fn increments_of_many_clients_lose_nothing() {
    let redis = TestServer::open();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = redis.client();
                for _ in 0..200 {
                    assert!(client.ask("INCR n").starts_with(':'));
                }
            });
        }
    });
    assert_eq!(redis.client().ask("GET n"), (CLIENTS * 200).to_string());
}

#[test]
fn watched_read_modify_writes_of_many_clients_lose_nothing() {
    let redis = TestServer::open();
    let mut first = redis.client();
    assert_eq!(first.ask("SET n 0"), "OK");
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = redis.client();
                for _ in 0..40 {
                    loop {
                        assert_eq!(client.ask("WATCH n"), "OK");
                        let n: u64 = client.ask("GET n").parse().unwrap();
                        assert_eq!(client.ask("MULTI"), "OK");
                        assert_eq!(client.ask(&format!("SET n {}", n + 1)), "QUEUED");
                        match client.ask("EXEC").as_str() {
                            "[OK]" => break,
                            "nil-array" => {}
                            other => panic!("{other}"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(first.ask("GET n"), (CLIENTS * 40).to_string());
}

/// Parses the numbers of a list that `APPEND` wrote.
fn list(reply: &str) -> Vec<u64> {
    if reply == "nil" {
        Vec::new()
    } else {
        reply.split_terminator(',').map(|n| n.parse().unwrap()).collect()
    }
}

/// Sends one to six requests together. Each is a separate transaction for the client; adjacent appends may
/// share a transaction of the store.
fn singles(client: &mut Client, recorder: &Recorder, rng: &mut StdRng) {
    let steps: Vec<(u64, Option<u64>)> = (0..rng.random_range(1..7))
        .map(|_| (rng.random_range(0..4), rng.random_bool(0.7).then(|| recorder.value())))
        .collect();
    let running: Vec<_> = steps.iter().map(|_| recorder.begin()).collect();
    let bytes: Vec<u8> =
        steps.iter().flat_map(|&step| encoded(&request(step).split(' ').collect::<Vec<_>>())).collect();
    client.send_raw(&bytes).unwrap();
    for ((key, appended), mut running) in steps.into_iter().zip(running) {
        let reply = client.reply();
        match appended {
            None => running.read(key, list(&reply)),
            Some(value) => {
                assert!(reply.starts_with(':'), "{reply}");
                running.append(key, value);
            }
        }
        running.committed();
    }
}

fn request((key, appended): (u64, Option<u64>)) -> String {
    match appended {
        None => format!("GET list:{key}"),
        Some(value) => format!("APPEND list:{key} {value},"),
    }
}

/// Runs one transaction of two to four steps on a few lists, by `MULTI` or interactively.
fn transaction(client: &mut Client, recorder: &Recorder, rng: &mut StdRng) {
    let steps: Vec<(u64, Option<u64>)> = (0..rng.random_range(2..5))
        .map(|_| (rng.random_range(0..4), rng.random_bool(0.5).then(|| recorder.value())))
        .collect();
    let mut running = recorder.begin();
    let is_interactive = rng.random_bool(0.5);
    let replies: Vec<String> = if is_interactive {
        assert_eq!(client.ask("AZ.BEGIN"), "OK");
        steps.iter().map(|&step| client.ask(&request(step))).collect()
    } else {
        assert_eq!(client.ask("MULTI"), "OK");
        steps.iter().for_each(|&step| assert_eq!(client.ask(&request(step)), "QUEUED"));
        client.send(&["EXEC"]);
        let mut head = String::new();
        std::io::BufRead::read_line(&mut client.stream, &mut head).unwrap();
        assert_eq!(head, format!("*{}\r\n", steps.len()));
        steps.iter().map(|_| client.reply()).collect()
    };
    let is_lost = replies.iter().any(|reply| reply.starts_with("-RETRY"));
    for ((key, appended), reply) in steps.iter().zip(&replies) {
        match appended {
            _ if reply.starts_with('-') => assert!(reply.starts_with("-RETRY"), "{reply}"),
            None => running.read(*key, list(reply)),
            Some(value) => running.append(*key, *value),
        }
    }
    let is_committed = !is_interactive || client.ask("AZ.COMMIT") == "OK";
    assert_eq!(is_committed, !is_lost);
    if is_committed { running.committed() } else { running.aborted() }
}

#[test]
fn one_order_explains_what_all_clients_saw() {
    let seed = seed("AZEKURA_REDIS_SERVER_SEED");
    let redis = TestServer::with(|options| options.transaction_timeout = Duration::from_secs(60));
    let recorder = Recorder::new();
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (redis, recorder) = (&redis, &recorder);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed.wrapping_add(number));
                let mut client = redis.client();
                for _ in 0..100 {
                    let run = if rng.random_bool(0.5) { transaction } else { singles };
                    run(&mut client, recorder, &mut rng);
                }
            });
        }
    });
    let mut client = redis.client();
    assert!(
        info_number(&mut client, "grouped_writes") > info_number(&mut client, "write_groups"),
        "none shared a transaction"
    );
    let mut last = recorder.begin();
    (0..4).for_each(|key| last.read(key, list(&client.ask(&format!("GET list:{key}")))));
    last.committed();
    check(&recorder.finish(), Level::StrictSerializable).assert_clean();
}
