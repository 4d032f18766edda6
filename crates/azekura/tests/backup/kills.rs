//! Tests of backups under load and of restores, each killed at a random I/O. A backup is complete or refused.
//! A restored copy has no damage and equals the writers' model at its point.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use azekura::{Database, Error, Restore, TableDefinition};
use azekura_io::{FailKind, FaultFs};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{on, small};

const ROWS: TableDefinition<(u64, u64), [u8]> = TableDefinition::new("rows");
const COMMITS: TableDefinition<u64, u64> = TableDefinition::new("commits");
const WRITERS: u64 = 4;
/// Number of keys of a writer; its commits change them in turn.
const KEYS: u64 = 48;
/// Largest number of commits of each writer in a round.
const ROUND: u64 = 60;
/// Number of backups in a chain.
const CHAIN: usize = 3;

type Rows = BTreeMap<(u64, u64), Vec<u8>>;

/// Returns the value of the row that commit `n` of a writer writes; `None` if the commit removes the row.
fn value(n: u64) -> Option<Vec<u8>> {
    let len = if n.is_multiple_of(40) { 6_000 } else { 20 + n % 7 * 30 };
    (n % 5 != 3).then(|| vec![n as u8; len as usize])
}

fn write(db: &Database, writer: u64, n: u64) -> Result<(), Error> {
    db.transact(|tx| {
        let (rows, key) = (tx.table(&ROWS)?, (writer, n % KEYS));
        match value(n) {
            Some(value) => rows.insert(&key, &value[..])?,
            None => drop(rows.delete(&key)?),
        }
        tx.table(&COMMITS)?.insert(&writer, &(n + 1))
    })
}

/// Asserts that a copy equals the state after some number of commits of each writer, which is at least
/// `before`.
fn assert_is_a_state(copy: &Database, before: [u64; WRITERS as usize], round: usize) {
    let commits = copy.read(|s| s.table(&COMMITS)?.iter().collect::<Result<BTreeMap<_, _>, _>>());
    let commits = commits.expect("reads");
    let mut model = Rows::new();
    for (writer, before) in before.into_iter().enumerate() {
        let writer = writer as u64;
        let n = commits.get(&writer).copied().unwrap_or(0);
        assert!(n >= before, "round {round}: writer {writer} has {n} of {before} acknowledged commits");
        let last = n.saturating_sub(KEYS)..n;
        model.extend(last.filter_map(|n| Some(((writer, n % KEYS), value(n)?))));
    }
    let rows: Rows = copy.read(|s| s.table(&ROWS)?.iter().collect::<Result<_, _>>()).expect("reads");
    assert!(rows == model, "round {round}: the rows of the copy are not those of its commits");
    assert!(copy.check(&mut |_, _| {}).expect("checks").is_clean(), "round {round}");
}

/// Runs `call` with a kill at one of the I/Os that its last run made, or without a kill. Returns the disk
/// after the run, and `true` if the power was cut.
fn killed<T>(
    random: &mut StdRng,
    disk: &FaultFs,
    ios: &mut u64,
    call: impl FnOnce(&FaultFs) -> Result<T, Error>,
) -> (Result<T, Error>, FaultFs, bool) {
    let began = disk.io_count();
    let nth = random.random_range(1..=*ios + *ios / 4);
    let is_power = random.random_ratio(1, 2);
    if is_power {
        disk.cut_power_at(nth);
    } else {
        disk.fail_at(nth, if random.random_ratio(1, 2) { FailKind::Io } else { FailKind::NoSpace });
    }
    let done = call(disk);
    if done.is_ok() {
        *ios = disk.io_count() - began;
    }
    if is_power {
        return (done, disk.crash(random.random_range(0..1000)), true);
    }
    disk.heal();
    (done, disk.kill(), false)
}

