//! Replies that must equal those of Redis, byte for byte.

use crate::support::{Client, TestServer};

fn say(client: &mut Client, lines: &[(&str, &str)]) {
    for (request, wanted) in lines {
        assert_eq!(client.ask(request), *wanted, "{request}");
    }
}

const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range";

#[test]
fn a_number_has_one_form() {
    let redis = TestServer::open();
    let mut client = redis.client();
    for text in ["007", "-0", "+1", "-01", "00", "1.0", "9223372036854775808"] {
        say(
            &mut client,
            &[
                (&format!("SET n {text}"), "OK"),
                ("INCR n", NOT_AN_INTEGER),
                ("GET n", text),
                ("OBJECT ENCODING n", "embstr"),
                (&format!("INCRBY m {text}"), NOT_AN_INTEGER),
                (&format!("EXPIRE n {text}"), NOT_AN_INTEGER),
            ],
        );
    }
    say(&mut client, &[("DECRBY m -9223372036854775808", "-ERR decrement would overflow")]);
}

#[test]
fn fractions_are_calculated_with_80_bits() {
    say(
        &mut TestServer::open().client(),
        &[
            ("INCRBYFLOAT f 0.1", "0.1"),
            ("INCRBYFLOAT f 0.2", "0.3"),
            ("INCRBYFLOAT f -0.3", "0"),
            ("SET f 17179869184", "OK"),
            ("INCRBYFLOAT f 1.5", "17179869185.5"),
            ("SET f 3.0e3", "OK"),
            ("INCRBYFLOAT f 200", "3200"),
            ("OBJECT ENCODING f", "embstr"),
            ("INCRBYFLOAT f 1e5000", "-ERR value is not a valid float"),
            ("INCRBYFLOAT f inf", "-ERR increment would produce NaN or Infinity"),
        ],
    );
}

#[test]
fn every_key_that_can_be_stored_can_expire() {
    let redis = TestServer::open();
    let mut client = redis.client();
    for len in 2030..=2055 {
        let key = "k".repeat(len);
        let stored = client.ask(&format!("SET {key} x"));
        if stored == "OK" {
            assert_eq!(client.ask(&format!("EXPIRE {key} 100")), ":1", "{len} bytes");
            assert_eq!(client.ask(&format!("SET {key} y EX 50 KEEPTTL")), "-ERR syntax error");
            assert_eq!(client.ask(&format!("SET {key} y EX 50")), "OK", "{len} bytes");
        } else {
            assert!(stored.starts_with("-ERR the key has") && len > 2040, "{len} bytes: {stored}");
        }
    }
}

#[test]
fn the_encoding_of_a_value_follows_from_its_last_command() {
    say(
        &mut TestServer::open().client(),
        &[
            ("APPEND new 12", ":2"),
            ("OBJECT ENCODING new", "int"),
            ("APPEND new 3", ":3"),
            ("OBJECT ENCODING new", "raw"),
            ("RENAME new other", "OK"),
            ("COPY other third", ":1"),
            ("EXPIRE third 100", ":1"),
            ("PERSIST third", ":1"),
            ("GETEX third EX 100", "123"),
            ("OBJECT ENCODING third", "raw"),
            ("INCR third", ":124"),
            ("OBJECT ENCODING third", "int"),
            ("SET s hello", "OK"),
            ("OBJECT ENCODING s", "embstr"),
            ("SETBIT s 1 1", ":1"),
            ("OBJECT ENCODING s", "raw"),
            ("SETRANGE range 0 1", ":1"),
            ("OBJECT ENCODING range", "raw"),
            ("BITOP OR bits s", ":5"),
            ("OBJECT ENCODING bits", "raw"),
            ("SET bits 1", "OK"),
            ("OBJECT ENCODING bits", "int"),
        ],
    );
}

