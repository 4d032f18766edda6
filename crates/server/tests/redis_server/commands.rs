//! Tests of single commands, written as lines `request => reply`.

use crate::support::{Client, TestServer};

/// Runs lines `request => reply` one after another.
fn talk(client: &mut Client, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (request, wanted) = line.split_once(" =>").unwrap();
        let got = client.ask(request.trim());
        let wanted = wanted.trim();
        let fits = wanted.strip_suffix('…').map_or(got == wanted, |start| got.starts_with(start));
        assert!(fits, "{request} => {got}, not {wanted}");
    }
}

#[test]
fn strings_are_written_and_read() {
    talk(
        &mut TestServer::open().client(),
        "GET a => nil
         SET a 1 => OK
         GET a => 1
         SET a 2 NX => nil
         SET b 2 NX => OK
         SET c 2 XX => nil
         SET a 3 XX GET => 1
         SET a 4 GET => 3
         SET d 1 NX GET => nil
         SET d 1 NX GET => 1
         SET a 1 NX XX => -ERR syntax error
         SET a 1 EX => -ERR syntax error
         SET a 1 EX 0 => -ERR invalid expire time…
         SET a 1 EX x => -ERR value is not an integer…
         SET a 1 EX 5 PX 5 => -ERR syntax error
         SET a 1 EX 5 KEEPTTL => -ERR syntax error
         SET a 1 EX 9223372036854775807 => -ERR invalid expire time…
         SET a => -ERR wrong number of arguments…
         GET a => 4
         SETNX a 1 => :0
         SETNX e 1 => :1
         GETSET a 5 => 4
         GETDEL a => 5
         GETDEL a => nil
         APPEND a he => :2
         APPEND a llo => :5
         STRLEN a => :5
         STRLEN zz => :0
         GETRANGE a 1 -2 => ell
         SUBSTR a 0 0 => h
         SETRANGE a 1 ipp => :5
         GET a => hippo
         SETRANGE zz 0 x => :1
         SETRANGE a -1 x => -ERR offset…
         SETRANGE a 536870912 x => -ERR string exceeds…
         MSET x 1 y 2 => OK
         MSET x 1 y => -ERR wrong number…
         MGET x nokey y => [1 nil 2]
         MSETNX y 3 z 3 => :0
         MSETNX z 3 w 4 => :1
         MGET y z w => [2 3 4]",
    );
}

#[test]
fn integers_of_any_width_are_read_and_changed_inside_a_value() {
    talk(
        &mut TestServer::open().client(),
        "BITFIELD a SET u8 0 255 GET i8 0 INCRBY u8 0 10 => [:0 :-1 :9]
         BITFIELD a OVERFLOW SAT INCRBY u4 #1 100 OVERFLOW FAIL INCRBY u4 #1 1 GET u4 4 => [:15 nil :15]
         BITFIELD_RO a GET u8 0 GET u8 800 => [:15 :0]
         BITFIELD_RO none GET i64 3 => [:0]
         EXISTS none => :0
         BITFIELD a => []
         BITFIELD a SET i64 1 -9223372036854775808 GET i64 1 => [:2161727821137838080 :-9223372036854775808]
         STRLEN a => :9
         OBJECT ENCODING a => raw
         BITFIELD_RO a SET u8 0 1 => -ERR BITFIELD_RO only supports the GET subcommand
         BITFIELD a SET u64 0 1 => -ERR Invalid bitfield type. Use something like i16 u8.…
         BITFIELD a OVERFLOW no => -ERR Invalid OVERFLOW type specified
         BITFIELD a SET u8 0 => -ERR syntax error
         BITFIELD a SET u8 -1 1 => -ERR bit offset is not an integer or out of range
         BITFIELD a SET u8 0 x => -ERR value is not an integer or out of range
         BITFIELD a SET u8 4294967288 1 => -ERR string exceeds…
         BITFIELD grows OVERFLOW FAIL SET u8 8 256 => [nil]
         STRLEN grows => :2",
    );
}

