//! Cursors of `SCAN`: 63-bit numbers for the position of a scan, valid also after a restart of the server.
//!
//! A cursor is a *position* among the keys: the scan continues with the first key at or above it. A cursor
//! encodes the number of a *prefix* and the next [`TAIL_BYTES`] bytes. So the keys that share a prefix have
//! positions between them if they differ in those bytes. Prefix 0 is empty. The other prefixes are rows of
//! two tables: a scan adds a row when it needs one, and no row is ever changed or removed.
//! `docs/decisions/021-scan-cursor.md` has the reasons and the alternatives.
//!
//! - **CURSOR-1** Every key that was present during the whole scan is returned: a cursor lies above the last
//!   key that was returned or visited, and not above the next key.
//! - **CURSOR-2** A cursor always means the same position: the row of its prefix was durable before the
//!   cursor was returned to a client.
//! - **CURSOR-3** The prefixes are read and added in separate transactions, which use no other table. So
//!   these transactions are in no deadlock, and the rollback of an interactive transaction removes no prefix.
//! - **CURSOR-4** The number of a prefix determines the node that has assigned it. Any node of a cluster
//!   accepts the cursor, and asks that node for the prefix at each use: a copy could be wrong after the store
//!   of that node was lost.

use std::collections::HashMap;
use std::sync::OnceLock;

use azekura::{Database, Durability, Error, TableDefinition, Transaction};
use parking_lot::Mutex;

use crate::cluster::OtherPrefixes;
use crate::error::Failure;

/// Table from a prefix to its number.
const NUMBERS: TableDefinition<[u8], u64> = TableDefinition::new("redis.scan.numbers");
/// Table from a number to its prefix.
const PREFIXES: TableDefinition<u64, [u8]> = TableDefinition::new("redis.scan.prefixes");
/// Bytes of a position after its prefix.
const TAIL_BYTES: usize = 4;
/// Number of symbols of a tail position: the byte values, and the end of the key, which sorts before every
/// byte.
const SYMBOLS: u64 = u8::MAX as u64 + 2;
/// Number of positions of one prefix: below 2^33.
const TAILS: u64 = SYMBOLS.pow(TAIL_BYTES as u32);
/// Bound of prefix numbers, so that cursors are below 2^63.
const MAX_NUMBER: u64 = 1 << 30;
/// First number of the nodes other than node 0. A server outside a cluster uses the numbers of node 0, which
/// are smaller. So its cursors are below 2^53, and clients that convert a cursor to a floating-point number
/// (node-redis 4) preserve it.
const FIRST_OF_OTHERS: u64 = 1 << 20;
/// The other nodes have one number in turn, so that small numbers are used first: a cursor with one of the
/// first 900 prefixes of any node is below 2^53 too.
const NODES: u64 = 1 << 10;
/// Maximum of cached prefixes.
const KNOWN: usize = 4096;
/// Keys that a step visits beyond the requested ones before it adds a prefix: each prefix serves at least
/// this number of keys.
pub(crate) const WINDOW: usize = 512;

/// The cursors of a server; see the module's head.
#[derive(Debug)]
pub(crate) struct Cursors {
    db: Database,
    /// Number of the node; it determines the prefix numbers that this server assigns.
    node: u64,
    known: Mutex<Known>,
    /// The prefixes of the other nodes; only in a cluster.
    others: OnceLock<OtherPrefixes>,
}

/// Cache of the rows of both tables.
#[derive(Debug, Default)]
struct Known {
    numbers: HashMap<Vec<u8>, u64>,
    prefixes: HashMap<u64, Vec<u8>>,
}

impl Known {
    fn add(&mut self, prefix: &[u8], number: u64) {
        if self.numbers.len() >= KNOWN {
            *self = Self::default();
        }
        self.numbers.insert(prefix.to_vec(), number);
        self.prefixes.insert(number, prefix.to_vec());
    }
}

impl Cursors {
    /// Creates the cursors of a server that is node `node` of a cluster.
    pub(crate) fn new(db: Database, node: u16) -> Self {
        Self { db, node: node.into(), known: Mutex::default(), others: OnceLock::new() }
    }

    /// Sets the access to the prefixes of the other nodes, before the first request.
    pub(crate) fn join(&self, others: OtherPrefixes) {
        // The cell is empty: only the start of the node sets it.
        let _ = self.others.set(others);
    }

