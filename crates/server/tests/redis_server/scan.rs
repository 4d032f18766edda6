//! Scans with long pauses between their steps: concurrently with other scans, across a restart, and over keys
//! with long common prefixes.

use std::collections::BTreeMap;

use azekura::Database;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::support::{Client, TestServer, seed};

/// Runs a step of a scan. Returns the next cursor and the keys.
fn step(client: &mut Client, cursor: &str, count: usize) -> (String, Vec<String>) {
    let reply = client.ask(&format!("SCAN {cursor} COUNT {count}"));
    let (next, keys) = reply[1..].split_once(" [").unwrap_or_else(|| panic!("SCAN {cursor}: {reply}"));
    let keys = keys.trim_end_matches(']').split(' ').filter(|key| !key.is_empty());
    (next.to_owned(), keys.map(str::to_owned).collect())
}

fn fill(client: &mut Client, keys: &[String]) {
    for some in keys.chunks(1000) {
        let pairs: String = some.iter().map(|key| format!(" {key} x")).collect();
        assert_eq!(client.ask(&format!("MSET{pairs}")), "OK");
    }
}

fn session_keys() -> Vec<String> {
    (0..4000).map(|i| format!("user:session:{i:08}")).collect()
}

#[test]
fn a_cursor_is_good_after_100_000_steps_of_others_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || TestServer::over(Database::builder().open(dir.path()).unwrap(), |_| ());
    let keys = session_keys();
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    {
        let redis = open();
        let mut client = redis.client();
        fill(&mut client, &keys);
        while found.len() < 1500 {
            let (next, some) = step(&mut client, &cursor, 10);
            found.extend(some);
            cursor = next;
        }
        // 500 other scans, in pipelines. Each continues where its previous step ended.
        let mut cursors = vec!["0".to_owned(); 500];
        for _ in 0..200 {
            cursors.iter().for_each(|cursor| client.send(&["SCAN", cursor, "COUNT", "3"]));
            for cursor in &mut cursors {
                *cursor = client.reply()[1..].split_once(' ').unwrap().0.to_owned();
            }
        }
        let (next, some) = step(&mut client, &cursor, 10);
        (cursor, _) = (next, found.extend(some));
        drop(client);
        let TestServer { server, db, .. } = redis;
        server.stop().unwrap();
        db.close().unwrap();
    }
    let redis = open();
    let mut client = redis.client();
    while cursor != "0" {
        let (next, some) = step(&mut client, &cursor, 10);
        found.extend(some);
        cursor = next;
    }
    assert_eq!(found, keys, "each once, in order");
}

/// Random keys are added and removed during the scans. Keys that stay are returned exactly once, from every
/// cursor that was ever returned, at any later time.
#[test]
fn every_cursor_of_the_past_leads_to_all_keys_above_it() {
    let seed = seed("SCAN_SEED");
    let mut chance = SmallRng::seed_from_u64(seed);
    let redis = TestServer::open();
    let mut client = redis.client();
    let name = |chance: &mut SmallRng| {
        let parts = ["", "a", "ab", "user:", "user:session:", "user:session:with:a:long:name:", "z"];
        let start = parts[chance.random_range(0..parts.len())];
        let most = 10_u64.pow(chance.random_range(0..5));
        format!("{start}{:x}", chance.random_range(0..most))
    };
    let stays: Vec<String> = (0..3000).map(|_| name(&mut chance)).map(|name| format!("{name}~")).collect();
    fill(&mut client, &stays);
    let mut stays = stays;
    stays.sort();
    stays.dedup();
    // Each returned cursor, with the last key before it.
    let mut past: BTreeMap<String, String> = BTreeMap::new();
    let mut walks = 0;
    while walks < 60 || past.len() <= 100 {
        walks += 1;
        let (mut cursor, mut last) = past
            .iter()
            .nth(chance.random_range(0..past.len().max(1)))
            .map_or(("0".to_owned(), String::new()), |(cursor, last)| (cursor.clone(), last.clone()));
        let from = last.clone();
        let mut found = Vec::new();
        loop {
            let (next, some) = step(&mut client, &cursor, chance.random_range(1..400));
            assert!(some.len() < 400 + 512, "a step of {} keys", some.len());
            last = some.last().cloned().unwrap_or(last);
            found.extend(some);
            cursor = next;
            if cursor == "0" {
                break;
            }
            past.insert(cursor.clone(), last.clone());
            for _ in 0..5 {
                let key = name(&mut chance);
                client.ask(&format!("SET {key} x"));
                client.ask(&format!("DEL {}", name(&mut chance)));
            }
        }
        let found: Vec<_> = found.into_iter().filter(|key| key.ends_with('~')).collect();
        let wanted: Vec<_> = stays.iter().filter(|key| **key > from).cloned().collect();
        assert_eq!(found, wanted, "from {from:?}");
    }
}

#[test]
fn a_cursor_outlives_the_transaction_in_which_it_was_made() {
    let redis = TestServer::open();
    let (mut client, mut other) = (redis.client(), redis.client());
    let keys = session_keys();
    fill(&mut client, &keys);
    assert_eq!(client.ask("AZ.BEGIN RO"), "OK");
    let (cursor, mut found) = step(&mut client, "0", 700);
    assert_eq!(client.ask("AZ.ABORT"), "OK");
    // Other scans add prefixes meanwhile.
    fill(&mut other, &(0..2000).map(|i| format!("another:kind:{i:08}")).collect::<Vec<_>>());
    let mut cursors = (cursor, "0".to_owned());
    loop {
        let (next, some) = step(&mut client, &cursors.0, 10);
        found.extend(some);
        cursors = (next, step(&mut other, &cursors.1, 10).0);
        if cursors.0 == "0" {
            break;
        }
    }
    assert_eq!(found, keys);
}
