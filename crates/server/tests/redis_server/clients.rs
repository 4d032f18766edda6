//! A test with the `redis` client library, in both versions of the protocol.

use redis::{Commands, Connection};

use crate::support::TestServer;

fn connect(redis: &TestServer, query: &str) -> Connection {
    let url = format!("redis://{}/{query}", redis.server.address());
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

#[test]
fn the_redis_crate_speaks_to_it_in_both_versions() {
    let redis = TestServer::open();
    for query in ["?protocol=resp2", "?protocol=resp3"] {
        let mut con = connect(&redis, query);
        let _: () = con.flushdb().unwrap();
        let _: () = con.set("a", 41).unwrap();
        let n: i64 = con.incr("a", 1).unwrap();
        let missing: Option<String> = con.get("missing").unwrap();
        assert_eq!((n, missing), (42, None));
        let _: () = con.set_ex("b", "x", 100).unwrap();
        let ttl: i64 = con.ttl("b").unwrap();
        assert_eq!(ttl, 100);
        let both: (i64, String) =
            redis::pipe().atomic().incr("a", 1).cmd("GET").arg("b").query(&mut con).unwrap();
        assert_eq!(both, (43, "x".into()));
        let n: i64 = redis::transaction(&mut con, &["a"], |con, pipe| {
            let n: i64 = con.get("a")?;
            pipe.set("a", n * 2).ignore().get("a").query(con).map(|r: Option<(i64,)>| r.map(|(n,)| n))
        })
        .unwrap();
        assert_eq!(n, 86);
        let mut keys: Vec<String> = con.scan().unwrap().map(Result::unwrap).collect();
        keys.sort();
        assert_eq!(keys, ["a", "b"]);
        let rows: Vec<(String, String)> = redis::cmd("AZ.RANGE").arg("-").arg("+").query(&mut con).unwrap();
        assert_eq!(rows, [("a".into(), "86".into()), ("b".into(), "x".into())]);
        let wrong: redis::RedisResult<i64> = con.incr("b", 1);
        assert!(wrong.unwrap_err().to_string().contains("not an integer"));
    }
}
