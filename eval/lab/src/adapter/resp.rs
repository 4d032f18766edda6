//! A server with the RESP protocol, over its socket: this project's Redis server, Redis, and similar servers.
//!
//! A transaction of one write is one command (`SET`, or `MSET` of several). A transaction that reads before
//! it writes uses the usual sequence of Redis clients: `WATCH`, `GET`, `MULTI` … `EXEC`, repeated after a
//! conflict. Scans in key order need `AZ.RANGE`; other servers can only read a whole table, in any order. A
//! setting of the server decides whether a write is durable when it is answered; the setting is in the
//! report.
//!
//! Each node of an Azekura cluster accepts clients, so the sessions are divided among the given addresses. A
//! cluster has no transactions over several nodes, so only the YCSB workloads run on it. Its loads, which
//! write several keys and read none, are sent as pipelined `SET`s.

use crate::engine::{
    Engine, EngineSettings, ReadWork, Reader, Session, Sink, Store, WriteWork, Writer, retry_conflicts,
};
use crate::error::EngineError;
use azekura_workload::ycsb::Mix;
use azekura_workload::{Family, Workload};
use redis::{Connection, FromRedisValue, RedisResult, cmd};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Rows that one command of a long scan requests.
const SCAN_ROWS: u64 = 1000;
/// Name of the file in a store's directory that marks the server's keys as this store's.
const MARK: &str = "filled";

/// A server at an address, or a cluster at several. The measured store consists of all keys of the server.
/// The server must therefore have no keys when the first store is opened; dropping the engine removes all
/// keys.
#[derive(Debug)]
pub struct RespEngine {
    gateways: Gateways,
    name: String,
    about: BTreeMap<String, String>,
    is_ordered: bool,
    is_cluster: bool,
    /// The server had no keys when the first store was opened, so all keys belong to the engine.
    is_ours: AtomicBool,
}

/// Addresses of a server or of several nodes of a cluster.
#[derive(Clone, Debug)]
struct Gateways {
    addresses: Vec<SocketAddr>,
    /// Number of sessions opened so far.
    sessions: Arc<AtomicUsize>,
}

impl Gateways {
    fn first(&self) -> Result<Connection, EngineError> {
        let none = || EngineError::failed("connecting", "no server address is given");
        connection(*self.addresses.first().ok_or_else(none)?)
    }

    /// Connects to the next address in turn.
    fn next(&self) -> Result<Connection, EngineError> {
        // Relaxed: only the count itself matters.
        let session = self.sessions.fetch_add(1, Relaxed);
        match session.checked_rem(self.addresses.len()) {
            Some(gateway) => connection(self.addresses[gateway]),
            None => self.first(),
        }
    }

    fn names(&self) -> String {
        self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
    }
}

impl RespEngine {
    /// Connects to the server at `address` and reads its kind and version. `tag` is appended to the engine's
    /// name, to distinguish several servers of one kind.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or requires a password.
    pub fn connect(address: SocketAddr, tag: &str) -> Result<Self, EngineError> {
        Self::connect_by(&[address], tag)
    }

    /// Connects to a cluster; its sessions use the addresses in turn.
    ///
    /// # Errors
    ///
    /// The first node cannot be reached, or requires a password.
    pub fn connect_by(gateways: &[SocketAddr], tag: &str) -> Result<Self, EngineError> {
        let gateways = Gateways { addresses: gateways.to_vec(), sessions: Arc::default() };
        let mut connection = gateways.first()?;
        let info: String = cmd("INFO").query(&mut connection).map_err(failed("asking the server"))?;
        let info: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let settings: HashMap<String, String> = cmd("CONFIG")
            .arg("GET")
            .arg("appendfsync")
            .query(&mut connection)
            .map_err(failed("asking the server"))?;
        let is_ordered = info.contains_key("azekura_version");
        let kinds =
            [("azekura_version", "azekura-door"), ("kvrocks_version", "kvrocks"), ("redis_version", "redis")];
        let known = kinds.iter().find_map(|(field, kind)| info.get(field).map(|version| (*kind, *version)));
        let (kind, version) = known.unwrap_or(("resp", "unknown"));
        let durability = settings.get("appendfsync").map_or("unknown", String::as_str);
        let about = BTreeMap::from([
            ("version".to_owned(), version.to_owned()),
            ("address".to_owned(), gateways.names()),
            ("appendfsync".to_owned(), durability.to_owned()),
        ]);
        let nodes = info.get("azekura_nodes").and_then(|nodes| nodes.parse().ok()).unwrap_or(1_u64);
        let is_cluster = nodes > 1;
        let name = if is_cluster {
            format!("azekura-cluster-{nodes}-by-{}{tag}", gateways.addresses.len())
        } else {
            format!("{kind}-{durability}{tag}")
        };
        Ok(Self { gateways, name, about, is_ordered, is_cluster, is_ours: AtomicBool::new(false) })
    }
}