    /// Returns the first key that a scan with this cursor may return; `None` if no node has sent such a
    /// cursor. May block until another node has answered (CURSOR-4).
    pub(crate) fn position(&self, cursor: u64) -> Result<Option<Vec<u8>>, Failure> {
        let (number, tail) = (cursor / TAILS, cursor % TAILS);
        let Some(mut key) = self.prefix(number)? else { return Ok(None) };
        let mut is_over = false;
        for place in (0..TAIL_BYTES as u32).rev() {
            let symbol = tail / SYMBOLS.pow(place) % SYMBOLS;
            match u8::try_from(symbol.wrapping_sub(1)) {
                Ok(_) if is_over => return Ok(None),
                Ok(byte) => key.push(byte),
                Err(_) => is_over = true,
            }
        }
        Ok(Some(key))
    }

    /// Returns a cursor above `last` and not above `next`, if the existing prefixes allow one.
    pub(crate) fn between(&self, last: &[u8], next: &[u8]) -> Result<Option<u64>, Error> {
        let shared = shared_bytes(last, next);
        // The first different byte must be in the tail.
        for prefix_bytes in (shared.saturating_sub(TAIL_BYTES - 1)..=shared).rev() {
            if let Some(number) = self.number(&next[..prefix_bytes])? {
                return Ok(Some(cursor(number, &next[prefix_bytes..])));
            }
        }
        Ok(None)
    }

    /// Finds the first adjacent pair of keys with a cursor between them. Returns the number of keys before
    /// the cursor, and the cursor. If there is no such pair, adds a prefix for the pair with the shortest
    /// common prefix. `keys` has at least two keys, in order.
    pub(crate) fn cut(&self, keys: &[Vec<u8>]) -> Result<(usize, u64), Error> {
        let mut shortest: Option<(usize, usize)> = None;
        for (at, pair) in keys.windows(2).enumerate() {
            let shared = shared_bytes(&pair[0], &pair[1]);
            // A pair with a longer common prefix needs its own prefix, which exists less often.
            if shortest.is_none_or(|(bytes, _)| shared < bytes) {
                shortest = Some((shared, at));
                if let Some(cursor) = self.between(&pair[0], &pair[1])? {
                    return Ok((at + 1, cursor));
                }
            }
        }
        let (shared, at) = shortest.unwrap_or_default();
        let next = keys.get(at + 1).map_or(&[][..], Vec::as_slice);
        let number = self.add(&next[..shared])?;
        Ok((at + 1, cursor(number, &next[shared..])))
    }

    fn prefix(&self, number: u64) -> Result<Option<Vec<u8>>, Failure> {
        if number == 0 {
            return Ok(Some(Vec::new()));
        }
        match (self.others.get(), node_of(number)) {
            (Some(_), None) => Ok(None),
            (Some(others), Some(node)) if u64::from(node) != self.node => Ok(others.prefix(node, number)?),
            _ => Ok(self.own_prefix(number)?),
        }
    }

    /// Returns the prefix that this node has assigned the number.
    pub(crate) fn own_prefix(&self, number: u64) -> Result<Option<Vec<u8>>, Error> {
        if let Some(prefix) = self.known.lock().prefixes.get(&number) {
            return Ok(Some(prefix.clone()));
        }
        let found = self.db.transact(|tx| tx.table(&PREFIXES)?.get(&number))?;
        found.iter().for_each(|prefix| self.known.lock().add(prefix, number));
        Ok(found)
    }

    fn number(&self, prefix: &[u8]) -> Result<Option<u64>, Error> {
        if prefix.is_empty() {
            return Ok(Some(0));
        }
        if let Some(number) = self.known.lock().numbers.get(prefix) {
            return Ok(Some(*number));
        }
        let found = self.db.transact(|tx| tx.table(&NUMBERS)?.get(prefix))?;
        found.iter().for_each(|number| self.known.lock().add(prefix, *number));
        Ok(found)
    }

    /// Adds a prefix, unless another thread has added it. Blocks until the prefix is durable (CURSOR-2).
    fn add(&self, prefix: &[u8]) -> Result<u64, Error> {
        let mut tx = self.db.begin()?;
        let number = loop {
            tx.set_durability(Durability::Immediate);
            let done = self.add_row(&tx, prefix).and_then(|number| tx.commit().map(|()| number));
            match done {
                Err(error) if error.is_retryable() => tx = self.db.begin()?,
                done => break done?,
            }
        };
        self.known.lock().add(prefix, number);
        Ok(number)
    }

    fn add_row(&self, tx: &Transaction, prefix: &[u8]) -> Result<u64, Error> {
        let numbers = tx.table(&NUMBERS)?;
        if let Some(number) = numbers.get_for_update(prefix)? {
            return Ok(number);
        }
        let prefixes = tx.table(&PREFIXES)?;
        let (first, end, step) = match self.node {
            0 => (1, FIRST_OF_OTHERS, 1),
            node => (FIRST_OF_OTHERS + node, MAX_NUMBER, NODES),
        };
        let mut number = first;
        for row in prefixes.range(first..end).rev() {
            let (newest, _) = row?;
            if newest % step == first % step {
                number = newest + step;
                break;
            }
        }
        if number >= end || self.node >= NODES {
            return Err(Error::Invalid(format!(
                "SCAN has used all numbers of prefixes of node {}",
                self.node
            )));
        }
        numbers.insert(prefix, &number)?;
        prefixes.insert(&number, prefix)?;
        Ok(number)
    }
}

