//! Compares the lock table with a plain one: makes the same requests to both, in one thread, and compares all
//! states.
//!
//! The plain table follows the rules at the head of `queue` with the modes' own definitions, without pools,
//! bits, notes or marks. Its deadlock check searches the whole waits-for graph.

use std::collections::BTreeMap;

use azekura_base::{TreeId, TxnId};
use proptest::prelude::*;

use crate::deadlock::find_cycle;
use crate::dump::AnyMode;
use crate::error::LockError;
use crate::id::KeyRef;
use crate::mode::{GapMode, KeyMode, RecordMode, TableMode};
use crate::owner::{GRANTED, VICTIM, WAITING};
use crate::queue::Demand;
use crate::table::{Attempt, LockOptions, LockTable};
use crate::txn::TxnLocks;
use crate::wait::Begun;

const OWNERS: usize = 6;
const TREE: TreeId = TreeId(3);

fn compatible(a: AnyMode, b: AnyMode) -> bool {
    match (a, b) {
        (AnyMode::Table(a), AnyMode::Table(b)) => a.is_compatible(b),
        (AnyMode::Key(a), AnyMode::Key(b)) => a.is_compatible(b),
        _ => unreachable!("families never meet"),
    }
}

fn supremum(a: AnyMode, b: AnyMode) -> AnyMode {
    match (a, b) {
        (AnyMode::Table(a), AnyMode::Table(b)) => AnyMode::Table(a.supremum(b)),
        (AnyMode::Key(a), AnyMode::Key(b)) => AnyMode::Key(a.supremum(b)),
        _ => unreachable!("families never meet"),
    }
}

#[derive(Clone, Debug)]
struct Waiter {
    owner: usize,
    want: AnyMode,
    converts: bool,
    instant: bool,
}

#[derive(Clone, Debug, Default)]
struct PlainLock {
    holders: BTreeMap<usize, AnyMode>,
    waiters: Vec<Waiter>,
}

impl PlainLock {
    fn blockers(&self, owner: usize, want: AnyMode, ahead: &[Waiter]) -> Vec<u32> {
        let mut blockers: Vec<u32> = Vec::new();
        blockers.extend(
            self.holders
                .iter()
                .filter(|&(&o, &m)| o != owner && !compatible(m, want))
                .map(|(&o, _)| o as u32),
        );
        if !self.holders.contains_key(&owner) {
            blockers.extend(ahead.iter().filter(|w| !compatible(w.want, want)).map(|w| w.owner as u32));
        }
        blockers
    }

    fn edges(&self, owner: usize) -> Option<Vec<u32>> {
        let at = self.waiters.iter().position(|w| w.owner == owner)?;
        Some(self.blockers(owner, self.waiters[at].want, &self.waiters[..at]))
    }

    /// Applies rules 1 and 2; returns whether the request was granted.
    fn request(&mut self, owner: usize, mode: AnyMode, instant: bool, wait: bool) -> bool {
        let held = self.holders.get(&owner).copied();
        let want = held.map_or(mode, |h| supremum(h, mode));
        if held == Some(want) {
            return true;
        }
        if self.blockers(owner, want, &self.waiters).is_empty() {
            if !instant {
                self.holders.insert(owner, want);
            }
            return true;
        }
        if wait {
            let converts = held.is_some();
            let at = if converts {
                self.waiters.iter().take_while(|w| w.converts).count()
            } else {
                self.waiters.len()
            };
            self.waiters.insert(at, Waiter { owner, want, converts, instant });
        }
        false
    }

    /// Locks the key by the range of `owner`, once no other request conflicts (KEYRANGE-2).
    fn lock_by_range(&mut self, owner: usize, mode: AnyMode) {
        let held = self.holders.get(&owner).copied();
        let want = held.map_or(mode, |held| supremum(held, mode));
        let is_compatible = |other: usize, others: AnyMode| other == owner || compatible(others, mode);
        let is_free = self.holders.iter().all(|(&other, &others)| is_compatible(other, others))
            && self.waiters.iter().all(|w| is_compatible(w.owner, w.want));
        let is_newcomer = held.is_none() && self.waiters.iter().any(|w| w.owner == owner);
        if is_free && !is_newcomer {
            self.holders.insert(owner, want);
        }
    }