impl Drop for RespEngine {
    fn drop(&mut self) {
        if *self.is_ours.get_mut()
            && let Ok(mut connection) = self.gateways.first()
        {
            // `drop` cannot report an error.
            let _: RedisResult<()> = cmd("FLUSHALL").query(&mut connection);
        }
    }
}

fn connection(address: SocketAddr) -> Result<Connection, EngineError> {
    let client = redis::Client::open(format!("redis://{address}/")).map_err(failed("connecting"))?;
    client.get_connection().map_err(failed("connecting"))
}

/// Returns a function that wraps an error of the server; `RETRY` becomes a conflict.
fn failed(doing: &'static str) -> impl Fn(redis::RedisError) -> EngineError {
    move |error| {
        if error.code() == Some("RETRY") {
            EngineError::conflict(doing, error)
        } else {
            EngineError::failed(doing, error)
        }
    }
}

impl Engine for RespEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self, _: &EngineSettings) -> BTreeMap<String, String> {
        self.about.clone()
    }

    fn lacks(&self, workload: &Workload) -> Option<&'static str> {
        let is_ycsb = matches!(workload.family(), Family::Ycsb(_));
        if self.is_cluster && !is_ycsb {
            return Some("no transactions over several nodes");
        }
        (!self.is_ordered && workload.family() == Family::Ycsb(Mix::E)).then_some("no ordered scan")
    }

    fn open(&self, dir: &Path, _: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let mut connection = self.gateways.first()?;
        let mark = dir.join(MARK);
        if !mark.exists() {
            // Relaxed: stores are opened one after another, by one thread.
            if !self.is_ours.load(Relaxed) {
                let keys: u64 = cmd("DBSIZE").query(&mut connection).map_err(failed("counting the keys"))?;
                if keys > 0 {
                    let why = format!(
                        "the server at {} holds {keys} keys; give one that is empty",
                        self.gateways.names()
                    );
                    return Err(EngineError::failed("opening", why));
                }
                self.is_ours.store(true, Relaxed);
            }
            let () = cmd("FLUSHALL").query(&mut connection).map_err(failed("emptying the server"))?;
            std::fs::write(&mark, b"").map_err(|error| EngineError::failed("marking the store", error))?;
        }
        let Self { gateways, is_ordered, is_cluster, .. } = self;
        Ok(Box::new(RespStore {
            gateways: gateways.clone(),
            is_ordered: *is_ordered,
            is_cluster: *is_cluster,
        }))
    }
}

struct RespStore {
    gateways: Gateways,
    is_ordered: bool,
    is_cluster: bool,
}

impl Store for RespStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        let Self { gateways, is_ordered, is_cluster } = self;
        let connection = gateways.next()?;
        Ok(Box::new(RespSession { connection, is_ordered: *is_ordered, is_cluster: *is_cluster }))
    }
}

struct RespSession {
    connection: Connection,
    is_ordered: bool,
    is_cluster: bool,
}

impl Session for RespSession {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        work(&mut Steps::new(self, false))?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let ((), retries) = retry_conflicts(|| {
            let mut steps = Steps::new(self, true);
            let done = work(&mut steps);
            let (puts, watches) = (std::mem::take(&mut steps.puts), steps.watches);
            if let Err(error) = done {
                if watches {
                    self.ask::<()>("unwatching", &mut cmd("UNWATCH"))?;
                }
                return Err(error);
            }
            self.commit(&puts, watches)
        })?;
        Ok(retries)
    }
}

impl RespSession {
    fn ask<T: FromRedisValue>(
        &mut self,
        doing: &'static str,
        command: &mut redis::Cmd,
    ) -> Result<T, EngineError> {
        command.query(&mut self.connection).map_err(failed(doing))
    }

