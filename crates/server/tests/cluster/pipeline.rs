//! Pipelined requests: requests for different keys are sent to their owners together.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::nodes::Nodes;
use crate::support::{Client, encoded, seed};

/// Sends all requests in one piece, and returns their replies.
fn pipeline<T: AsRef<str>>(client: &mut Client, requests: &[T]) -> Vec<String> {
    let words = |request: &T| encoded(&request.as_ref().split(' ').collect::<Vec<_>>());
    let bytes: Vec<u8> = requests.iter().flat_map(words).collect();
    client.send_raw(&bytes).unwrap();
    requests.iter().map(|_| client.reply()).collect()
}

/// Returns how often connections of node 0 have waited for the owners of keys.
fn waits(nodes: &Nodes) -> u64 {
    nodes.info(0, "waits").parse().unwrap()
}

#[test]
fn requests_for_different_keys_are_waited_for_together() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    assert_eq!(client.ask("DBSIZE"), ":0");
    let before = waits(&nodes);
    let requests: Vec<_> = (0..256).map(|number| format!("SET z{number:x} {number}")).collect();
    assert!(pipeline(&mut client, &requests).iter().all(|reply| reply == "OK"));
    // Four waits for 64 requests each if all input arrives in one piece, and never one wait for each request.
    let together = waits(&nodes) - before;
    assert!((4..=64).contains(&together), "{together}");
    let requests: Vec<_> = (0..256).map(|number| format!("GET z{number:x}")).collect();
    let replies = pipeline(&mut client, &requests);
    assert!(replies.iter().enumerate().all(|(number, reply)| *reply == number.to_string()), "{replies:?}");
    // Requests for the same key are waited for one by one.
    let before = waits(&nodes);
    let replies = pipeline(&mut client, &["INCR z"; 20]);
    assert_eq!(replies, (1..=20).map(|number| format!(":{number}")).collect::<Vec<_>>());
    assert_eq!(waits(&nodes) - before, 20);
}

#[test]
fn requests_for_several_keys_run_in_pipeline_order() {
    let nodes = Nodes::three();
    let mut client = nodes.client(1);
    let requests = [
        "SET a 1",
        "INCR a",
        "SET x 5",
        "PING",
        "NOSUCH",
        "MULTI",
        "INCR a",
        "GET a",
        "EXEC",
        "GET a",
        "DBSIZE",
        "MSET a 1 b 2",
        "MSET a 1 x 2",
        "MGET a x",
        "DEL a x",
        "GET a",
        "GET",
        "INCR b",
    ];
    let replies = pipeline(&mut client, &requests);
    let cross = "-CROSSNODE the keys are at several nodes, but a transaction runs at one node; move their \
        leaves to one node (AZ.CLUSTER MOVE)";
    let expected = [
        "OK",
        ":2",
        "OK",
        "PONG",
        "-ERR unknown command 'NOSUCH'",
        "OK",
        "QUEUED",
        "QUEUED",
        "[:3 3]",
        "3",
        ":2",
        "OK",
        cross,
        "[1 5]",
        ":2",
        "nil",
        "-ERR wrong number of arguments for 'get' command",
        ":3",
    ];
    for ((request, reply), expected) in requests.iter().zip(&replies).zip(expected) {
        assert!(reply.starts_with(expected), "{request}: {reply}");
    }
    // Requests behind a malformed line are not run; requests before it are answered.
    client.send_raw(b"SET q 1\r\n*x\r\nSET q 2\r\n").unwrap();
    assert_eq!(client.reply(), "OK");
    assert!(client.reply().starts_with("-ERR Protocol error"));
    assert_eq!(nodes.client(0).ask("GET q"), "1");
}

#[test]
fn pipelined_requests_answer_as_the_same_ones_one_by_one() {
    let seed = seed("AZEKURA_PIPELINE_SEED");
    let mut rng = SmallRng::seed_from_u64(seed);
    let (nodes, alone) =
        (Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 4), Nodes::with(&[""], |_| ()));
    let (mut many, mut one) = (nodes.client(2), alone.client(0));
    for round in 0..30 {
        let request = |rng: &mut SmallRng| {
            let mut key = || char::from(b'a' + rng.random_range(0..12_u8) * 2);
            let (first, second) = (key(), key());
            match rng.random_range(0..9) {
                0 => format!("GET {first}"),
                1 => format!("SET {first} {}", rng.random_range(0..100)),
                2 => format!("INCR {first}"),
                3 => format!("DEL {first} {second}"),
                4 => format!("MGET {first} {second}"),
                5 => format!("APPEND {first} 0"),
                6 => format!("EXISTS {first} {second} {first}"),
                7 => format!("GETDEL {first}"),
                _ => format!("SETNX {first} 7"),
            }
        };
        let requests: Vec<_> = (0..rng.random_range(1..150)).map(|_| request(&mut rng)).collect();
        let expected: Vec<_> = requests.iter().map(|request| one.ask(request)).collect();
        let replies = pipeline(&mut many, &requests);
        for ((request, reply), expected) in requests.iter().zip(&replies).zip(&expected) {
            assert_eq!(reply, expected, "seed {seed}, round {round}: {request}");
        }
    }
    assert_eq!(many.ask("AZ.RANGE - +"), one.ask("AZ.RANGE - +"), "seed {seed}");
}