    /// Applies rule 3; returns the owners of granted requests.
    fn serve(&mut self) -> Vec<usize> {
        let mut granted = Vec::new();
        let mut at = 0;
        while at < self.waiters.len() {
            let w = self.waiters[at].clone();
            if self.blockers(w.owner, w.want, &self.waiters[..at]).is_empty() {
                self.waiters.remove(at);
                if !w.instant {
                    self.holders.insert(w.owner, w.want);
                }
                granted.push(w.owner);
            } else {
                at += 1;
            }
        }
        granted
    }
}

#[derive(Clone, Debug)]
enum Step {
    Table {
        owner: usize,
        mode: TableMode,
        wait: bool,
    },
    Key {
        owner: usize,
        key: u8,
        mode: KeyMode,
        instant: bool,
        wait: bool,
    },
    /// A range lock; `there` has a bit for each key that exists.
    Range {
        owner: usize,
        first: u8,
        keys: u8,
        there: u8,
        mode: KeyMode,
    },
    Release {
        owner: usize,
    },
    GiveUp {
        owner: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let owner = 0..OWNERS;
    let wait = prop::bool::weighted(0.8);
    let table_mode = prop::sample::select(TableMode::ALL.to_vec());
    let key_mode = prop::sample::select(KeyMode::all().filter(|&m| m != KeyMode::NONE).collect::<Vec<_>>());
    let scan_modes = vec![KeyMode::SCAN, KeyMode::READ_GAP];
    prop_oneof![
        4 => (owner.clone(), table_mode, wait)
            .prop_map(|(owner, mode, wait)| Step::Table { owner, mode, wait }),
        8 => (owner.clone(), 0u8..3, key_mode, prop::bool::weighted(0.2), wait)
            .prop_map(|(owner, key, mode, instant, wait)| Step::Key { owner, key, mode, instant, wait }),
        3 => (owner.clone(), (0u8..3, 1u8..4, 0u8..8), prop::sample::select(scan_modes))
            .prop_map(|(owner, (first, keys, there), mode)| Step::Range { owner, first, keys, there, mode }),
        3 => owner.clone().prop_map(|owner| Step::Release { owner }),
        1 => owner.prop_map(|owner| Step::GiveUp { owner }),
    ]
}

/// The number of a locked object: 0 is the table, the others are keys.
type Thing = usize;

struct Pair {
    real: LockTable,
    locks: Vec<TxnLocks>,
    /// The request for which each waiting owner waits.
    pending: Vec<Option<(Demand, u32, Thing, AnyMode)>>,
    plain: Vec<PlainLock>,
    /// The modes of ranges on keys that did not exist, by owner and object.
    absent: BTreeMap<(usize, Thing), KeyMode>,
    next_txn: u64,
}

impl Pair {
    fn new() -> Self {
        let real = LockTable::new(LockOptions {
            stripes: 2,
            dependency_slots: 4,
            seed: 1,
            ..LockOptions::default()
        });
        let locks = (0..OWNERS).map(|o| real.begin(TxnId(o as u64 + 1))).collect();
        let plain = vec![PlainLock::default(); 4];
        let (pending, absent, next_txn) = (vec![None; OWNERS], BTreeMap::new(), OWNERS as u64 + 1);
        Self { real, locks, pending, plain, absent, next_txn }
    }

    fn owner_of(&self, txn: TxnId) -> usize {
        self.locks.iter().position(|l| l.txn() == txn).expect("a living transaction")
    }

    fn edges(&self, owner: u32) -> Vec<u32> {
        self.plain.iter().find_map(|lock| lock.edges(owner as usize)).unwrap_or_default()
    }

    fn lock_absent(&mut self) {
        for (&(owner, thing), &mode) in &self.absent {
            self.plain[thing].lock_by_range(owner, AnyMode::Key(mode));
        }
    }

