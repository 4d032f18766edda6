//! Random requests, valid and invalid, to a server and to a cluster. If all keys are at one node, both must
//! give the same replies, whether or not the client is connected to that node.

use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::nodes::Nodes;
use crate::support::{Client, TestServer, seed};

/// Commands on keys, and `HELP`: their replies depend on the keys only.
const COMMANDS: &str = "APPEND AZ.CAS BITCOUNT BITFIELD BITFIELD_RO BITOP BITPOS COPY DECR DECRBY DEL DUMP \
                        EXISTS EXPIRE EXPIREAT EXPIRETIME GET GETBIT GETDEL GETEX GETRANGE GETSET INCR \
                        INCRBY INCRBYFLOAT LCS MEMORY MGET MSET MSETNX OBJECT PERSIST PEXPIRE PEXPIREAT \
                        PEXPIRETIME PSETEX PTTL RENAME RENAMENX RESTORE SET SETBIT SETEX SETNX SETRANGE \
                        STRLEN SUBSTR TOUCH TTL TYPE UNLINK WATCH UNWATCH ECHO PING SELECT ACL MODULE";
/// Commands on ranges, outside transactions: a cluster refuses them in `MULTI`.
const RANGES: &str = "AZ.COUNT AZ.DELRANGE AZ.RANGE DBSIZE FLUSHALL KEYS";
const WORDS: &str = "1 0 -1 5 100 -100 1.5 abc 9223372036854775807 -9223372036854775808 4294967296 \
                     1700000000 NX XX GT LT EX PX EXAT PXAT KEEPTTL GET PERSIST REPLACE ABSTTL DB BIT BYTE \
                     AND OR NOT SET INCRBY OVERFLOW SAT FAIL u8 i16 #1 LEN IDX USAGE SAMPLES ENCODING FREQ \
                     HELP WHOAMI LIST LIMIT REV - + [p (q p*";

struct Sides {
    sides: [Client; 2],
    log: Vec<String>,
}

impl Sides {
    fn ask(&mut self, words: &[&str]) {
        self.log.push(words.iter().map(|word| &word[..word.len().min(20)]).collect::<Vec<_>>().join(" "));
        let [of_server, of_cluster] = self.sides.each_mut().map(|client| client.ask_raw(words));
        let last = &self.log[self.log.len().saturating_sub(12)..];
        assert_eq!(of_cluster, of_server, "the cluster and the server after {last:#?}");
    }
}

#[test]
fn a_cluster_gives_the_replies_of_a_server() {
    let mut rng = StdRng::seed_from_u64(seed("SAME_SEED"));
    let (redis, nodes) = (TestServer::open(), Nodes::with(&["", "~"], |_| ()));
    // The node of the keys, or the other one.
    let gateway = rng.random_range(0..2);
    let mut sides = Sides { sides: [redis.client(), nodes.client(gateway)], log: Vec::new() };
    let long = "p".repeat(5000);
    let keys = ["pa", "pb", "pc", "pd", &long];
    let split = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
    let (commands, ranges, words) = (split(COMMANDS), split(RANGES), split(WORDS));
    let any = |rng: &mut StdRng, of: &[&'static str]| of[rng.random_range(0..of.len())];
    for _ in 0..4000 {
        let mode = rng.random_range(0..8);
        let (begin, end) = match mode {
            0 => (Some("MULTI"), "EXEC"),
            1 => (Some("AZ.BEGIN"), "AZ.COMMIT"),
            _ => (None, ""),
        };
        if let Some(begin) = begin {
            sides.ask(&[begin]);
        }
        for _ in 0..if begin.is_some() { rng.random_range(0..6) } else { 1 } {
            let is_range = begin.is_none() && rng.random_range(0..10) == 0;
            let mut request = vec![any(&mut rng, if is_range { &ranges } else { &commands })];
            for place in 0..rng.random_range(0..6) {
                let is_key = rng.random_range(0..3) == 0 || (place == 0 && rng.random_range(0..10) > 0);
                request.push(match is_key && !is_range {
                    true => keys[rng.random_range(0..keys.len())],
                    false => any(&mut rng, &words),
                });
            }
            if rng.random_range(0..100) == 0 {
                request.push("");
            }
            sides.ask(&request);
        }
        if begin.is_some() {
            sides.ask(&[end]);
        }
        let ms = [0, 0, 0, 1, 999, 5000][rng.random_range(0..6)];
        redis.pass_ms(ms);
        nodes.now_ms.fetch_add(ms, Relaxed);
    }
}