#[test]
fn backups_under_load_and_their_restores_survive_kills() {
    let rounds: usize = std::env::var("AZEKURA_BACKUPS").map_or(36, |n| n.parse().expect("a number"));
    let db = small().background(true).open_in_memory().expect("opens");
    let allowed = AtomicU64::new(0);
    let acknowledged = [const { AtomicU64::new(0) }; WRITERS as usize];
    let counts = || acknowledged.each_ref().map(|n| n.load(SeqCst));
    let mut random = StdRng::seed_from_u64(31);
    let (mut refused_backups, mut refused_restores, mut whole) = (0, 0, 0);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, allowed, acknowledged) = (&db, &allowed, &acknowledged);
            scope.spawn(move || {
                let mut n = 0;
                loop {
                    match allowed.load(SeqCst) {
                        u64::MAX => break,
                        most if n >= most => thread::sleep(Duration::from_micros(200)),
                        _ => {
                            write(db, writer, n).expect("writes");
                            n += 1;
                            acknowledged[writer as usize].store(n, SeqCst);
                        }
                    }
                }
            });
        }
        // The writers also end if an assertion fails.
        let _end = End(&allowed);
        let (mut disk, mut chain) = (FaultFs::new(), Vec::<String>::new());
        let (mut backup_ios, mut restore_ios) = (12, 60);
        for round in 0..rounds {
            if chain.len() == CHAIN {
                (disk, chain) = (FaultFs::new(), Vec::new());
            }
            let least = round as u64 * ROUND + 1;
            allowed.store(least + ROUND, SeqCst);
            while counts().iter().any(|n| *n < least) {
                thread::yield_now();
            }
            let mut name = format!("b{round}");
            let backup = |disk: &FaultFs, name: &str| {
                let backup = db.backup().file_system(Arc::new(disk.clone()));
                match chain.last() {
                    Some(base) => backup.since(base).to_directory(name),
                    None => backup.to_directory(name),
                }
            };
            let mut before = counts();
            let (made, after, is_power) =
                killed(&mut random, &disk, &mut backup_ios, |disk| backup(disk, &name));
            disk = after;
            match Restore::new().file_system(Arc::new(disk.clone())).verify_directory(&name) {
                Ok(_) => {
                    assert!(made.is_ok() || is_power, "round {round}: a failed backup has its name");
                    whole += 1;
                }
                Err(Error::NotABackup { .. }) => {
                    assert!(made.is_err(), "round {round}: a complete backup is refused");
                    refused_backups += 1;
                    before = counts();
                    if !is_power {
                        // The failed call may be the sync of the directory. A later sync does not guarantee
                        // that the backup's name is durable.
                        name.push_str("-again");
                    }
                    backup(&disk, &name).expect("backs up after the killed one");
                }
                Err(other) => panic!("round {round}: {other:?}"),
            }
            let restore = |to: &FaultFs| {
                let restore = Restore::new().file_system(Arc::new(disk.clone())).builder(on(to)).verify(true);
                let restore = chain.iter().fold(restore, |restore, base| restore.base(base));
                restore.from_directory(&name, "copy")
            };
            let (made, to, _) = killed(&mut random, &FaultFs::new(), &mut restore_ios, restore);
            match on(&to).create(false).open("copy") {
                Ok(copy) => {
                    whole += 1;
                    assert_is_a_state(&copy, before, round);
                }
                Err(Error::RestoreUnfinished { .. } | Error::NotFound { .. }) => {
                    assert!(made.is_err(), "round {round}: a complete restore is refused");
                    refused_restores += 1;
                    restore(&to).expect("restores over the killed one");
                    assert_is_a_state(&on(&to).create(false).open("copy").expect("opens"), before, round);
                }
                Err(other) => panic!("round {round}: {other:?}"),
            }
            chain.push(name);
        }
    });
    let refused = (refused_backups, refused_restores);
    assert!(refused.0 * 4 > rounds && refused.1 * 4 > rounds && whole * 8 > rounds, "{refused:?} {whole}");
    println!("{rounds} backups: {} killed, {} restores killed", refused.0, refused.1);
}

/// Ends the writers when it is dropped.
struct End<'a>(&'a AtomicU64);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, SeqCst);
    }
}