    fn request(&mut self, owner: usize, thing: Thing, mode: AnyMode, instant: bool, wait: bool) {
        if self.pending[owner].is_some() {
            return;
        }
        let attempt = match mode {
            AnyMode::Table(mode) => self.real.attempt_table(&mut self.locks[owner], TREE, mode),
            AnyMode::Key(mode) => {
                let key = [thing as u8];
                self.real.attempt_key(&mut self.locks[owner], TREE, KeyRef::Key(&key), mode, instant)
            }
        };
        let covered = match (self.plain[0].holders.get(&owner), mode) {
            (Some(AnyMode::Table(table)), AnyMode::Key(key)) => table.covers_key(key),
            _ => false,
        };
        let plain = covered || self.plain[thing].request(owner, mode, instant, wait);
        match attempt {
            Attempt::Granted(_) => assert!(plain, "granted, but the plain table refuses"),
            Attempt::Refused(demand) => {
                assert!(!plain, "refused, but the plain table grants");
                if wait {
                    self.begin_wait(owner, demand, thing, mode);
                } else {
                    self.abandon(owner, mode);
                }
            }
        }
    }

    /// Locks a range in both tables. The range is locked if the plain table could grant each of its existing
    /// keys.
    fn range(&mut self, owner: usize, (first, keys, there): (u8, u8, u8), mode: KeyMode) {
        if self.pending[owner].is_some() {
            return;
        }
        let things = || usize::from(first) + 1..(usize::from(first + keys) + 1).min(4);
        let existing = || things().filter(|thing| there >> (thing - 1) & 1 == 1);
        let bytes: Vec<[u8; 1]> = existing().map(|thing| [thing as u8]).collect();
        let (from, to) = ([first + 1], [things().end as u8]);
        let range = (&from[..], (things().end < 4).then_some(&to[..]));
        let keys = bytes.iter().map(|key| &key[..]);
        let ranges = self.real.stats().ranges;
        let locked = self.real.try_lock_range(&mut self.locks[owner], TREE, range, keys, mode);
        let is_covered = match self.plain[0].holders.get(&owner) {
            Some(AnyMode::Table(table)) => table.covers_key(mode),
            _ => false,
        };
        if is_covered {
            assert!(locked.is_ok(), "the table is locked");
            return;
        }
        for (i, thing) in existing().enumerate() {
            let is_refused = locked == Err(i);
            // If a range is refused, keys before the blocked one may be locked by separate requests.
            let is_held = self.locks[owner].mode_bits(self.real.key_id(TREE, KeyRef::Key(&bytes[i])));
            let is_held =
                crate::mode_bits::key_mode(is_held).supremum(mode) == crate::mode_bits::key_mode(is_held);
            if locked.is_ok() || is_held || is_refused {
                let plain = self.plain[thing].request(owner, AnyMode::Key(mode), false, false);
                assert_eq!(plain, !is_refused, "key {thing} of {locked:?}");
            }
        }
        if locked.is_ok() && self.real.stats().ranges > ranges {
            for thing in things().filter(|&thing| existing().all(|there| there != thing)) {
                self.absent.insert((owner, thing), mode);
            }
        }
    }

    fn abandon(&self, owner: usize, mode: AnyMode) {
        if let AnyMode::Table(mode) = mode {
            self.real.abandon_strong(&self.locks[owner], TREE, mode);
        }
    }

    /// Waits in both tables. Then breaks the plain table's cycles as the real table did, and checks that none
    /// is left.
    fn begin_wait(&mut self, owner: usize, demand: Demand, thing: Thing, mode: AnyMode) {
        let deadlocks = self.real.stats().deadlocks;
        let key = [thing as u8];
        let key = if thing == 0 { KeyRef::End } else { KeyRef::Key(&key) };
        let Begun::Waiting(request, _) = self.real.begin_wait(&demand, (TREE, key), false) else {
            panic!("nothing changed since the refusal");
        };
        self.pending[owner] = Some((demand, request, thing, mode));
        let sentences = std::mem::take(&mut self.real.waits.lock().sentences);
        assert_eq!(self.real.stats().deadlocks - deadlocks, sentences.len() as u64);
        for (place, sentence) in sentences {
            let LockError::Deadlock { victim, cycle } = sentence else { panic!("{sentence}") };
            assert_eq!(cycle.iter().max(), Some(&victim), "the youngest gives way");
            assert_eq!(self.real.owners.get(place).state(), VICTIM);
            let cycle: Vec<u32> = cycle.into_iter().map(|t| self.owner_of(t) as u32).collect();
            for (i, &member) in cycle.iter().enumerate() {
                let next = cycle[(i + 1) % cycle.len()];
                assert!(self.edges(member).contains(&next), "{member} does not wait for {next} in {cycle:?}");
            }
            self.cancel_plain(self.owner_of(victim));
        }
        assert_eq!(find_cycle(owner as u32, |o| self.edges(o)), None, "a cycle was missed");
    }

