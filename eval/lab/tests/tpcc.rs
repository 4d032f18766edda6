//! TPC-C's transactions do what the specification says and keep the consistency conditions, and the check
//! notices violations.

use azekura::{Database, Error, Key, TableDefinition, Value};
use azekura_lab::tpcc::schema::{
    CUSTOMER, CUSTOMER_BY_NAME, DISTRICT, HISTORY, NEW_ORDER, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE, STOCK,
    WAREHOUSE,
};
use azekura_lab::tpcc::{CONDITIONS, Checked, Loaded, check, client, load, loaded};
use azekura_lab::tpcc::{delivery, new_order, order_status, payment, stock_level};
use azekura_lab::{BenchError, Progress};
use azekura_workload::Lane;
use azekura_workload::tpcc::{
    Customer, CustomerBy, Delivery, Kind, Mix, NewOrder, OrderStatus, OrderedItem, Payment, Scale,
    StockLevel, Terminal,
};
use std::collections::BTreeSet;

fn database(warehouses: u32) -> (Database, Loaded) {
    let db = Database::in_memory().expect("opens");
    let loaded = load(&db, Scale::reduced(warehouses, 100), 5, 2, &Progress::hidden()).expect("loads");
    (db, loaded)
}

fn checked(db: &Database, loaded: &Loaded) -> Checked {
    check(db, loaded, &Progress::hidden()).expect("checks")
}

/// Runs `each` transactions of a mix in each of `threads` threads.
fn work(
    db: &Database,
    loaded: &Loaded,
    mix: Mix,
    threads: u64,
    each: u64,
    window: Option<usize>,
) -> client::Tally {
    let worker = |i| {
        let lane = Lane::new(i, threads);
        let mut terminal = Terminal::new(loaded.scale, loaded.constants, mix, lane, 3);
        let mut asked = 0;
        client::run(db, &mut terminal, window, || {
            asked += 1;
            asked <= each
        })
    };
    let mut all = client::Tally::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|i| scope.spawn(move || worker(i))).collect();
        for worker in workers {
            all.merge(&worker.join().expect("no panic").expect("works"));
        }
    });
    all
}

#[test]
fn a_loaded_database_has_all_rows_and_fulfils_every_condition() {
    let (db, about) = database(2);
    let checked = checked(&db, &about);
    assert!(checked.is_consistent(), "{checked:?}");
    assert_eq!(checked.comparisons.len(), usize::from(CONDITIONS));
    assert!(checked.comparisons.iter().all(|&n| n > 0), "{checked:?}");
    assert_eq!(loaded(&db).expect("reads"), Some(about));
    let report = db.check(&mut |_, _| {}).expect("looks");
    let rows = |name: &str| report.tables.iter().find(|t| t.name == name).map_or(0, |t| t.rows);
    assert_eq!((rows("item"), rows("stock")), (1_000, 2 * 1_000));
    assert_eq!((rows("warehouse"), rows("district")), (2, 20));
    for table in ["customer", "customer_by_name", "history", "order", "order_by_customer"] {
        assert_eq!(rows(table), 2 * 10 * 30, "{table}");
    }
    assert_eq!(rows("new_order"), 2 * 10 * 9);
    assert!((2 * 10 * 30 * 5..=2 * 10 * 30 * 15).contains(&rows("order_line")));
    assert_eq!(about.rows + 1, report.tables.iter().map(|t| t.rows).sum::<u64>(), "and the settings");
}

#[test]
fn a_store_that_was_not_loaded_returns_an_error() {
    let db = Database::in_memory().expect("opens");
    assert_eq!(loaded(&db).expect("reads"), None);
}