#[test]
fn the_longest_common_subsequence_is_found() {
    talk(
        &mut TestServer::open().client(),
        "MSET a ohmytext b mynewtext => OK
         LCS a b => mytext
         LCS a b LEN => :6
         LCS a none => 
         LCS none a LEN => :0
         LCS a b IDX => [matches [[[:4 :7] [:5 :8]] [[:2 :3] [:0 :1]]] len :6]
         LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN => [matches [[[:4 :7] [:5 :8] :4]] len :6]
         LCS a b IDX LEN => -ERR If you want both the length and indexes, please just use IDX.
         LCS a b MINMATCHLEN => -ERR syntax error
         SETRANGE long 200000 x => :200001
         LCS long long => -ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
    );
}

#[test]
fn a_dumped_value_is_restored_with_an_expiry_time() {
    let server = TestServer::open();
    let mut client = server.client();
    let ask = |client: &mut Client, arguments: &[&[u8]]| {
        client.send(arguments);
        client.reply()
    };
    // Redis 7.0 has written the first payload, which is compressed, and the second one.
    let long = b"\0\xc3\x05\x2c\0x\xe0\x22\0\x0a\0";
    for (payload, value) in [(&long[..], "x".repeat(44)), (b"\0\x05hello\x0a\0", "hello".into())] {
        let payload = [payload, &crc64(payload).to_le_bytes()].concat();
        assert_eq!(ask(&mut client, &[b"RESTORE", b"a", b"0", &payload]), "OK");
        assert_eq!(ask(&mut client, &[b"GET", b"a"]), value);
        let busy = "-BUSYKEY Target key name already exists.";
        assert_eq!(ask(&mut client, &[b"RESTORE", b"a", b"0", &payload]), busy);
        assert_eq!(ask(&mut client, &[b"RESTORE", b"a", b"5000", &payload, b"REPLACE"]), "OK");
        assert_eq!(ask(&mut client, &[b"PTTL", b"a"]), ":5000");
        assert_eq!(ask(&mut client, &[b"RESTORE", b"a", b"1", &payload, b"REPLACE", b"ABSTTL"]), "OK");
        assert_eq!(ask(&mut client, &[b"EXISTS", b"a"]), ":0");
        let damaged = [&payload[..payload.len() - 1], b"?"].concat();
        let wrong = "-ERR DUMP payload version or checksum are wrong";
        assert_eq!(ask(&mut client, &[b"RESTORE", b"a", b"0", &damaged]), wrong);
    }
    let list = [&b"\x0e\x01\x0a\0"[..], &crc64(b"\x0e\x01\x0a\0").to_le_bytes()].concat();
    let refused = ask(&mut client, &[b"RESTORE", b"a", b"0", &list]);
    assert!(refused.starts_with("-ERR RESTORE of other types is not offered"), "{refused}");
    talk(
        &mut client,
        "DUMP none => nil
         RESTORE a -1 x => -ERR Invalid TTL value, must be >= 0
         RESTORE a x x => -ERR value is not an integer or out of range
         RESTORE a 0 x IDLETIME -1 => -ERR Invalid IDLETIME value, must be >= 0
         RESTORE a 0 x FREQ 256 => -ERR Invalid FREQ value, must be >= 0 and <= 255
         RESTORE a 0 x NX => -ERR syntax error",
    );
}

/// Computes the checksum of a serialized value bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| crc >> 1 ^ (0x95ac_9329_ac4b_c9b5 * (crc & 1)))
    })
}

#[test]
fn questions_of_graphical_clients_have_replies() {
    talk(
        &mut TestServer::open().client(),
        "ACL WHOAMI => default
         ACL USERS => [default]
         ACL FOO => -ERR unknown subcommand 'FOO'. Try ACL HELP.
         MODULE LIST => []",
    );
}