#[test]
fn places_of_bits_before_the_beginning_are_moved_to_it() {
    let redis = TestServer::open();
    let mut client = redis.client();
    assert_eq!(client.ask_raw(&[b"SET".as_slice(), b"k", b"\x7f"]), "OK");
    say(
        &mut client,
        &[
            ("BITPOS k 0 -2 -9", ":0"),
            ("BITCOUNT k -2 -9", ":0"),
            ("BITPOS none 0 x", NOT_AN_INTEGER),
            ("BITPOS k 0 1 x foo", "-ERR syntax error"),
            ("BITCOUNT k 1 x foo", NOT_AN_INTEGER),
            ("BITPOS k 01", NOT_AN_INTEGER),
            ("BITPOS k 2", "-ERR The bit argument must be 1 or 0."),
        ],
    );
}

#[test]
fn transactions_queue_and_watch_as_in_redis() {
    let redis = TestServer::open();
    let (mut client, mut other) = (redis.client(), redis.client());
    say(
        &mut client,
        &[
            ("WATCH never", "OK"),
            ("MULTI", "OK"),
            ("MULTI", "-ERR MULTI calls can not be nested"),
            ("WATCH a", "-ERR WATCH inside MULTI is not allowed"),
            ("UNWATCH", "QUEUED"),
            ("SET a 1", "QUEUED"),
        ],
    );
    say(&mut other, &[("SET other 1", "OK"), ("FLUSHALL", "OK"), ("FLUSHDB SYNC", "OK")]);
    say(&mut client, &[("EXEC", "[OK OK]"), ("GET a", "1")]);
    // The key existed at `WATCH`, and was removed and stored again.
    say(&mut client, &[("WATCH a", "OK")]);
    say(&mut other, &[("FLUSHALL", "OK"), ("SET a 1", "OK")]);
    say(&mut client, &[("MULTI", "OK"), ("PING", "QUEUED"), ("EXEC", "nil-array")]);
    say(&mut client, &[("WATCH a", "OK")]);
    say(&mut other, &[("FLUSHALL", "OK")]);
    say(&mut client, &[("MULTI", "OK"), ("PING", "QUEUED"), ("EXEC", "nil-array")]);
    // `SETBIT` changes the encoding of the value, and not the value.
    say(&mut client, &[("SET bits a", "OK"), ("WATCH bits", "OK"), ("SETBIT bits 0 0", ":0")]);
    say(&mut client, &[("MULTI", "OK"), ("PING", "QUEUED"), ("EXEC", "[PONG]")]);
    say(&mut client, &[("OBJECT ENCODING bits", "raw"), ("WATCH bits", "OK"), ("SETBIT bits 0 1", ":0")]);
    say(&mut client, &[("MULTI", "OK"), ("PING", "QUEUED"), ("EXEC", "nil-array")]);
    let wrong = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
    say(&mut client, &[("MULTI", "OK"), ("EXEC now", wrong), ("EXEC", "-ERR EXEC without MULTI")]);
    let unknown = "-ERR unknown subcommand 'FOO'. Try OBJECT HELP.";
    say(&mut client, &[("MULTI", "OK"), ("OBJECT FOO a", unknown)]);
    say(&mut client, &[("EXEC", "-EXECABORT Transaction discarded because of previous errors.")]);
}

