//! Interleaved transactions of one thread, none of which waits, against a map. Each read returns the
//! committed rows with the transaction's own changes. A row that an open transaction has read does not
//! change.

use std::collections::BTreeMap;
use std::ops::Range;

use azekura::{Database, Error, LockPart, Savepoint, TableDefinition, Transaction};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

const ROWS: TableDefinition<u32, [u8]> = TableDefinition::new("rows");
const KEYS: u32 = 24;
const CLIENTS: usize = 4;
/// Size of a value: six rows fill a leaf of 4 KiB.
const VALUE_BYTES: usize = 600;

type Rows = BTreeMap<u32, Vec<u8>>;

#[derive(Debug, Default)]
struct Counts {
    done: usize,
    refused: usize,
    commits: usize,
}

/// A description of a deviation from the model.
#[derive(Debug)]
struct Wrong(String);

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(read: T, expected: T) -> Result<(), Wrong> {
    if read == expected { Ok(()) } else { Err(Wrong(format!("{read:?} in place of {expected:?}"))) }
}

struct Client {
    tx: Transaction,
    /// The transaction's own changes; `None` is a removal.
    own: BTreeMap<u32, Option<Vec<u8>>>,
    /// Ranges that the transaction has read, and their committed rows.
    reads: Vec<(Range<u32>, Rows)>,
    savepoint: Option<(Savepoint, BTreeMap<u32, Option<Vec<u8>>>)>,
}

struct Model {
    db: Database,
    committed: Rows,
    clients: Vec<Client>,
    next_value: u64,
    counts: Counts,
}

fn begin(db: &Database) -> Result<Client, Error> {
    let tx = db.begin()?;
    tx.set_nowait(true)?;
    Ok(Client { tx, own: BTreeMap::new(), reads: Vec::new(), savepoint: None })
}

impl Model {
    fn new(rng: &mut SmallRng, left_out: Option<LockPart>) -> Result<Self, Error> {
        let mut builder = Database::builder().page_size(4096).cache_bytes(1 << 20);
        if let Some(part) = left_out {
            builder = builder.leave_out(part);
        }
        if rng.random_ratio(1, 4) {
            builder = builder.lock_escalation(8);
        }
        let db = builder.open_in_memory()?;
        let keys = (0..KEYS).filter(|_| rng.random_bool(0.6));
        let committed: Rows = keys.map(|key| (key, vec![0; VALUE_BYTES])).collect();
        db.transact(|tx| {
            let rows = tx.table(&ROWS)?;
            committed.iter().try_for_each(|(key, value)| rows.insert(key, value))
        })?;
        let clients = (0..CLIENTS).map(|_| begin(&db)).collect::<Result<_, _>>()?;
        Ok(Self { db, committed, clients, next_value: 0, counts: Counts::default() })
    }

    fn value(&mut self) -> Vec<u8> {
        self.next_value += 1;
        let mut value = self.next_value.to_be_bytes().to_vec();
        value.resize(VALUE_BYTES, 0);
        value
    }

    /// Returns the rows of `range` that a client must see.
    fn view(&self, client: usize, range: Range<u32>) -> Rows {
        let mut rows: Rows = self.committed.range(range.clone()).map(|(&k, v)| (k, v.clone())).collect();
        for (&key, value) in self.clients[client].own.range(range) {
            match value {
                Some(value) => drop(rows.insert(key, value.clone())),
                None => drop(rows.remove(&key)),
            }
        }
        rows
    }

    fn get(&self, client: usize, key: u32) -> Option<Vec<u8>> {
        self.view(client, key..key + 1).remove(&key)
    }

    fn note_read(&mut self, client: usize, range: Range<u32>) {
        let rows = self.committed.range(range.clone()).map(|(&k, v)| (k, v.clone())).collect();
        self.clients[client].reads.push((range, rows));
    }

