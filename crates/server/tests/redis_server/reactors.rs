//! Hand-over of reactors: a waiting request delays no other request, and no input that arrives meanwhile is
//! lost.

use std::io::Read;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use azekura::{Database, TableDefinition, Transaction};
use azekura_io::MemFs;
use azekura_io::device::{Device, DeviceFs, DeviceModel};

use crate::support::{Client, TestServer, encoded};

/// Starts a server with one reactor, which all connections share.
fn redis() -> TestServer {
    TestServer::with(|options| {
        options.reactors = 1;
        // Long enough that no transaction times out in these tests.
        options.transaction_timeout = Duration::from_secs(600);
    })
}

/// Begins a transaction of the store, outside the server, that holds the lock of `key`.
fn holding(redis: &TestServer, key: &str) -> Transaction {
    let tx = redis.db.begin().unwrap();
    tx.table(&TableDefinition::<[u8], [u8]>::new("redis.keys"))
        .unwrap()
        .insert(key.as_bytes(), b"\0held")
        .unwrap();
    tx
}

#[test]
fn requests_that_wait_for_a_lock_do_not_block_the_request_that_releases_it() {
    let redis = redis();
    let mut holder = redis.client();
    assert_eq!(holder.ask("AZ.BEGIN"), "OK");
    assert_eq!(holder.ask("SET k 0"), "OK");
    let mut waiters: Vec<Client> = (0..30).map(|_| redis.client()).collect();
    waiters.iter_mut().for_each(|waiter| waiter.send(&["INCR", "k"]));
    for turn in 1..=10 {
        assert_eq!(redis.client().ask("PING"), "PONG");
        assert_eq!(holder.ask("INCRBY k 100"), format!(":{}", turn * 100));
    }
    assert_eq!(holder.ask("AZ.COMMIT"), "OK");
    let mut seen: Vec<i64> =
        waiters.iter_mut().map(|waiter| waiter.reply().trim_start_matches(':').parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (1001..=1030).collect::<Vec<_>>());
}

#[test]
fn the_wait_of_the_only_connection_keeps_no_new_one_from_being_served() {
    let redis = redis();
    for _ in 0..20 {
        let tx = holding(&redis, "k");
        let waits = redis.db.stats().locks.waits;
        let mut first = redis.client();
        first.send(&["GET", "k"]);
        // Waits until the request waits for the lock and its thread has handed over the reactor.
        while redis.db.stats().locks.waits == waits {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            let mut next = redis.client();
            assert_eq!(next.ask("PING"), "PONG");
            assert_eq!(next.ask("SET other 1"), "OK");
        }
        tx.commit().unwrap();
        assert_eq!(first.reply(), "held");
        assert_eq!(first.ask("GET other"), "1");
    }
}

#[test]
fn requests_during_a_wait_of_their_connection_are_answered_in_order() {
    let redis = redis();
    let mut bystander = redis.client();
    for round in 0..50 {
        let tx = holding(&redis, "k");
        let mut client = redis.client();
        client.send(&["GET", "k"]);
        assert_eq!(bystander.ask("PING"), "PONG");
        for i in 0..20 {
            client.send(&["ECHO", &i.to_string()]);
        }
        assert_eq!(bystander.ask("PING"), "PONG");
        tx.commit().unwrap();
        assert_eq!(client.reply(), "held", "round {round}");
        for i in 0..20 {
            assert_eq!(client.reply(), i.to_string(), "round {round}");
        }
    }
}

#[test]
fn a_client_that_sends_no_more_still_gets_its_answers_and_then_the_end() {
    let redis = redis();
    for count in [1, 100, 5000] {
        let mut client = redis.client();
        client.send_raw(&encoded(&["INCR", "n"]).repeat(count)).unwrap();
        client.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        for _ in 0..count {
            assert!(client.reply().starts_with(':'));
        }
        assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0, "the end");
    }
    assert_eq!(redis.client().ask("GET n"), "5101");
}

#[test]
fn clients_that_vanish_while_they_wait_leave_nothing_behind() {
    let redis = redis();
    let tx = holding(&redis, "k");
    let waiting: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = redis.client();
            client.send(&["SET", "k", "mine"]);
            client
        })
        .collect();
    drop(waiting);
    let mut other = redis.client();
    assert_eq!(other.ask("PING"), "PONG");
    tx.commit().unwrap();
    while !other.ask("INFO clients").contains("connected_clients:1\r\n") {
        assert_eq!(other.ask("SET other 1"), "OK");
    }
    assert_eq!(other.ask("SET k 1"), "OK");
}

#[test]
fn many_connections_share_few_threads_and_each_gets_its_own_answers() {
    let redis = TestServer::with(|options| options.reactors = 2);
    let mut clients: Vec<Client> = (0..300).map(|_| redis.client()).collect();
    for round in 0..5 {
        for (i, client) in clients.iter_mut().enumerate() {
            client.send(&["SET", &format!("k{i}"), &format!("{round}.{i}")]);
            client.send(&["GET", &format!("k{i}")]);
        }
        for (i, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.reply(), "OK");
            assert_eq!(client.reply(), format!("{round}.{i}"));
        }
    }
}

#[test]
fn commits_are_answered_in_order_whether_their_thread_keeps_the_reactor_meanwhile_or_gives_it_away() {
    // The device alternates between free writes, during which the thread keeps its reactor, and flushes of at
    // least a millisecond, during which the thread hands it over.
    let device = Device::new(DeviceModel::free());
    let disk = DeviceFs::on(Arc::new(MemFs::new()), Arc::clone(&device));
    let db = Database::builder().file_system(Arc::new(disk)).cache_bytes(32 << 20).wal_streams(1).open("/db");
    let redis = TestServer::over(db.unwrap(), |options| options.reactors = 1);
    let mut clients: Vec<Client> = (0..12).map(|_| redis.client()).collect();
    let slow = DeviceModel { write_ns: 500_000, flush_ns: 1_000_000, ..DeviceModel::plp() };
    for round in 1..=105 {
        device.change(if round % 35 < 30 { DeviceModel::free() } else { slow.without_jitter() });
        for (i, client) in clients.iter_mut().enumerate() {
            client.send(&["INCR", &format!("n{i}")]);
            client.send(&["GET", &format!("n{i}")]);
            if i % 3 == 0 {
                client.send(&["INCR", "all"]);
            }
        }
        for (i, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.reply(), format!(":{round}"));
            assert_eq!(client.reply(), round.to_string());
            if i % 3 == 0 {
                assert!(client.reply().starts_with(':'));
            }
        }
    }
    assert_eq!(redis.client().ask("GET all"), (105 * 4).to_string());
}