#[test]
fn bits_are_set_counted_found_and_combined() {
    talk(
        &mut TestServer::open().client(),
        "SETBIT a 7 1 => :0
         SETBIT a 7 1 => :1
         SETBIT a 17 1 => :0
         STRLEN a => :3
         GETBIT a 7 => :1
         GETBIT a 8 => :0
         GETBIT none 0 => :0
         GETBIT a 4294967295 => :0
         GETBIT a 4294967296 => -ERR bit offset is not an integer or out of range
         SETBIT a -1 1 => -ERR bit offset is not…
         SETBIT a 4294967295 1 => -ERR string exceeds…
         SETBIT a 1 2 => -ERR bit is not an integer or out of range
         BITCOUNT a => :2
         BITCOUNT a 0 0 => :1
         BITCOUNT a 0 6 BIT => :0
         BITCOUNT a 0 => -ERR syntax error
         BITCOUNT a 0 0 WORD => -ERR syntax error
         BITCOUNT a 0 0 BIT x => -ERR syntax error
         BITCOUNT zz => :0
         BITPOS a 1 => :7
         BITPOS a 1 1 => :17
         BITPOS a 0 => :0
         BITPOS a 2 => -ERR The bit argument must be 1 or 0.
         BITPOS zz 1 => :-1
         BITPOS zz 0 => :0
         MSET x abc y ab => OK
         BITOP AND r x y => :3
         GETRANGE r 0 1 => ab
         BITCOUNT r 2 2 => :0
         BITOP XOR r x x => :3
         BITCOUNT r => :0
         BITOP OR r y zz => :2
         GET r => ab
         BITOP OR r r x => :3
         GET r => abc
         BITOP NOT r zz => :0
         GET r => nil
         BITOP NOT r x y => -ERR BITOP NOT must be called…
         BITOP NAND r x y => -ERR syntax error",
    );
}

#[test]
fn a_bit_that_changes_leaves_the_end_of_its_key() {
    talk(
        &mut TestServer::open().client(),
        "SET a x EX 100 => OK
         SETBIT a 0 1 => :0
         TTL a => :100
         BITOP OR b a => :1
         TTL b => :-1",
    );
}

#[test]
fn numbers_count_and_refuse_to_overflow() {
    talk(
        &mut TestServer::open().client(),
        "INCR n => :1
         INCRBY n 41 => :42
         DECR n => :41
         DECRBY n 50 => :-9
         DECRBY n -9223372036854775808 => -ERR decrement would overflow
         SET n 9223372036854775807 => OK
         INCR n => -ERR increment or decrement would overflow
         GET n => 9223372036854775807
         SET n x => OK
         INCR n => -ERR value is not an integer…
         INCRBY n 1.5 => -ERR value is not an integer…
         INCRBYFLOAT f 10.5 => 10.5
         INCRBYFLOAT f -0.5 => 10
         INCRBYFLOAT f inf => -ERR increment would produce NaN or Infinity
         INCRBYFLOAT n 1 => -ERR value is not a valid float",
    );
}

#[test]
fn keys_are_found_renamed_copied_and_removed() {
    talk(
        &mut TestServer::open().client(),
        "MSET a 1 b 2 c 3 => OK
         EXISTS a b zz a => :3
         TOUCH a zz => :1
         TYPE a => string
         TYPE zz => none
         DBSIZE => :3
         KEYS * => [a b c]
         KEYS [ab] => [a b]
         KEYS z* => []
         DEL a zz => :1
         UNLINK b => :1
         RENAME zz y => -ERR no such key
         RENAME c d => OK
         MSET e 1 f 2 => OK
         RENAMENX e f => :0
         RENAMENX e g => :1
         COPY f h => :1
         COPY f h => :0
         COPY g h REPLACE => :1
         GET h => 1
         OBJECT ENCODING h => int
         OBJECT ENCODING zz => nil
         OBJECT REFCOUNT h => :1
         OBJECT IDLETIME h => :0
         OBJECT FREQ h => -ERR An LFU maxmemory policy is not selected…
         OBJECT FREQ zz => nil
         MEMORY USAGE h => :3
         MEMORY USAGE zz SAMPLES 5 => nil
         MEMORY USAGE h SAMPLES => -ERR syntax error
         MEMORY DOCTOR => -ERR unknown subcommand…
         FLUSHDB => OK
         DBSIZE => :0
         RANDOMKEY => nil
         GET h => nil
         SET h 1 => OK
         FLUSHALL ASYNC => OK
         FLUSHDB NOW => -ERR syntax error",
    );
}