    /// Runs one step of a client; a refused step changes nothing.
    fn step(&mut self, client: usize, rng: &mut SmallRng) -> Result<(), Wrong> {
        let done = match rng.random_range(0..24) {
            0..3 => self.point_read(client, rng),
            3..7 => self.write(client, rng),
            7..10 => self.remove(client, rng),
            10..16 => self.scan(client, rng),
            16..18 => self.scan_past_locked(client, rng),
            18 => self.pop(client, rng),
            19..21 => self.savepoint(client),
            21 => self.end(client, false),
            _ => self.end(client, true),
        };
        match done {
            Ok(true) => self.counts.done += 1,
            Ok(false) => self.counts.refused += 1,
            Err(wrong) => return Err(wrong),
        }
        Ok(())
    }

    fn point_read(&mut self, client: usize, rng: &mut SmallRng) -> Result<bool, Wrong> {
        let key = rng.random_range(0..KEYS);
        let rows = self.clients[client].tx.table(&ROWS)?;
        let read = if rng.random_bool(0.5) { rows.get(&key) } else { rows.get_for_update(&key) };
        let Some(read) = granted(read)? else { return Ok(false) };
        expect(read, self.get(client, key))?;
        self.note_read(client, key..key + 1);
        Ok(true)
    }

    fn write(&mut self, client: usize, rng: &mut SmallRng) -> Result<bool, Wrong> {
        let (key, value) = (rng.random_range(0..KEYS), self.value());
        let before = self.get(client, key);
        let rows = self.clients[client].tx.table(&ROWS)?;
        if rng.random_bool(0.3) {
            let Some(is_new) = granted(rows.insert_if_absent(&key, &value[..]))? else { return Ok(false) };
            expect(is_new, before.is_none())?;
            if !is_new {
                self.note_read(client, key..key + 1);
                return Ok(true);
            }
        } else if granted(rows.insert(&key, &value[..]))?.is_none() {
            return Ok(false);
        }
        self.clients[client].own.insert(key, Some(value));
        Ok(true)
    }

    fn remove(&mut self, client: usize, rng: &mut SmallRng) -> Result<bool, Wrong> {
        let key = rng.random_range(0..KEYS);
        let removed = self.clients[client].tx.table(&ROWS)?.remove(&key);
        let Some(removed) = granted(removed)? else { return Ok(false) };
        expect(&removed, &self.get(client, key))?;
        self.note_read(client, key..key + 1);
        if removed.is_some() {
            self.clients[client].own.insert(key, None);
        }
        Ok(true)
    }

    fn scan(&mut self, client: usize, rng: &mut SmallRng) -> Result<bool, Wrong> {
        let from = rng.random_range(0..KEYS);
        let to = rng.random_range(from..KEYS) + 1;
        let (limit, backward) = (rng.random_range(1..2 * KEYS) as usize, rng.random_bool(0.4));
        let table = self.clients[client].tx.table(&ROWS)?;
        let mut rows =
            if rng.random_bool(0.8) { table.range(from..to) } else { table.range_for_update(from..to) };
        let mut seen = Rows::new();
        let mut last = None;
        while seen.len() < limit {
            let Some(row) = (if backward { rows.next_back() } else { rows.next() }) else { break };
            let Some((key, value)) = granted(row)? else { return Ok(false) };
            seen.insert(key, value);
            last = Some(key);
        }
        let read = match last.filter(|_| seen.len() == limit) {
            Some(last) if backward => last..to,
            Some(last) => from..last + 1,
            None => from..to,
        };
        expect(&seen, &self.view(client, read.clone()))?;
        self.note_read(client, read);
        Ok(true)
    }

    fn scan_past_locked(&mut self, client: usize, rng: &mut SmallRng) -> Result<bool, Wrong> {
        let from = rng.random_range(0..KEYS);
        let table = self.clients[client].tx.table(&ROWS)?.skip_locked();
        let rows = if rng.random_bool(0.5) { table.range(from..) } else { table.range_for_update(from..) };
        let seen: Vec<_> = rows.take(3).collect();
        for row in seen {
            let Some((key, value)) = granted(row)? else { return Ok(false) };
            expect(Some(value), self.get(client, key))?;
            self.note_read(client, key..key + 1);
        }
        Ok(true)
    }