#[test]
fn all_conditions_hold_after_many_threads_of_the_full_mix() {
    let (db, loaded) = database(2);
    let tally = work(&db, &loaded, Mix::Full, 4, 400, None);
    let ended: u64 = tally.kinds.iter().map(|kind| kind.committed + kind.rolled_back).sum();
    assert_eq!(ended, 1_600);
    assert!(tally.kinds.iter().all(|kind| kind.committed > 0));
    assert!(tally.kinds[Kind::NewOrder.index()].rolled_back > 0);
    assert!(tally.kinds.iter().all(|kind| kind.latencies.count() == kind.committed));
    let checked = checked(&db, &loaded);
    assert!(checked.is_consistent(), "{checked:?}");
}

#[test]
fn all_conditions_hold_after_pipelined_new_orders_that_share_one_warehouse() {
    let (db, loaded) = database(1);
    let tally = work(&db, &loaded, Mix::NewOrder, 4, 150, Some(8));
    let new_orders = &tally.kinds[Kind::NewOrder.index()];
    assert_eq!((new_orders.committed, new_orders.rolled_back), (600, 0));
    assert_eq!((tally.committed(), new_orders.latencies.count()), (600, 600));
    let checked = checked(&db, &loaded);
    assert!(checked.is_consistent(), "{checked:?}");
}

/// Changes a row.
fn change<K: Key, V: Value<Owned = R>, R>(
    db: &Database,
    table: &TableDefinition<K, V>,
    key: &K,
    by: impl Fn(&mut R),
) {
    db.transact(|tx| {
        let table = tx.table(table)?;
        let mut row = table.get(key)?.expect("the row is there");
        by(&mut row);
        table.insert(key, &row)
    })
    .expect("changes");
}

fn remove<K: Key, V: Value>(db: &Database, table: &TableDefinition<K, V>, key: &K) {
    assert!(db.transact(|tx| tx.table(table)?.remove(key)).expect("removes").is_some());
}

#[test]
fn each_condition_notices_what_breaks_it() {
    let breaks: [(&str, &[u8], fn(&Database)); 17] = [
        ("a warehouse's sum", &[1, 8], |db| change(db, &WAREHOUSE, &1, |w| w.ytd += 1)),
        ("a district's sum", &[1, 9], |db| change(db, &DISTRICT, &(1, 2), |d| d.ytd -= 1)),
        ("the next order", &[2], |db| change(db, &DISTRICT, &(1, 3), |d| d.next_o_id += 1)),
        ("the newest open order is lost", &[2, 5, 11], |db| remove(db, &NEW_ORDER, &(1, 4, 30))),
        ("a gap in the open orders", &[3, 5, 11], |db| remove(db, &NEW_ORDER, &(1, 5, 25))),
        ("an order's count", &[4, 6], |db| change(db, &ORDER, &(1, 1, 7), |o| o.ol_cnt += 1)),
        ("a lost line", &[4, 6], |db| remove(db, &ORDER_LINE, &(1, 1, 30, 1))),
        ("an open order with a carrier", &[5, 7], |db| {
            change(db, &ORDER, &(1, 6, 28), |o| o.carrier_id = Some(3));
        }),
        ("a delivered line of an open order", &[7, 10, 12], |db| {
            change(db, &ORDER_LINE, &(1, 7, 28, 1), |line| line.delivery_d = Some(1));
        }),
        ("a lost payment", &[8, 9, 10], |db| remove(db, &HISTORY, &(1, 8, 3, 1))),
        ("a balance", &[10, 12], |db| change(db, &CUSTOMER, &(1, 9, 3), |c| c.balance += 5)),
        ("a count of deliveries", &[11], |db| change(db, &CUSTOMER, &(1, 9, 4), |c| c.delivery_cnt += 1)),
        ("what a customer has paid", &[12], |db| {
            change(db, &CUSTOMER, &(1, 10, 4), |c| c.ytd_payment += 1);
        }),
        ("a customer's name", &[13], |db| change(db, &CUSTOMER, &(1, 1, 4), |c| c.last.push('X'))),
        ("a name without a customer", &[13], |db| {
            let ghost = (1, 1, "GHOST".to_owned(), "A".to_owned(), 77);
            db.transact(|tx| tx.table(&CUSTOMER_BY_NAME)?.insert(&ghost, &())).expect("inserts");
        }),
        ("an order of nobody", &[14], |db| {
            let order = db.transact(|tx| tx.table(&ORDER)?.get(&(1, 2, 30))).expect("reads");
            remove(db, &ORDER_BY_CUSTOMER, &(1, 2, order.expect("is there").c_id, 30));
        }),
        ("what was taken from a stock", &[15], |db| change(db, &STOCK, &(1, 5), |s| s.ytd += 1)),
    ];
    let mut noticed = BTreeSet::new();
    for (what, expected, break_it) in breaks {
        let (db, loaded) = database(1);
        break_it(&db);
        let checked = checked(&db, &loaded);
        let found: BTreeSet<u8> = checked.violations.iter().map(|v| v.condition).collect();
        assert_eq!(found, expected.iter().copied().collect(), "{what}: {:?}", checked.violations);
        noticed.extend(found);
    }
    assert_eq!(noticed, (1..=CONDITIONS).collect());
}

