//! Keys that are known before their use are announced to the store. Counted at the file system.

use std::sync::Arc;

use azekura::Database;
use azekura_io::{CountingFs, MemFs};

use crate::support::{Client, TestServer, encoded};

const ROWS: usize = 4_000;

fn key(row: usize) -> String {
    format!("k{:05}", row % ROWS)
}

/// Returns requests for keys of distinct leaves.
type Requests = fn(Vec<String>) -> Vec<Vec<String>>;

fn one(name: &str, keys: Vec<String>) -> Vec<Vec<String>> {
    vec![[vec![name.to_owned()], keys].concat()]
}

fn each(keys: Vec<String>) -> Vec<Vec<String>> {
    keys.into_iter().map(|key| vec!["GET".to_owned(), key]).collect()
}

fn pairs(name: &str, keys: Vec<String>) -> Vec<Vec<String>> {
    one(name, keys.into_iter().flat_map(|key| [key, "v".repeat(300)]).collect())
}

#[test]
fn keys_of_a_request_of_a_pipeline_and_of_a_queue_are_announced() {
    let fs = CountingFs::new(Arc::new(MemFs::new()));
    // 40 pages of cache, and more than 150 leaves.
    let db = Database::builder().file_system(Arc::new(fs.clone())).cache_bytes(40 * 8192).open("/db");
    let redis = TestServer::over(db.unwrap(), |options| options.reactors = 1);
    let mut client = redis.client();
    for first in (0..ROWS).step_by(100) {
        assert_eq!(run(&mut client, &pairs("MSET", (first..first + 100).map(key).collect())), "OK");
    }
    let kinds: [(&str, Requests); 7] = [
        ("MGET", |keys| one("MGET", keys)),
        ("EXISTS", |keys| one("EXISTS", keys)),
        ("MSET", |keys| pairs("MSET", keys)),
        ("MSETNX", |keys| pairs("MSETNX", keys)),
        ("pipeline", each),
        ("queue", |keys| {
            let queued = keys.into_iter().flat_map(|key| each(vec![key]));
            [vec!["MULTI".into()]].into_iter().chain(queued).chain([vec!["EXEC".into()]]).collect()
        }),
        ("DEL", |keys| one("DEL", keys)),
    ];
    for (name, requests) in kinds {
        let before = fs.counts().announced;
        // The first requests of a thread are not announced, because it has read no page in.
        let is_announced = (0..50).any(|round| {
            let requests = requests((0..20).map(|n| key(round * 7 + n * 190)).collect());
            if name == "queue" {
                // One by one, so that the pipeline is not announced already.
                requests.iter().for_each(|request| _ = run(&mut client, std::slice::from_ref(request)));
            } else {
                run(&mut client, &requests);
            }
            fs.counts().announced > before
        });
        assert!(is_announced, "{name}");
    }
}

/// Sends all requests together, and returns the last reply.
fn run(client: &mut Client, requests: &[Vec<String>]) -> String {
    client.send_raw(&requests.iter().flat_map(|request| encoded(request)).collect::<Vec<u8>>()).unwrap();
    requests.iter().map(|_| client.reply()).last().unwrap()
}