    /// Ends a wait without a grant in the plain table.
    fn cancel_plain(&mut self, owner: usize) {
        let (.., thing, mode) = self.pending[owner].take().expect("it waited");
        self.plain[thing].waiters.retain(|w| w.owner != owner);
        self.abandon(owner, mode);
        let granted = self.plain[thing].serve();
        self.collect(granted);
    }

    /// Checks that both tables granted the same waits.
    fn collect(&mut self, granted: Vec<usize>) {
        for owner in granted {
            assert_eq!(
                self.real.owners.get(self.locks[owner].owner).state(),
                GRANTED,
                "not granted to {owner}"
            );
            let (demand, request, ..) = self.pending[owner].take().expect("it waited");
            self.real.granted(&mut self.locks[owner], &demand, request);
        }
    }

    fn release(&mut self, owner: usize) {
        if self.pending[owner].is_some() {
            return;
        }
        let new = self.real.begin(TxnId(self.next_txn));
        self.next_txn += 1;
        let old = std::mem::replace(&mut self.locks[owner], new);
        self.real.release_all(old, None);
        self.absent.retain(|&(of, _), _| of != owner);
        for thing in 0..self.plain.len() {
            if self.plain[thing].holders.remove(&owner).is_some() {
                let granted = self.plain[thing].serve();
                self.collect(granted);
            }
        }
    }

    fn give_up(&mut self, owner: usize) {
        if let Some((demand, request, thing, _)) = self.pending[owner] {
            let mut expected: Vec<TxnId> = self.plain[thing]
                .edges(owner)
                .expect("it waits")
                .into_iter()
                .map(|o| self.locks[o as usize].txn())
                .collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(self.real.give_up(&demand, request), Some(expected), "who is in the way");
            self.cancel_plain(owner);
        }
    }