#[test]
fn a_missing_district_is_an_error_and_not_a_panic() {
    let (db, loaded) = database(1);
    remove(&db, &DISTRICT, &(1, 3));
    let error = check(&db, &loaded, &Progress::hidden()).expect_err("a district is missing");
    assert!(matches!(error, BenchError::Engine(_)), "{error:?}");
}

fn order_of(c_id: u32, items: &[u32]) -> NewOrder {
    let lines = items.iter().map(|&i_id| OrderedItem { i_id, supply_w_id: 1, quantity: 2 }).collect();
    NewOrder { w_id: 1, d_id: 1, c_id, lines, entry_d: 9 }
}

fn payment_of(customer: CustomerBy, amount: i64) -> Payment {
    Payment { w_id: 1, d_id: 4, c_w_id: 1, c_d_id: 1, customer, amount, date: 1 }
}

#[test]
fn an_order_is_seen_by_its_customer_delivered_in_its_turn_and_paid() -> Result<(), Error> {
    let (db, loaded) = database(1);
    let placed = db.transact(|tx| new_order::new_order(tx, &order_of(3, &[5, 6, 5, 7, 8])))?;
    assert_eq!(placed.o_id, 31);
    let by_id = OrderStatus { w_id: 1, d_id: 1, customer: CustomerBy::Id(3) };
    let status = || db.transact(|tx| order_status::order_status(tx, &by_id));
    let ordered = status()?;
    assert_eq!((ordered.c_id, ordered.o_id, ordered.balance), (3, 31, -1_000));
    assert_eq!(ordered.lines.iter().map(|line| line.i_id).collect::<Vec<_>>(), [5, 6, 5, 7, 8]);
    assert_eq!(ordered.order.carrier_id, None);
    // Nine orders were open before, so the new one is the tenth to be delivered.
    let deliver = |carrier_id| {
        let input = Delivery { w_id: 1, carrier_id, delivery_d: 10 };
        db.transact(|tx| delivery::delivery(tx, &input))
    };
    let carrier = |o: u32| {
        db.transact(|tx| tx.table(&ORDER)?.get(&(1, 1, o))).map(|order| order.and_then(|o| o.carrier_id))
    };
    for round in 0..9 {
        assert_eq!(deliver(4)?, 0);
        assert_eq!((carrier(22 + round)?, carrier(31)?), (Some(4), None));
    }
    let before = status()?.balance; // an older order of this customer may be among the nine
    assert_eq!(deliver(7)?, 9, "the other districts have nothing left");
    assert_eq!(carrier(31)?, Some(7));
    assert_eq!(deliver(7)?, 10);
    let delivered = status()?;
    assert!(delivered.lines.iter().all(|line| line.delivery_d == Some(10)));
    assert_eq!(delivered.balance, before + delivered.lines.iter().map(|line| line.amount).sum::<i64>());
    db.transact(|tx| payment::payment(tx, &payment_of(CustomerBy::Id(3), delivered.balance)))?;
    assert_eq!(status()?.balance, 0);
    assert!(checked(&db, &loaded).is_consistent());
    Ok(())
}

