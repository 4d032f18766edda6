//! Threads that transfer money between the same accounts at the same time, and a total that never changes.
//!
//! Each transfer is a serializable transaction: two reads, two writes, all or nothing. Deadlocks of transfers
//! are detected at once; one transfer is rolled back, and `transact` runs it again.
//!
//! Run: `cargo run --release -p azekura --example bank_transfer`

use azekura::{Database, Error, TableDefinition};

const ACCOUNTS: TableDefinition<u32, i64> = TableDefinition::new("accounts");
const PEOPLE: u32 = 100;
const START: i64 = 1_000;

fn main() -> Result<(), Error> {
    let dir = std::env::temp_dir().join(format!("azekura-bank-{}", std::process::id()));
    let db = Database::open(&dir)?;
    db.transact(|tx| {
        let accounts = tx.table(&ACCOUNTS)?;
        (0..PEOPLE).try_for_each(|account| accounts.insert(&account, &START))
    })?;

    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let db = db.clone();
            scope.spawn(move || {
                for i in 0..250u32 {
                    let from = (thread * 31 + i * 7) % PEOPLE;
                    let to = (thread * 17 + i * 13 + 1) % PEOPLE;
                    transfer(&db, from, to, i64::from(i % 40)).expect("a transfer ends in commit");
                }
            });
        }
    });

    // A snapshot shows the whole table at one moment, without locks.
    let total: i64 =
        db.read(|snapshot| snapshot.table(&ACCOUNTS)?.iter().try_fold(0, |sum, row| Ok(sum + row?.1)))?;
    println!("1,000 transfers by 4 threads; {PEOPLE} accounts hold {total} in total");
    assert_eq!(total, i64::from(PEOPLE) * START);
    println!("deadlocks ended by a retry: {}", db.stats().locks.deadlocks);
    db.close()?;
    std::fs::remove_dir_all(&dir).map_err(Error::other)
}

/// Moves `amount`, or returns `false` if the balance of `from` is too low.
fn transfer(db: &Database, from: u32, to: u32, amount: i64) -> Result<bool, Error> {
    db.transact(|tx| {
        let accounts = tx.table(&ACCOUNTS)?;
        if accounts.get(&from)?.unwrap_or(0) < amount {
            return Ok(false);
        }
        accounts.update(&from, |old| old.map(|have| have - amount))?;
        accounts.update(&to, |old| Some(old.unwrap_or(0) + amount))?;
        Ok(true)
    })
}