    /// Checks that holders and queues agree, and that QUEUE-1 and QUEUE-2 hold.
    fn compare(&self) {
        for owner in 0..OWNERS {
            let waits = self.real.owners.get(self.locks[owner].owner).state() == WAITING;
            assert_eq!(waits, self.pending[owner].is_some(), "owner {owner}");
        }
        let dump = self.real.dump();
        for (thing, plain) in self.plain.iter().enumerate() {
            let key = [thing as u8];
            let name = match thing {
                0 => crate::id::LockId::table(TREE).name(),
                _ => self.real.key_id(TREE, KeyRef::Key(&key)).name(),
            };
            let real = dump.iter().find(|d| d.name == name);
            let mut held: BTreeMap<usize, AnyMode> =
                real.iter().flat_map(|d| &d.holders).map(|&(t, m)| (self.owner_of(t), m)).collect();
            for owner in (0..OWNERS).filter(|_| thing > 0) {
                let place = self.real.owners.get(self.locks[owner].owner);
                let mode_bits = place.ranges.lock().find(TREE, &key);
                let mode = AnyMode::Key(crate::mode_bits::key_mode(mode_bits));
                let is_absent = self.absent.contains_key(&(owner, thing));
                let is_locked = plain.holders.get(&owner).is_some_and(|&held| supremum(held, mode) == held);
                if mode_bits != 0 && (!is_absent || is_locked) {
                    held.entry(owner).and_modify(|held| *held = supremum(*held, mode)).or_insert(mode);
                }
                // A later lock of a key in an own range may include the range's mode.
                if let Some(&plain) = plain.holders.get(&owner).filter(|_| is_absent)
                    && held.get(&owner) == Some(&supremum(plain, mode))
                {
                    held.insert(owner, plain);
                }
            }
            let holders: Vec<_> = held.into_iter().collect();
            let waiters: Vec<_> =
                real.iter().flat_map(|d| &d.waiters).map(|&(t, m)| (self.owner_of(t), m)).collect();
            assert_eq!(holders, plain.holders.iter().map(|(&o, &m)| (o, m)).collect::<Vec<_>>());
            assert_eq!(waiters, plain.waiters.iter().map(|w| (w.owner, w.want)).collect::<Vec<_>>());
            for (i, a) in holders.iter().enumerate() {
                assert!(holders[..i].iter().all(|b| compatible(a.1, b.1)), "QUEUE-1 {holders:?}");
            }
            for w in &plain.waiters {
                assert!(!plain.edges(w.owner).expect("waits").is_empty(), "QUEUE-2 {w:?}");
            }
        }
    }
}

const fn mode(gap: GapMode, record: RecordMode) -> AnyMode {
    AnyMode::Key(KeyMode { gap, record })
}

#[test]
fn a_waiter_that_a_conversion_passes_waits_for_it() {
    let (mut pair, k, j) = (Pair::new(), 1, 2);
    let (converts, reads, scans, inserts) = (0, 1, 2, 3);
    pair.request(converts, k, mode(GapMode::None, RecordMode::S), false, true);
    pair.request(reads, k, mode(GapMode::None, RecordMode::S), false, true);
    pair.request(scans, k, mode(GapMode::S, RecordMode::None), false, true);
    pair.request(inserts, j, mode(GapMode::None, RecordMode::X), false, true);
    // The inserter waits only for the scan, and the reader waits for the inserter.
    pair.request(inserts, k, mode(GapMode::I, RecordMode::None), false, true);
    pair.request(reads, j, mode(GapMode::None, RecordMode::S), false, true);
    pair.compare();
    // The conversion waits for the reader, and now the inserter waits for the conversion.
    pair.request(converts, k, mode(GapMode::S, RecordMode::X), false, true);
    pair.compare();
    assert_eq!(pair.real.stats().deadlocks, 1);
}

#[test]
fn a_conversion_that_another_one_passes_waits_for_it() {
    let (mut pair, k, j) = (Pair::new(), 1, 2);
    let (passes, stays, reads, scans) = (0, 1, 2, 3);
    pair.request(passes, k, mode(GapMode::None, RecordMode::S), false, true);
    pair.request(reads, k, mode(GapMode::None, RecordMode::S), false, true);
    pair.request(stays, k, mode(GapMode::S, RecordMode::None), false, true);
    pair.request(scans, k, mode(GapMode::S, RecordMode::None), false, true);
    pair.request(stays, j, mode(GapMode::None, RecordMode::X), false, true);
    // Two conversions wait for different holders, not for each other.
    pair.request(passes, k, mode(GapMode::None, RecordMode::X), false, true);
    pair.request(stays, k, mode(GapMode::X, RecordMode::S), false, true);
    pair.compare();
    // One conversion is granted. Now the two wait for each other.
    pair.release(reads);
    pair.request(passes, j, mode(GapMode::None, RecordMode::S), false, true);
    pair.compare();
    assert_eq!(pair.real.stats().deadlocks, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_a_plain_lock_table(steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new();
        for step in steps {
            match step {
                Step::Table { owner, mode, wait } => {
                    pair.request(owner, 0, AnyMode::Table(mode), false, wait);
                }
                Step::Key { owner, key, mode, instant, wait } => {
                    pair.request(owner, usize::from(key) + 1, AnyMode::Key(mode), instant, wait);
                }
                Step::Range { owner, first, keys, there, mode } => {
                    pair.range(owner, (first, keys, there), mode);
                }
                Step::Release { owner } => pair.release(owner),
                Step::GiveUp { owner } => pair.give_up(owner),
            }
            pair.lock_absent();
            pair.compare();
        }
        for round in 0..OWNERS * 2 {
            pair.give_up(round % OWNERS);
            pair.release(round % OWNERS);
        }
        pair.compare();
        let stats = pair.real.stats();
        prop_assert_eq!(stats.locks, 0);
    }
}