#[test]
fn an_order_of_an_unused_item_leaves_nothing_behind() -> Result<(), Error> {
    let (db, loaded) = database(1);
    let refused = db.transact(|tx| new_order::new_order(tx, &order_of(3, &[5, 6, 1_001])));
    assert!(client::is_unused_item(&refused.expect_err("item 1,001 is not there")));
    let placed = db.transact(|tx| new_order::new_order(tx, &order_of(3, &[5])))?;
    assert_eq!(placed.o_id, 31, "the number is used again");
    assert_eq!(db.transact(|tx| tx.table(&STOCK)?.get(&(1, 6)))?.map(|stock| stock.order_cnt), Some(0));
    assert!(checked(&db, &loaded).is_consistent());
    Ok(())
}

#[test]
fn of_customers_with_one_last_name_the_middle_one_by_first_name_pays() -> Result<(), Error> {
    let (db, _) = database(1);
    // Four customers with one name, of which the second is selected, and one with a longer name that begins
    // with it.
    for (c, last, first) in
        [(1, "SAME", "D"), (2, "SAME", "B"), (3, "SAME", "A"), (4, "SAME", "C"), (5, "SAMEAS", "A")]
    {
        let key = (1, 1, last.to_owned(), first.to_owned(), c);
        db.transact(|tx| tx.table(&CUSTOMER_BY_NAME)?.insert(&key, &()))?;
    }
    let pay = |name: &str| {
        let input = payment_of(CustomerBy::LastName(name.into()), 700);
        db.transact(|tx| payment::payment(tx, &input))
    };
    assert_eq!((pay("SAME")?, pay("SAMEAS")?), (2, 5));
    assert!(pay("NOBODY").is_err());
    Ok(())
}

#[test]
fn a_customer_with_bad_credit_has_his_payments_noted_in_500_letters() -> Result<(), Error> {
    let (db, _) = database(1);
    change(&db, &CUSTOMER, &(1, 1, 8), |c| c.bad_credit = true);
    change(&db, &CUSTOMER, &(1, 1, 9), |c| c.bad_credit = false);
    let customer =
        |c: u32| db.transact(|tx| tx.table(&CUSTOMER)?.get(&(1, 1, c))).map(|c| c.expect("is there"));
    let before: [Customer; 2] = [customer(8)?, customer(9)?];
    for _ in 0..40 {
        for c in [8, 9] {
            db.transact(|tx| payment::payment(tx, &payment_of(CustomerBy::Id(c), 12_305)))?;
        }
    }
    let bad = customer(8)?;
    assert!(bad.data.starts_with("8 1 1 4 1 123.05 8 1 1 4 1 123.05 "), "{}", bad.data);
    assert_eq!(bad.data.len(), Customer::MAX_DATA);
    assert_eq!(customer(9)?.data, before[1].data);
    assert_eq!(bad.balance, before[0].balance - 40 * 12_305);
    assert_eq!((bad.payment_cnt, bad.ytd_payment), (41, before[0].ytd_payment + 40 * 12_305));
    Ok(())
}

#[test]
fn few_left_are_counted_once_among_the_last_twenty_orders() -> Result<(), Error> {
    let (db, _) = database(1);
    for _ in 0..20 {
        db.transact(|tx| new_order::new_order(tx, &order_of(1, &[5, 6, 5, 7])))?;
    }
    for (i, quantity) in [(5, 9), (6, 10), (7, 11), (8, 0)] {
        change(&db, &STOCK, &(1, i), |stock| stock.quantity = quantity);
    }
    let count = |threshold| {
        let input = StockLevel { w_id: 1, d_id: 1, threshold };
        db.transact(|tx| stock_level::stock_level(tx, &input))
    };
    // Item 8 is not in the last twenty orders.
    assert_eq!((count(9)?, count(10)?, count(11)?, count(12)?), (0, 1, 2, 3));
    Ok(())
}