    fn pop(&mut self, client: usize, rng: &mut SmallRng) -> Result<bool, Wrong> {
        let table = self.clients[client].tx.table(&ROWS)?;
        let skips = rng.random_bool(0.5);
        let popped = if skips { table.skip_locked().pop_first() } else { table.pop_first() };
        let Some(popped) = granted(popped)? else { return Ok(false) };
        let first = self.view(client, 0..KEYS).pop_first();
        if !skips {
            expect(&popped, &first)?;
            self.note_read(client, 0..popped.as_ref().map_or(KEYS, |row| row.0 + 1));
        }
        if let Some((key, value)) = popped {
            expect(Some(value), self.get(client, key))?;
            self.note_read(client, key..key + 1);
            self.clients[client].own.insert(key, None);
        }
        Ok(true)
    }

    fn savepoint(&mut self, client: usize) -> Result<bool, Wrong> {
        let client = &mut self.clients[client];
        match client.savepoint.take() {
            None => client.savepoint = Some((client.tx.savepoint()?, client.own.clone())),
            Some((savepoint, own)) => {
                if granted(client.tx.rollback_to(savepoint))?.is_none() {
                    return Ok(false);
                }
                client.own = own;
            }
        }
        Ok(true)
    }

    fn end(&mut self, client: usize, commits: bool) -> Result<bool, Wrong> {
        let new = begin(&self.db)?;
        let old = std::mem::replace(&mut self.clients[client], new);
        if !commits {
            old.tx.abort()?;
            return Ok(true);
        }
        old.tx.commit()?;
        for (key, value) in old.own {
            match value {
                Some(value) => drop(self.committed.insert(key, value)),
                None => drop(self.committed.remove(&key)),
            }
        }
        self.counts.commits += 1;
        for (range, rows) in self.clients.iter().flat_map(|client| &client.reads) {
            let now = self.committed.range(range.clone());
            if !now.eq(rows) {
                return Err(Wrong(format!("the commit changed rows in {range:?} that another had read")));
            }
        }
        Ok(true)
    }
}

/// Returns the result, or `None` if the call would have waited.
fn granted<T>(result: Result<T, Error>) -> Result<Option<T>, Wrong> {
    match result {
        Ok(result) => Ok(Some(result)),
        Err(Error::WouldBlock { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn run(seed: u64, left_out: Option<LockPart>) -> Result<Counts, Wrong> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut model = Model::new(&mut rng, left_out)?;
    for _ in 0..200 {
        let client = rng.random_range(0..CLIENTS);
        model.step(client, &mut rng)?;
    }
    for client in 0..CLIENTS {
        model.end(client, client % 2 == 0)?;
    }
    let rows = model.db.transact(|tx| tx.table(&ROWS)?.iter().collect::<Result<Rows, _>>())?;
    expect(&rows, &model.committed)?;
    Ok(model.counts)
}

#[test]
fn interleaved_transactions_agree_with_a_map() {
    let mut sum = Counts::default();
    let first = rand::random::<u64>();
    for seed in (0..150).map(|n| first.wrapping_add(n)) {
        match run(seed, None) {
            Ok(counts) => {
                sum.done += counts.done;
                sum.refused += counts.refused;
                sum.commits += counts.commits;
            }
            Err(Wrong(wrong)) => panic!("seed {seed}: {wrong}"),
        }
    }
    assert!(sum.done > 10_000 && sum.refused > 1_000 && sum.commits > 1_000, "{sum:?}");
}

#[test]
fn the_map_shows_a_lock_that_is_left_out() {
    for part in [
        LockPart::GetRecord,
        LockPart::ScanRecord,
        LockPart::ScanGap,
        LockPart::ScanNext,
        LockPart::WriteRecord,
        LockPart::InsertTest,
        LockPart::InheritedGap,
        LockPart::DeleteNext,
    ] {
        assert!((0..1_000).any(|seed| run(seed, Some(part)).is_err()), "{part:?} was never missed");
    }
}