    fn commit(&mut self, puts: &BTreeMap<Vec<u8>, Vec<u8>>, watches: bool) -> Result<(), EngineError> {
        match (puts.len(), watches) {
            (0, false) => Ok(()),
            (0, true) => self.ask("unwatching", &mut cmd("UNWATCH")),
            (1, false) => {
                let (key, value) =
                    puts.first_key_value().unwrap_or((const { &Vec::new() }, const { &Vec::new() }));
                self.ask("writing", cmd("SET").arg(key).arg(value))
            }
            (_, false) if self.is_cluster => {
                let mut pipe = redis::pipe();
                for (key, value) in puts {
                    pipe.set(key, value).ignore();
                }
                pipe.query(&mut self.connection).map_err(failed("writing"))
            }
            (_, false) => self.ask("writing", &mut mset(puts)),
            (_, true) => {
                let mut pipe = redis::pipe();
                pipe.atomic().add_command(mset(puts));
                let done: Option<redis::Value> =
                    pipe.query(&mut self.connection).map_err(failed("committing"))?;
                done.map(|_| ())
                    .ok_or_else(|| EngineError::conflict("committing", "a watched key has changed"))
            }
        }
    }
}

fn mset(puts: &BTreeMap<Vec<u8>, Vec<u8>>) -> redis::Cmd {
    let mut command = cmd("MSET");
    for (key, value) in puts {
        command.arg(key).arg(value);
    }
    command
}

/// The steps of one transaction; its writes are sent at its end.
struct Steps<'s> {
    session: &'s mut RespSession,
    puts: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The transaction may write: its reads are watched.
    may_write: bool,
    watches: bool,
}

impl<'s> Steps<'s> {
    const fn new(session: &'s mut RespSession, may_write: bool) -> Self {
        Self { session, puts: BTreeMap::new(), may_write, watches: false }
    }

    fn range(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        let (mut lower, mut left) = ([b"[", from].concat(), limit);
        while left > 0 {
            let count = left.min(SCAN_ROWS);
            let mut command = cmd("AZ.RANGE");
            command.arg(&lower).arg("+").arg("LIMIT").arg(count);
            let rows: Vec<(Vec<u8>, Vec<u8>)> = self.session.ask("scanning", &mut command)?;
            rows.iter().for_each(|(key, value)| sink.add(key, value));
            let Some((last, _)) = rows.last().filter(|_| rows.len() as u64 == count) else { break };
            lower = [b"(", last.as_slice()].concat();
            left -= count;
        }
        Ok(())
    }

    /// Reads all rows, in any order.
    fn whole_table(&mut self, sink: &mut Sink) -> Result<(), EngineError> {
        let mut cursor = 0_u64;
        loop {
            let mut command = cmd("SCAN");
            command.arg(cursor).arg("COUNT").arg(SCAN_ROWS);
            let (next, keys): (u64, Vec<Vec<u8>>) = self.session.ask("scanning", &mut command)?;
            if !keys.is_empty() {
                let values: Vec<Vec<u8>> = self.session.ask("reading", cmd("MGET").arg(&keys))?;
                keys.iter().zip(&values).for_each(|(key, value)| sink.add(key, value));
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

impl Reader for Steps<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        if let Some(own) = self.puts.get(key) {
            sink.add(key, own);
            return Ok(true);
        }
        if self.may_write {
            self.session.ask::<()>("watching", cmd("WATCH").arg(key))?;
            self.watches = true;
        }
        let found: Option<Vec<u8>> = self.session.ask("reading", cmd("GET").arg(key))?;
        found.iter().for_each(|value| sink.add(key, value));
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        if self.may_write {
            return Err(EngineError::failed("scanning", "ranges cannot be watched"));
        }
        match (self.session.is_ordered, from.is_empty() && limit == u64::MAX) {
            (true, _) => self.range(from, limit, sink),
            (false, true) => self.whole_table(sink),
            (false, false) => Err(EngineError::failed("scanning", "the server has no order of keys")),
        }
    }

    fn scan_back(&mut self, _limit: u64, _sink: &mut Sink) -> Result<(), EngineError> {
        Err(EngineError::failed("scanning backwards", "the server has no such command"))
    }
}

impl Writer for Steps<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.puts.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove(&mut self, _key: &[u8]) -> Result<(), EngineError> {
        Err(EngineError::failed("removing", "this adapter only stores"))
    }
}