/// Returns the node that assigns a number; `None` if no node does.
fn node_of(number: u64) -> Option<u16> {
    match number {
        0..FIRST_OF_OTHERS => Some(0),
        FIRST_OF_OTHERS..MAX_NUMBER => u16::try_from(number % NODES).ok().filter(|&node| node > 0),
        _ => None,
    }
}

fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the position of `rest` after a prefix: not above any key that continues the prefix with `rest`.
fn cursor(number: u64, rest: &[u8]) -> u64 {
    let symbols = (0..TAIL_BYTES).map(|at| rest.get(at).map_or(0, |byte| u64::from(*byte) + 1));
    number * TAILS + symbols.fold(0, |tail, symbol| tail * SYMBOLS + symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursors() -> Cursors {
        Cursors::new(Database::in_memory().expect("memory"), 0)
    }

    #[test]
    fn a_position_lies_above_one_key_and_not_above_the_next() {
        let words = [
            "",
            "\0",
            "\0\0",
            "a",
            "a\0",
            "ab",
            "abcd",
            "abcd\0",
            "abcde",
            "abcdefgh",
            "abcdefghi",
            "b",
            "z",
        ];
        let mut keys: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        keys.extend((0..300).map(|i| format!("abcdefghi:{i:05}").into_bytes()));
        keys.push(vec![0xff; 9]);
        keys.push(vec![0xff; 2040]);
        keys.sort();
        let cursors = cursors();
        for pair in keys.windows(2) {
            let (count, cursor) = cursors.cut(pair).expect("the store works");
            let position = cursors.position(cursor).expect("the store works").expect("a cursor of its own");
            assert!(count == 1 && pair[0] < position && position <= pair[1], "{pair:?} {position:?}");
            assert!(cursor > 0 && cursor < 1 << 63);
            // The position is the same with an empty cache.
            let other = Cursors::new(cursors.db.clone(), 1);
            assert_eq!(other.position(cursor).expect("the store works"), Some(position));
        }
    }

    #[test]
    fn cursors_are_exact_as_floating_point_numbers_and_differ_between_nodes() {
        let mut found = std::collections::HashSet::new();
        for node in [0, 1, 2, 3, 1022, 1023] {
            let cursors = Cursors::new(Database::in_memory().expect("memory"), node);
            for prefix in 0..900 {
                let number = cursors.add(format!("prefix {prefix}").as_bytes()).expect("the store works");
                assert!(found.insert(number), "{number} of node {node}");
                assert_eq!(node_of(number), Some(node));
                assert!(cursor(number, &[0xff; TAIL_BYTES]) < 1 << f64::MANTISSA_DIGITS);
            }
        }
        assert!(Cursors::new(Database::in_memory().expect("memory"), 1024).add(b"x").is_err());
        assert!(cursor(FIRST_OF_OTHERS - 1, &[0xff; TAIL_BYTES]) < 1 << f64::MANTISSA_DIGITS);
    }

    #[test]
    fn numbers_that_are_no_cursors_are_refused() {
        let cursors = cursors();
        assert_eq!([FIRST_OF_OTHERS, MAX_NUMBER, u64::MAX].map(node_of), [None; 3]);
        for wrong in [u64::MAX, TAILS, TAILS * MAX_NUMBER, 1 << 62, 7, SYMBOLS + 1] {
            assert_eq!(cursors.position(wrong).expect("the store works"), None, "{wrong}");
        }
        assert_eq!(cursors.position(0).expect("the store works"), Some(Vec::new()));
    }

    #[test]
    fn keys_in_a_row_need_few_prefixes() {
        let cursors = cursors();
        let keys: Vec<_> = (0..100_000).map(|i| format!("user:session:{i:08}").into_bytes()).collect();
        let (mut at, mut steps) = (0, 0);
        while at + 11 < keys.len() {
            // As in a step of a scan: 10 keys, then the window.
            let rest = &keys[at + 9..(at + 10 + WINDOW).min(keys.len())];
            at += 9 + cursors.cut(rest).expect("the store works").0;
            steps += 1;
        }
        let prefixes = cursors.known.lock().numbers.len();
        assert!(prefixes < 30 && steps > 9_000, "{prefixes} prefixes, {steps} steps");
    }
}