#[test]
fn errors_are_those_of_redis() {
    say(
        &mut TestServer::open().client(),
        &[
            ("SET k v", "OK"),
            ("EXPIRE k 5 FOO", "-ERR Unsupported option FOO"),
            ("EXPIRE k x NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
            ("EXPIRE k 5 GT LT", "-ERR GT and LT options at the same time are not compatible"),
            ("EXPIRE k x", NOT_AN_INTEGER),
            ("NOSUCH a b", "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' "),
            ("OBJECT FOO", "-ERR unknown subcommand 'FOO'. Try OBJECT HELP."),
            ("OBJECT ENCODING", "-ERR wrong number of arguments for 'object|encoding' command"),
            ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command"),
            ("CLIENT", "-ERR wrong number of arguments for 'client' command"),
            ("SELECT 1", "-ERR DB index is out of range"),
            (
                "SELECT 99999999999",
                "-ERR value is out of range, value must between -2147483648 and 2147483647",
            ),
            ("FLUSHALL SYNC ASYNC", "-ERR syntax error"),
            ("SET k v EX x BAD", "-ERR syntax error"),
            ("SET k v EX 10 EX 20", "OK"),
            ("TTL k", ":20"),
            ("GETEX none EX 0", "nil"),
            ("SETRANGE k 99999999999 ", ":1"),
            ("WAIT 0 -1", "-ERR timeout is negative"),
            ("AUTH default x", "OK"),
            ("AUTH other x", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
        ],
    );
    // RedisInsight uses cluster mode with each server that replies to this request.
    let cluster = TestServer::open().client().ask("CLUSTER INFO");
    assert!(cluster.starts_with("-ERR This instance has cluster support disabled"), "{cluster}");
}

#[test]
fn commands_are_listed_by_pattern_and_category() {
    say(
        &mut TestServer::open().client(),
        &[
            ("COMMAND LIST FILTERBY PATTERN *GET", "[get mget]"),
            ("COMMAND LIST FILTERBY MODULE json", "[]"),
            ("COMMAND LIST FILTERBY ACLCAT nosuch", "[]"),
            ("COMMAND LIST FILTERBY ACLCAT transaction", "[discard exec multi unwatch watch]"),
            ("COMMAND LIST FILTERBY", "-ERR syntax error"),
            ("COMMAND LIST FILTERBY FOO x", "-ERR syntax error"),
        ],
    );
    let read = TestServer::open().client().ask("COMMAND LIST FILTERBY ACLCAT read");
    assert!(read.contains("getrange") && !read.contains("append"), "{read}");
}

/// A key that is too long to be stored is an absent key for each command, and only a write that would create
/// it is refused.
#[test]
fn a_key_that_is_too_long_is_absent() {
    let redis = TestServer::open();
    let (mut client, key) = (redis.client(), "k".repeat(10_000));
    say(&mut client, &[("SET a 1", "OK")]);
    for (request, wanted) in [
        ("GET K", "nil"),
        ("GETDEL K", "nil"),
        ("GETEX K PERSIST", "nil"),
        ("GETEX K EX 10", "nil"),
        ("EXPIRE K 10", ":0"),
        ("PERSIST K", ":0"),
        ("TTL K", ":-2"),
        ("DEL K", ":0"),
        ("RENAME K b", "-ERR no such key"),
        ("RENAMENX K b", "-ERR no such key"),
        ("COPY K b", ":0"),
        ("SET K 1 XX", "nil"),
        ("AZ.CAS K 1 2", ":0"),
        ("BITOP NOT K b", ":0"),
        ("RENAMENX a a", ":0"),
    ] {
        assert_eq!(client.ask(&request.replace('K', &key)), wanted, "{request}");
    }
    for request in [
        "SET K 1",
        "SET K 1 NX",
        "SETNX K 1",
        "GETSET K 1",
        "APPEND K 1",
        "INCR K",
        "SETBIT K 1 1",
        "SETRANGE K 1 1",
        "MSETNX b 1 K 1",
        "RENAME a K",
        "RENAMENX a K",
        "COPY a K",
        "BITOP NOT K a",
        "BITFIELD K SET u8 0 1",
    ] {
        let refused = client.ask(&request.replace('K', &key));
        assert!(refused.starts_with("-ERR the key has 10000 bytes; the limit is"), "{request}: {refused}");
    }
    say(&mut client, &[("DBSIZE", ":1"), ("GET a", "1"), (&format!("WATCH {key}"), "OK"), ("MULTI", "OK")]);
    say(&mut client, &[("SET a 2", "QUEUED"), ("EXEC", "[OK]")]);
}
