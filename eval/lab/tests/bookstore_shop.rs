//! The bookstore's pages on the real store leave consistent rows, with every mix, all rules and each kind of
//! latch.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura::{Database, TableDefinition};
use azekura_lab::lab::bottleneck::fill::fill;
use azekura_lab::lab::bottleneck::front::search::Latch;
use azekura_lab::lab::bottleneck::front::{Front, Key, Probes, TableId, Way};
use azekura_lab::lab::bottleneck::shop::{Sequences, encode, popular, serve};
use azekura_workload::bookstore::row::{CardPayment, Item, Order};
use azekura_workload::bookstore::{Conformance, Data, Interaction, Mix, Scale, User};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const SCALE: Scale = Scale::new(100, 1);

fn shop() -> (Database, Sequences) {
    let db = Database::builder().cache_bytes(64 << 20).open_in_memory().expect("a store");
    let sequences = fill(&db, &Data::new(SCALE, 3), &mut |_| {}).expect("the rows are stored");
    (db, sequences)
}

fn rows(db: &Database, table: TableId) -> Vec<(Vec<u8>, Vec<u8>)> {
    let table = TableDefinition::<[u8], [u8]>::new(table.name());
    db.transact(|tx| tx.table(&table)?.iter().collect()).expect("the table is read")
}

/// Runs some threads, each with its own user that requests `pages` pages. Returns the numbers of successful
/// purchases and of errors.
fn visit(front: &Front, sequences: &Sequences, mix: Mix, rules: Conformance, pages: u64) -> (u64, u64) {
    let (purchases, errors) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let (purchases, errors) = (&purchases, &errors);
            scope.spawn(move || {
                let mut session = front.session();
                let mut user = User::new(SCALE, mix, rules, 77 + seed);
                let mut page = String::new();
                for n in 0..pages {
                    let request = user.next(Duration::from_secs(7 * n));
                    let answer = serve(&mut session, sequences, &request, &mut page).expect("a page");
                    user.answered(&answer);
                    let is_purchase = request.interaction() == Interaction::BuyConfirm;
                    purchases.fetch_add(u64::from(is_purchase && !answer.is_error), Relaxed);
                    errors.fetch_add(u64::from(answer.is_error), Relaxed);
                }
            });
        }
    });
    (purchases.into_inner(), errors.into_inner())
}

fn audit(db: &Database, front: &Front, purchases: u64, context: &str) {
    let orders = rows(db, TableId::Order);
    assert_eq!(orders.len() as u64, SCALE.orders() + purchases, "{context}");
    assert_eq!(rows(db, TableId::OrderByCustomer).len(), orders.len(), "{context}");
    let payments = rows(db, TableId::CardPayment);
    assert_eq!(payments.len(), orders.len(), "{context}");
    for ((number, order), (paid, payment)) in orders.iter().zip(&payments) {
        let order: Order = postcard_decode(order);
        let payment: CardPayment = postcard_decode(payment);
        assert_eq!((number, order.total), (paid, payment.amount), "{context}");
    }
    let lines = rows(db, TableId::OrderLine);
    let with_lines: std::collections::BTreeSet<&[u8]> = lines.iter().map(|(key, _)| &key[..8]).collect();
    assert_eq!(with_lines.len(), orders.len(), "{context}: every order has lines");
    for (_, item) in rows(db, TableId::Item) {
        let item: Item = postcard_decode(&item);
        assert!((0..=60).contains(&item.stock), "{context}: stock {}", item.stock);
    }
    assert_eq!(rows(db, TableId::ItemBySubject).len() as u64, SCALE.items(), "{context}");
    let customers = rows(db, TableId::Customer).len();
    assert_eq!(rows(db, TableId::CustomerByName).len(), customers, "{context}");
    assert!(front.stale_rows().expect("rows are read").is_empty(), "{context}: SEARCH-1");
    let report = db.check(&mut |_, _| {}).expect("the check ends");
    assert!(report.is_clean(), "{context}: {report:?}");
}

fn postcard_decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> T {
    postcard::from_bytes(bytes).expect("a row")
}

#[test]
fn purchases_leave_orders_lines_payments_and_stock_that_fit_together() {
    for (mix, rules) in [
        (Mix::Ordering, Conformance::Kit),
        (Mix::Ordering, Conformance::TpcW),
        (Mix::Browsing, Conformance::Kit),
    ] {
        let (db, sequences) = shop();
        let front = Front::new(db.clone(), Latch::Word, None, Probes::Rows);
        front.warm(popular(SCALE)).unwrap();
        let (purchases, errors) = visit(&front, &sequences, mix, rules, 700);
        let context = format!("{mix:?}, {rules:?}");
        assert!(mix != Mix::Ordering || purchases > 100, "{context}: {purchases} purchases");
        assert!(errors < 6 * 700 / 20, "{context}: {errors} errors");
        audit(&db, &front, purchases, &context);
    }
}

#[test]
fn the_hash_index_equals_the_store_for_each_latch_and_limit() {
    for latch in Latch::ALL {
        for limit in [None, Some(2)] {
            let (db, sequences) = shop();
            let front = Front::new(db.clone(), latch, limit, Probes::Rows);
            front.warm(popular(SCALE)).unwrap();
            let (purchases, _) = visit(&front, &sequences, Mix::Ordering, Conformance::Kit, 300);
            audit(&db, &front, purchases, &format!("{latch:?}, limit {limit:?}"));
        }
    }
}

#[test]
fn a_failed_transaction_leaves_the_hash_index_unchanged() {
    let (db, _) = shop();
    let front = Front::new(db, Latch::Word, None, Probes::Rows);
    let key = Key::new(TableId::Item, 5u64);
    front.warm(std::iter::once(key.clone())).unwrap();
    let mut session = front.session();
    let before = session.transact(|s| s.index_read(&key)).unwrap().unwrap();
    let failed = session.transact(|s| {
        s.update_row(key.clone(), &encode(&"never to be seen")?)?;
        // The transaction reads its own change, not the old row in the hash index.
        assert_ne!(s.index_read(&key)?.unwrap(), before);
        Err::<(), _>(azekura::Error::other("changed its mind"))
    });
    assert!(failed.is_err());
    assert_eq!(session.transact(|s| s.index_read(&key)).unwrap().unwrap(), before);
    assert!(front.stale_rows().unwrap().is_empty());
    session.transact(|s| s.update_row(key.clone(), &encode(&"seen by all")?)).unwrap();
    assert_ne!(session.transact(|s| s.index_read(&key)).unwrap().unwrap(), before);
    assert!(front.stale_rows().unwrap().is_empty());
}

#[test]
fn scans_go_both_ways_and_stop_at_their_limit() {
    let (db, _) = shop();
    let front = Front::new(db, Latch::Mutex, None, Probes::Pages);
    let (from, to) = (Key::new(TableId::Country, 10u64), Key::new(TableId::Country, 20u64));
    let numbers = |way, limit| {
        let mut session = front.session();
        let rows = session.transact(|s| s.scan(&from, &to, way, limit)).unwrap();
        rows.iter().map(|row| row.key.leading_number()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(Way::Up, 3), [10, 11, 12]);
    assert_eq!(numbers(Way::Down, 2), [19, 18]);
    assert_eq!(numbers(Way::Up, 100), (10..20).collect::<Vec<_>>());
}
