//! Random commands on the server and on a model; both must give the same replies.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::{BEGAN_MS, TestServer, seed};

/// A model of the commands below over a map, as Redis documents them.
struct Model {
    keys: BTreeMap<String, (String, Option<u64>)>,
    now_ms: u64,
}

impl Model {
    fn drop_ended(&mut self) {
        self.keys.retain(|_, (_, end)| end.is_none_or(|at| at > self.now_ms));
    }

    fn value(&self, key: &str) -> Option<String> {
        self.keys.get(key).map(|(value, _)| value.clone())
    }

    fn end(&self, key: &str) -> Option<u64> {
        self.keys.get(key).and_then(|(_, end)| *end)
    }

    fn put(&mut self, key: &str, value: &str, end: Option<u64>) {
        self.keys.insert(key.into(), (value.into(), end));
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.drop_ended();
        let or_nil = |value: Option<String>| value.unwrap_or_else(|| "nil".into());
        let key = words.get(1).copied().unwrap_or_default();
        let old = self.value(key);
        match words {
            ["GET", _] => or_nil(old),
            ["SET", _, value] => {
                self.put(key, value, None);
                "OK".into()
            }
            ["SET", _, value, "PX", ms] => {
                self.put(key, value, Some(self.now_ms + ms.parse::<u64>().unwrap()));
                "OK".into()
            }
            ["SET", _, value, condition @ ("NX" | "XX"), "GET"] => {
                if (*condition == "NX") == old.is_none() {
                    self.put(key, value, None);
                }
                or_nil(old)
            }
            ["SET", _, value, "KEEPTTL"] => {
                self.put(key, value, self.end(key));
                "OK".into()
            }
            ["APPEND", _, more] => {
                let value = old.unwrap_or_default() + more;
                self.put(key, &value, self.end(key));
                format!(":{}", value.len())
            }
            ["INCRBY", _, by] => match old.as_deref().unwrap_or("0").parse::<i64>() {
                Err(_) => "-ERR value is not an integer or out of range".into(),
                Ok(number) => {
                    let number = number + by.parse::<i64>().unwrap();
                    self.put(key, &number.to_string(), self.end(key));
                    format!(":{number}")
                }
            },
            ["GETDEL", _] => {
                self.keys.remove(key);
                or_nil(old)
            }
            ["DEL", keys @ ..] => {
                format!(":{}", keys.iter().filter(|key| self.keys.remove(**key).is_some()).count())
            }
            ["PEXPIRE", _, ms] => match old {
                None => ":0".into(),
                Some(value) => {
                    self.put(key, &value, Some(self.now_ms + ms.parse::<u64>().unwrap()));
                    ":1".into()
                }
            },
            ["PERSIST", _] => {
                let had = self.end(key).is_some();
                if let Some(value) = old {
                    self.put(key, &value, None);
                }
                format!(":{}", u8::from(had))
            }
            ["PTTL", _] => match (old, self.end(key)) {
                (None, _) => ":-2".into(),
                (Some(_), None) => ":-1".into(),
                (Some(_), Some(at)) => format!(":{}", at - self.now_ms),
            },
            ["RENAME", from, to] => match self.keys.remove(*from) {
                None => "-ERR no such key".into(),
                Some(row) => {
                    self.keys.insert((*to).into(), row);
                    "OK".into()
                }
            },
            ["MGET", keys @ ..] => {
                let values: Vec<String> = keys.iter().map(|key| or_nil(self.value(key))).collect();
                format!("[{}]", values.join(" "))
            }
            ["MSETNX", a, x, b, y] => {
                let is_free = !self.keys.contains_key(*a) && !self.keys.contains_key(*b);
                if is_free {
                    self.put(a, x, None);
                    self.put(b, y, None);
                }
                format!(":{}", u8::from(is_free))
            }
            ["DBSIZE"] => format!(":{}", self.keys.len()),
            ["AZ.RANGE", lower, upper] => {
                let range = lower[1..].to_owned()..upper[1..].to_owned();
                let rows = self.keys.iter().filter(|(key, _)| range.contains(*key));
                format!(
                    "[{}]",
                    rows.map(|(key, (value, _))| format!("{key} {value}")).collect::<Vec<_>>().join(" ")
                )
            }
            ["AZ.DELRANGE", lower, upper] => {
                let before = self.keys.len();
                let range = lower[1..].to_owned()..upper[1..].to_owned();
                self.keys.retain(|key, _| !range.contains(key));
                format!(":{}", before - self.keys.len())
            }
            _ => unreachable!("{words:?}"),
        }
    }
}

fn draw(rng: &mut StdRng) -> String {
    let key = |rng: &mut StdRng| format!("k{:02}", rng.random_range(0..20));
    let value = |rng: &mut StdRng| match rng.random_range(0..3) {
        0 => rng.random_range(-50..50).to_string(),
        1 => "v".repeat(rng.random_range(1..2000)),
        _ => format!("w{}", rng.random_range(0..9)),
    };
    let (a, b, v, w) = (key(rng), key(rng), value(rng), value(rng));
    let ms = rng.random_range(1..300);
    let (low, high) = if a <= b { (&a, &b) } else { (&b, &a) };
    match rng.random_range(0..19) {
        0 | 1 => format!("GET {a}"),
        2 => format!("SET {a} {v}"),
        3 => format!("SET {a} {v} PX {ms}"),
        4 => format!("SET {a} {v} NX GET"),
        5 => format!("SET {a} {v} XX GET"),
        6 => format!("SET {a} {v} KEEPTTL"),
        7 => format!("APPEND {a} {w}"),
        8 => format!("INCRBY {a} {}", rng.random_range(-9..9)),
        9 => format!("GETDEL {a}"),
        10 => format!("DEL {a} {b}"),
        11 => format!("PEXPIRE {a} {ms}"),
        12 => format!("PERSIST {a}"),
        13 => format!("PTTL {a}"),
        14 if a != b => format!("RENAME {a} {b}"),
        15 => format!("MGET {a} {b} {a}"),
        16 if a != b => format!("MSETNX {a} {v} {b} {w}"),
        17 => format!("AZ.RANGE [{low} ({high}"),
        18 if rng.random_range(0..4) == 0 => format!("AZ.DELRANGE [{low} ({high}"),
        _ => "DBSIZE".into(),
    }
}

#[test]
fn random_commands_are_answered_as_a_map_would_answer_them() {
    let mut rng = StdRng::seed_from_u64(seed("AZEKURA_REDIS_SERVER_SEED"));
    // Expired keys are removed while commands run.
    let redis = TestServer::with(|options| options.expiry_interval = Duration::from_millis(1));
    let mut client = redis.client();
    let mut model = Model { keys: BTreeMap::new(), now_ms: BEGAN_MS };
    for turn in 0..40 {
        let is_multi = turn % 4 == 3;
        let commands: Vec<String> = (0..50).map(|_| draw(&mut rng)).collect();
        let wanted = commands.iter().map(|command| {
            if !is_multi && command.len() % 5 == 0 {
                redis.pass_ms(7);
                model.now_ms += 7;
            }
            let wanted = model.ask(&command.split(' ').collect::<Vec<_>>());
            if !is_multi {
                assert_eq!(client.ask(command), wanted, "{command}");
            }
            wanted
        });
        let wanted: Vec<String> = wanted.collect();
        if is_multi {
            assert_eq!(client.ask("MULTI"), "OK");
            commands.iter().for_each(|command| assert_eq!(client.ask(command), "QUEUED"));
            assert_eq!(client.ask("EXEC"), format!("[{}]", wanted.join(" ")));
        }
    }
}