#[test]
fn every_key_can_be_the_random_one_and_none_that_has_ended() {
    let redis = TestServer::open();
    let mut client = redis.client();
    let keys = ["a", "ab", "abc", "user:1", "user:2", "user:20", "z"];
    keys.iter().for_each(|key| assert_eq!(client.ask(&format!("SET {key} 1")), "OK"));
    assert_eq!(client.ask("SET aa 1 PX 5"), "OK");
    redis.pass_ms(10);
    let mut missing: std::collections::BTreeSet<_> = keys.iter().map(ToString::to_string).collect();
    // The rarest key is returned once in 104 replies on average, so 5000 replies almost certainly contain it.
    for _ in 0..5000 {
        let key = client.ask("RANDOMKEY");
        assert!(keys.contains(&&*key), "{key}");
        missing.remove(&key);
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn keys_lie_in_order_and_ranges_are_read_both_ways() {
    talk(
        &mut TestServer::open().client(),
        "MSET a 1 b 2 c 3 d 4 => OK
         AZ.RANGE - + => [a 1 b 2 c 3 d 4]
         AZ.RANGE [b (d => [b 2 c 3]
         AZ.RANGE (b + KEYS => [c d]
         AZ.RANGE - + REV LIMIT 2 => [d 4 c 3]
         AZ.RANGE - + LIMIT 0 => []
         AZ.RANGE [d [a => []
         AZ.RANGE b d => -ERR a bound must be…
         AZ.RANGE - + LIMIT -1 => -ERR value is not an integer…
         AZ.RANGE - + AT 5 => -ERR AT is not offered…
         AZ.COUNT [b + => :3
         AZ.DELRANGE [b (d LIMIT 1 => :1
         AZ.DELRANGE - (d => :2
         AZ.RANGE - + => [d 4]
         AZ.CAS d 4 5 => :1
         AZ.CAS d 4 6 => :0
         AZ.CAS zz 4 6 => :0
         GET d => 5",
    );
}

#[test]
fn connection_and_server_information_is_reported() {
    let redis = TestServer::open();
    talk(
        &mut redis.client(),
        "PING => PONG
         PING hi => hi
         ECHO hi => hi
         SELECT 0 => OK
         SELECT 1 => -ERR DB index is out of range…
         CLIENT ID => :1
         CLIENT GETNAME => nil
         CLIENT SETNAME me => OK
         CLIENT GETNAME => me
         CLIENT SETINFO LIB-NAME lib => OK
         CLIENT SETINFO LIB-COLOUR red => -ERR Unrecognized option 'LIB-COLOUR'
         CLIENT SETINFO lib-ver 1\u{1} => -ERR lib-ver cannot contain spaces, newlines or special characters.
         CLIENT NO-EVICT on => OK
         CLIENT NO-EVICT maybe => -ERR syntax error
         CLIENT NO-TOUCH OFF => OK
         CLIENT NO-TOUCH 1 => -ERR syntax error
         CLIENT UNBLOCK 1 ERROR => :0
         CLIENT UNBLOCK 1 x => -ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR
         CLIENT LIST ID x => -ERR Invalid client ID
         HELLO 3 SETNAME => -ERR Syntax error in HELLO option 'SETNAME'
         HELLO 2 SETNAM a => -ERR Syntax error in HELLO option 'SETNAM'
         CLIENT LIST => id=1 …
         CLIENT NO-EVICT ON => OK
         CLIENT TRACKING ON => -ERR unknown subcommand…
         CLIENT REPLY ON => OK
         CLIENT REPLY OFF => -ERR CLIENT REPLY is not offered: each request has a reply
         CLIENT REPLY x => -ERR syntax error
         READONLY => -ERR This instance has cluster support disabled…
         READWRITE => -ERR This instance has cluster support disabled…
         ASKING => -ERR This instance has cluster support disabled…
         LATENCY LATEST => []
         LATENCY LATEST x => -ERR wrong number of arguments for 'latency|latest' command
         LATENCY HISTORY command => []
         LATENCY HISTOGRAM get => []
         LATENCY RESET => :0
         LATENCY DOCTOR => Latency monitoring is disabled…
         LATENCY GRAPH command => -ERR No samples available for event 'command'
         LATENCY FOO => -ERR unknown subcommand 'FOO'. Try LATENCY HELP.
         CONFIG GET latency-monitor-threshold => [latency-monitor-threshold 0]
         CONFIG GET save => [save ]
         CONFIG GET append* => [appendfsync always appendonly yes]
         CONFIG SET save 1 => -ERR settings cannot be changed while the server runs…
         COMMAND COUNT => :93
         COMMAND INFO get nope => [[get :2 [readonly] :1 :1 :1 [@string @read] [] [] []] nil]
         COMMAND INFO ping => [[ping :-1 [] :0 :0 :0 [@connection] [] [] []]]
         COMMAND INFO exec => [[exec :1 [no_multi] :0 :0 :0 [@transaction] [] [] []]]
         COMMAND GETKEYS MSET a 1 b 2 => [a b]
         COMMAND GETKEYS PING => -ERR The command has no key arguments
         COMMAND DOCS get => [get [summary Returns the value of a key. since 0.1.0 group string]]
         WAIT 1 0 => :0
         ROLE => [master :0 []]
         CONFIG GET slowlog-max-len => [slowlog-max-len 0]
         SLOWLOG GET => []
         SLOWLOG GET 0 => []
         SLOWLOG LEN => :0
         SLOWLOG RESET => OK
         SLOWLOG GET 1 2 => -ERR syntax error
         SLOWLOG GET -2 => -ERR count should be greater than or equal to -1
         CLIENT UNBLOCK 1 => :0
         CLIENT GETREDIR => :-1
         CLIENT LIST ID 7 => 
         CLIENT LIST TYPE normal => id=1 …
         CLIENT LIST TYPE pubsub => 
         CLIENT LIST TYPE cat => -ERR Unknown client type 'cat'
         CLIENT KILL TYPE pubsub => :0
         CLIENT KILL USER default => :0
         CLIENT KILL USER nobody => -ERR No such user 'nobody'
         CLIENT KILL LADDR 1.2.3.4:5 SKIPME no => :0
         CLIENT KILL MAXAGE 100000 ID 1 SKIPME no => :0
         CLIENT KILL ID 0 => -ERR client-id should be greater than 0
         CLIENT KILL ID => -ERR No such client
         CLIENT KILL ID 1 ADDR => -ERR syntax error
         TIME => [1700000000 0]
         HELLO 4 => -NOPROTO…
         HELLO 3 => [server azekura version 7.2.0 proto :3…
         AUTH x => -ERR AUTH <password> called without any password configured…
         NOSUCH a => -ERR unknown command 'NOSUCH', with args beginning with: 'a'…
         GET => -ERR wrong number of arguments for 'get' command
         RESET => RESET
         QUIT => OK",
    );
    // `RESET` keeps the name of the library, as in Redis: the program behind the connection is the same.
    let mut client = redis.client();
    assert_eq!(client.ask("CLIENT SETINFO LIB-NAME lib"), "OK");
    assert_eq!(client.ask("CLIENT SETNAME me"), "OK");
    assert_eq!(client.ask("RESET"), "RESET");
    let line = client.ask("CLIENT INFO");
    assert!(line.contains(" name= ") && line.contains(" resp=2 lib-name=lib "), "{line}");
    // The fields that `redis-cli --stat` shows.
    let info = redis.client().ask("INFO");
    for field in ["redis_version:7", "used_memory:", "blocked_clients:0", "connected_clients:"] {
        assert!(info.contains(field), "{field}: {info}");
    }
    // Fields that clients require.
    let line = redis.client().ask("CLIENT INFO");
    let fields: Vec<_> = line.split_whitespace().filter_map(|field| field.split_once('=')).collect();
    for name in ["id", "fd", "age", "idle", "db", "sub", "psub", "multi", "qbuf", "qbuf-free", "argv-mem"]
        .into_iter()
        .chain(["multi-mem", "rbs", "rbp", "obl", "oll", "omem", "tot-mem", "redir", "resp"])
    {
        let value = fields.iter().find(|(field, _)| *field == name).unwrap_or_else(|| panic!("{name}")).1;
        assert!(value.parse::<i64>().is_ok(), "{name}: {line}");
    }
    let port = redis.server.address().tcp().unwrap().port();
    assert!(info.contains(&format!("tcp_port:{port}\r\n")), "{info}");
    assert_eq!(redis.client().ask("CONFIG GET port"), format!("[port {port}]"));
    let info = redis.client().ask("INFO commandstats");
    let ping = info.lines().find_map(|line| line.strip_prefix("cmdstat_ping:")).unwrap();
    let ping: Vec<_> = ping.split(',').filter_map(|field| field.split_once('=')).collect();
    let names: Vec<_> = ping.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["calls", "usec", "usec_per_call", "rejected_calls", "failed_calls"]);
    assert!(ping[0].1 == "2" && ping[1].1.parse::<u64>().is_ok() && ping[2].1.parse::<f64>().is_ok());
    assert!(info.contains("cmdstat_get:calls=") && info.contains("rejected_calls=1,"), "{info}");
    assert_eq!(redis.client().ask("CONFIG RESETSTAT"), "OK");
    let info = redis.client().ask("INFO commandstats stats");
    assert!(!info.contains("cmdstat_ping") && info.contains("total_connections_received:1"), "{info}");
}

#[test]
fn keys_and_values_may_be_any_bytes_within_their_bounds() {
    let redis = TestServer::with(|options| options.wire.max_bulk_bytes = 100_000);
    let mut client = redis.client();
    let key: Vec<u8> = (0..=255).collect();
    assert_eq!(client.ask_raw(&[b"SET".as_slice(), &key, b"\r\n\0"]), "OK");
    assert_eq!(client.ask_raw(&[b"GET".as_slice(), &key]), "\r\n\0");
    assert_eq!(client.ask_raw(&[b"SET".as_slice(), b"", b""]), "OK");
    assert_eq!(client.ask_raw(&[b"GET".as_slice(), b""]), "");
    let large = vec![b'v'; 100_000];
    assert_eq!(client.ask_raw(&[b"SET".as_slice(), b"large", &large]), "OK");
    assert_eq!(client.ask_raw(&[b"STRLEN".as_slice(), b"large"]), ":100000");
    assert!(client.ask_raw(&[b"APPEND".as_slice(), b"large", b"x"]).starts_with("-ERR string exceeds"));
    let long = vec![b'k'; redis.db.max_key_bytes() - 8 + 1];
    assert!(client.ask_raw(&[b"SET".as_slice(), &long, b"x"]).starts_with("-ERR the key has"));
    assert_eq!(client.ask_raw(&[b"SET".as_slice(), &long[1..], b"x"]), "OK");
    assert_eq!(client.ask_raw(&[b"GET".as_slice(), &long]), "nil");
    assert_eq!(client.ask_raw(&[b"DEL".as_slice(), &long]), ":0");
    let bound = [b"[", &long[..]].concat();
    assert_eq!(client.ask_raw(&[b"AZ.COUNT".as_slice(), &bound, b"+"]), ":1");
    assert_eq!(client.ask_raw(&[b"AZ.COUNT".as_slice(), &bound, &bound]), ":0");
    assert_eq!(
        client.ask_raw(&[b"AZ.RANGE".as_slice(), b"-", &bound, b"REV", b"LIMIT", b"1", b"KEYS"]).len(),
        long.len() + 1
    );
    assert_eq!(client.ask_raw(&[b"KEYS".as_slice(), &long]), "[]");
    // One key is too long, so the whole command has no effect.
    assert!(
        client.ask_raw(&[b"MSET".as_slice(), b"first", b"1", &long, b"2"]).starts_with("-ERR the key has")
    );
    assert_eq!(client.ask("EXISTS first"), ":0");
}

#[test]
fn a_scan_returns_each_key_that_stays_once_and_in_order_while_others_come_and_go() {
    let redis = TestServer::open();
    let mut client = redis.client();
    let name = |i: usize| format!("stays:{i:04}");
    (0..300).for_each(|i| assert_eq!(client.ask(&format!("SET {} x", name(i))), "OK"));
    let (mut cursor, mut seen, mut turn) = ("0".to_owned(), Vec::new(), 0);
    loop {
        let reply = client.ask(&format!("SCAN {cursor} MATCH stays:* COUNT 7"));
        let again = client.ask(&format!("SCAN {cursor} MATCH stays:* COUNT 7"));
        let keys = |reply: &str| reply.split_once(' ').unwrap().1.trim_end_matches(']').to_owned();
        assert_eq!(keys(&reply), keys(&again), "a cursor can be used twice");
        let found = keys(&reply);
        seen.extend(found.trim_start_matches('[').split(' ').filter(|k| !k.is_empty()).map(str::to_owned));
        cursor = reply[1..].split_once(' ').unwrap().0.to_owned();
        if cursor == "0" {
            break;
        }
        turn += 1;
        client.ask(&format!("SET other:{turn} x"));
        client.ask(&format!("SET stays:zz{turn} x"));
        client.ask(&format!("DEL stays:zz{turn}"));
        client.ask(&format!("DEL other:{}", turn / 2));
    }
    assert_eq!(seen, (0..300).map(name).collect::<Vec<_>>());
    for wrong in ["x", "-1", "7", "18446744073709551615", "18446744073709551616"] {
        assert!(client.ask(&format!("SCAN {wrong}")).starts_with("-ERR invalid cursor"), "{wrong}");
    }
    assert!(client.ask("SCAN 0 COUNT 0").starts_with("-ERR syntax"));
    assert_eq!(client.ask("SCAN 0 TYPE list COUNT 10000"), "[0 []]");
}

#[test]
fn a_too_long_reply_is_refused_and_the_connection_stays_open() {
    let redis = TestServer::with(|options| options.max_reply_bytes = 10_000);
    let mut client = redis.client();
    let value = "v".repeat(1000);
    (0..20).for_each(|i| assert_eq!(client.ask(&format!("SET k{i} {value}")), "OK"));
    let all = (0..20).map(|i| format!(" k{i}")).collect::<String>();
    assert!(client.ask(&format!("MGET{all}")).starts_with("-ERR the reply would exceed"));
    assert!(client.ask("AZ.RANGE - +").starts_with("-ERR the reply would exceed"));
    assert_eq!(client.ask("MULTI"), "OK");
    (0..20).for_each(|i| assert_eq!(client.ask(&format!("GET k{i}")), "QUEUED"));
    let replies = client.ask("EXEC");
    assert!(
        replies.contains("-ERR the reply would exceed") && replies.len() < 10_000 + 20 * 100,
        "{}",
        replies.len()
    );
    assert_eq!(client.ask("AZ.RANGE - + LIMIT 1 KEYS"), "[k0]");
    for word in ["INFO", "DOCS"] {
        let reply = client.ask(&format!("COMMAND {word}{}", " get".repeat(100)));
        assert!(reply.starts_with("-ERR the reply would exceed"), "{reply}");
    }
    // The replies to commands on the server count too.
    assert_eq!(client.ask("MULTI"), "OK");
    (0..20).for_each(|_| assert_eq!(client.ask("COMMAND DOCS get set"), "QUEUED"));
    let replies = client.ask("EXEC");
    assert!(
        replies.starts_with("[[get [summary") && replies.contains("-ERR the reply would exceed"),
        "{replies}"
    );
    assert_eq!(client.ask("MULTI"), "OK");
    (0..100).for_each(|_| assert_eq!(client.ask("OBJECT HELP"), "QUEUED"));
    assert!(client.ask("EXEC").contains("-ERR the reply would exceed"));
}

#[test]
fn values_that_are_not_in_the_reply_do_not_count_for_its_bound() {
    let redis = TestServer::with(|options| options.max_reply_bytes = 10_000);
    let mut client = redis.client();
    let value = "v".repeat(3000);
    (0..9).for_each(|i| assert_eq!(client.ask(&format!("SET k{i} {value}")), "OK"));
    assert_eq!(client.ask("BITOP OR sum k0 k1 k2 k3 k4 k5 k6 k7 k8"), ":3000");
    assert_eq!(client.ask("MULTI"), "OK");
    for i in 0..9 {
        for request in
            ["APPEND k0 x", "EXPIRE k1 100", "SETBIT k2 0 1", "COPY k3 k4 REPLACE", "AZ.CAS k5 a b"]
        {
            assert_eq!(client.ask(request), "QUEUED", "{i}");
        }
    }
    let replies = client.ask("EXEC");
    assert!(replies.starts_with("[:3001 :1 ") && !replies.contains('-'), "{replies}");
    assert_eq!(client.ask("MULTI"), "OK");
    (0..9).for_each(|i| assert_eq!(client.ask(&format!("GETSET k{i} new")), "QUEUED"));
    assert!(client.ask("EXEC").contains("-ERR the reply would exceed"));
}

#[test]
fn a_pipeline_of_any_size_is_answered_in_order() {
    let redis = TestServer::open();
    let mut client = redis.client();
    let mut requests = Vec::new();
    for i in 0..5000 {
        requests.extend(crate::support::encoded(&["SET", &format!("k{i}"), &i.to_string()]));
        requests.extend(crate::support::encoded(&["GET", &format!("k{i}")]));
    }
    let mut writer = client.stream.get_ref().try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || std::io::Write::write_all(&mut writer, &requests).unwrap());
        for i in 0..5000 {
            assert_eq!(client.reply(), "OK");
            assert_eq!(client.reply(), i.to_string());
        }
    });
}
