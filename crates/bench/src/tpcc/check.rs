//! The consistency conditions of the specification (clause 3.3.2), and three of our own, checked over a whole database.
//!
//! | condition | says |
//! |---|---|
//! | 1 | `W_YTD` = Σ `D_YTD` of the warehouse |
//! | 2 | `D_NEXT_O_ID` − 1 = greatest order = greatest open order, if one is open |
//! | 3 | the numbers of a district's open orders have no gap |
//! | 4 | Σ `O_OL_CNT` = order lines of the district |
//! | 5 | an order has no carrier exactly when it is open |
//! | 6 | `O_OL_CNT` = lines of the order |
//! | 7 | a line has no delivery date exactly when its order has no carrier |
//! | 8, 9 | `W_YTD`, `D_YTD` = Σ `H_AMOUNT` paid there |
//! | 10 | `C_BALANCE` = Σ `OL_AMOUNT` delivered − Σ `H_AMOUNT` |
//! | 11 | orders − open orders = those delivered at first + Σ `C_DELIVERY_CNT` (the specification states it before any delivery) |
//! | 12 | `C_BALANCE` + `C_YTD_PAYMENT` = Σ `OL_AMOUNT` delivered |
//! | 13 | each customer is in the index by name as he is called, and nobody else |
//! | 14 | each order is in the index by customer, and nothing else |
//! | 15 | Σ `S_YTD` of a warehouse = what orders placed since loading took from it |
//!
//! All is read in one transaction: the answer is of one moment, and writers wait meanwhile. Costs a scan of everything but items; memory for
//! a few words per customer of the database and for the orders of one district.

use super::failed;
use super::schema::{
    CUSTOMER, CUSTOMER_BY_NAME, DISTRICT, HISTORY, InDistrict, LineKey, Loaded, NEW_ORDER, NameKey, ORDER,
    ORDER_BY_CUSTOMER, ORDER_LINE, OfCustomer, STOCK, WAREHOUSE, present,
};
use crate::error::BenchError;
use crate::progress::Progress;
use azekura::{Database, Error, Transaction};
use azekura_workload::tpcc::{Customer, DISTRICTS};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::ControlFlow::Continue;

/// Conditions that are checked, from 1.
pub const CONDITIONS: u8 = 15;

/// Violations that are kept in full; more are only counted.
const KEPT: usize = 20;

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which condition, from 1.
    pub condition: u8,
    /// Of which warehouse, district, order or customer.
    pub place: String,
    /// What it should be.
    pub expected: i64,
    /// What it is.
    pub found: i64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, place, expected, found } = self;
        write!(f, "condition {condition}, {place}: expected {expected}, found {found}")
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Comparisons made for each condition, from the first.
    pub comparisons: Vec<u64>,
    /// How many failed.
    pub violated: u64,
    /// The first of them.
    pub violations: Vec<Violation>,
}

impl Checked {
    /// Whether every condition holds.
    #[must_use]
    pub const fn is_consistent(&self) -> bool {
        self.violated == 0
    }

    fn compare(&mut self, condition: u8, place: impl fmt::Debug, expected: i64, found: i64) {
        self.comparisons[usize::from(condition) - 1] += 1;
        if expected == found {
            return;
        }
        self.violated += 1;
        if self.violations.len() < KEPT {
            self.violations.push(Violation { condition, place: format!("{place:?}"), expected, found });
        }
    }
}

/// Checks all conditions.
///
/// # Errors
///
/// What the store says, and warehouses or districts that are missing; violations are in the answer.
pub fn check(db: &Database, loaded: &Loaded, progress: &Progress) -> Result<Checked, BenchError> {
    let districts = u64::from(loaded.scale.warehouses()) * u64::from(DISTRICTS);
    progress.begin("checking the consistency conditions", districts);
    db.transact(|tx| {
        let mut check = Check {
            tx,
            loaded,
            paid: Paid::of(tx)?,
            taken: BTreeMap::new(),
            checked: Checked { comparisons: vec![0; CONDITIONS.into()], ..Checked::default() },
        };
        for w in 1..=loaded.scale.warehouses() {
            check.warehouse(w, progress)?;
        }
        check.stocks()?;
        Ok(check.checked)
    })
    .map_err(failed("checking"))
}

/// Sums of the payments.
#[derive(Default)]
struct Paid {
    in_district: HashMap<(u32, u8), i64>,
    by_customer: HashMap<InDistrict, i64>,
}

impl Paid {
    fn of(tx: &Transaction) -> Result<Self, Error> {
        let mut paid = Self::default();
        tx.table(&HISTORY)?.visit::<OfCustomer>(.., |row| {
            let ((w, d, c, _), history) = (row.key()?, row.value()?);
            *paid.in_district.entry((history.w_id, history.d_id)).or_default() += history.amount;
            *paid.by_customer.entry((w, d, c)).or_default() += history.amount;
            Ok(Continue(()))
        })?;
        Ok(paid)
    }

    fn in_district(&self, w: u32, d: u8) -> i64 {
        self.in_district.get(&(w, d)).copied().unwrap_or(0)
    }
}

/// An order with what its lines add up to.
#[derive(Debug, Clone, Copy, Default)]
struct OrderSums {
    c_id: u32,
    ol_cnt: i64,
    has_carrier: bool,
    is_open: bool,
    lines: i64,
    delivered_lines: i64,
    delivered_amount: i64,
}

struct Check<'c> {
    tx: &'c Transaction,
    loaded: &'c Loaded,
    paid: Paid,
    /// What orders placed since loading took from each warehouse.
    taken: BTreeMap<u32, i64>,
    checked: Checked,
}

impl Check<'_> {
    fn warehouse(&mut self, w: u32, progress: &Progress) -> Result<(), Error> {
        let warehouse = present(self.tx.table(&WAREHOUSE)?.get(&w)?, "warehouse", w)?;
        let (mut ytd, mut paid) = (0, 0);
        for d in 1..=DISTRICTS {
            ytd += self.district(w, d)?;
            paid += self.paid.in_district(w, d);
            progress.at(u64::from(w - 1) * u64::from(DISTRICTS) + u64::from(d));
        }
        self.checked.compare(1, w, ytd, warehouse.ytd);
        self.checked.compare(8, w, paid, warehouse.ytd);
        Ok(())
    }

    /// Checks one district; gives back its `D_YTD`.
    fn district(&mut self, w: u32, d: u8) -> Result<i64, Error> {
        let district = present(self.tx.table(&DISTRICT)?.get(&(w, d))?, "district", (w, d))?;
        self.checked.compare(9, (w, d), self.paid.in_district(w, d), district.ytd);
        let open = self.open_orders(w, d)?;
        let mut orders = self.order_rows(w, d)?;
        let mut lines = 0;
        self.add_lines(w, d, &mut orders, &mut lines)?;
        for o in &open {
            // An open order without an ORDER row counts as one without carrier and lines: conditions 2 and 11 tell.
            orders.entry(*o).or_default().is_open = true;
        }
        self.numbers(w, d, district.next_o_id, &open, &orders);
        let counted = orders.values().map(|order| order.ol_cnt).sum();
        self.checked.compare(4, (w, d), counted, lines);
        for (o, order) in &orders {
            self.order((w, d, *o), order);
        }
        self.customers(w, d, &orders, open.len())?;
        self.orders_index(w, d, &orders)?;
        Ok(district.ytd)
    }

    fn open_orders(&self, w: u32, d: u8) -> Result<Vec<u32>, Error> {
        let rows = self.tx.table(&NEW_ORDER)?.range::<InDistrict>((w, d, 0)..=(w, d, u32::MAX));
        rows.map(|row| row.map(|((.., o), ())| o)).collect()
    }

    fn order_rows(&self, w: u32, d: u8) -> Result<BTreeMap<u32, OrderSums>, Error> {
        let mut orders = BTreeMap::new();
        self.tx.table(&ORDER)?.visit::<InDistrict>((w, d, 0)..=(w, d, u32::MAX), |row| {
            let ((.., o), order) = (row.key()?, row.value()?);
            let sums = OrderSums {
                c_id: order.c_id,
                ol_cnt: order.ol_cnt.into(),
                has_carrier: order.carrier_id.is_some(),
                ..OrderSums::default()
            };
            orders.insert(o, sums);
            Ok(Continue(()))
        })?;
        Ok(orders)
    }

    fn add_lines(
        &mut self,
        w: u32,
        d: u8,
        orders: &mut BTreeMap<u32, OrderSums>,
        lines: &mut i64,
    ) -> Result<(), Error> {
        let (taken, first_new) = (&mut self.taken, self.loaded.scale.orders() + 1);
        self.tx.table(&ORDER_LINE)?.visit::<LineKey>((w, d, 0, 0)..=(w, d, u32::MAX, u8::MAX), |row| {
            let ((_, _, o, _), line) = (row.key()?, row.value()?);
            *lines += 1;
            // Lines of an order that is not there make one without a count: conditions 4 and 6 tell.
            let order = orders.entry(o).or_default();
            order.lines += 1;
            if line.delivery_d.is_some() {
                order.delivered_lines += 1;
                order.delivered_amount += line.amount;
            }
            if o >= first_new {
                *taken.entry(line.supply_w_id).or_default() += i64::from(line.quantity);
            }
            Ok(Continue(()))
        })
    }

    /// Conditions 2 and 3.
    fn numbers(&mut self, w: u32, d: u8, next: u32, open: &[u32], orders: &BTreeMap<u32, OrderSums>) {
        let last = i64::from(next) - 1;
        self.checked.compare(2, (w, d), last, orders.keys().next_back().map_or(0, |&o| o.into()));
        if let (Some(&first), Some(&newest)) = (open.first(), open.last()) {
            self.checked.compare(2, (w, d), last, newest.into());
            self.checked.compare(3, (w, d), i64::from(newest) - i64::from(first) + 1, open.len() as i64);
        }
    }

    /// Conditions 5, 6 and 7.
    fn order(&mut self, key: InDistrict, order: &OrderSums) {
        self.checked.compare(5, key, i64::from(!order.is_open), i64::from(order.has_carrier));
        self.checked.compare(6, key, order.ol_cnt, order.lines);
        let delivered = if order.has_carrier { order.lines } else { 0 };
        self.checked.compare(7, key, delivered, order.delivered_lines);
    }

    /// Conditions 10 to 13.
    fn customers(
        &mut self,
        w: u32,
        d: u8,
        orders: &BTreeMap<u32, OrderSums>,
        open: usize,
    ) -> Result<(), Error> {
        let mut delivered: HashMap<u32, i64> = HashMap::new();
        for order in orders.values() {
            *delivered.entry(order.c_id).or_default() += order.delivered_amount;
        }
        let (paid, checked) = (&self.paid, &mut self.checked);
        let (mut deliveries, mut names) = (0, BTreeMap::new());
        self.tx.table(&CUSTOMER)?.visit::<InDistrict>((w, d, 0)..=(w, d, u32::MAX), |row| {
            let (key, Customer { balance, ytd_payment, delivery_cnt, last, first, .. }) =
                (row.key()?, row.value()?);
            let amount = delivered.get(&key.2).copied().unwrap_or(0);
            let paid = paid.by_customer.get(&key).copied().unwrap_or(0);
            checked.compare(10, key, amount - paid, balance);
            checked.compare(12, key, amount, balance + ytd_payment);
            deliveries += i64::from(delivery_cnt);
            names.insert(key.2, (last, first));
            Ok(Continue(()))
        })?;
        let scale = self.loaded.scale;
        let at_first = i64::from(scale.orders() - scale.undelivered());
        self.checked.compare(11, (w, d), at_first + deliveries, orders.len() as i64 - open as i64);
        self.names_index(w, d, names)
    }

    fn names_index(
        &mut self,
        w: u32,
        d: u8,
        mut names: BTreeMap<u32, (String, String)>,
    ) -> Result<(), Error> {
        let none = String::new;
        let district: (NameKey, NameKey) = ((w, d, none(), none(), 0), (w, d + 1, none(), none(), 0));
        for row in self.tx.table(&CUSTOMER_BY_NAME)?.range::<NameKey>(district.0..district.1) {
            let ((_, _, last, first, c), ()) = row?;
            let is_right = names.remove(&c) == Some((last, first));
            self.checked.compare(13, (w, d, c), 1, is_right.into());
        }
        self.checked.compare(13, (w, d), 0, names.len() as i64);
        Ok(())
    }

    /// Condition 14.
    fn orders_index(&mut self, w: u32, d: u8, orders: &BTreeMap<u32, OrderSums>) -> Result<(), Error> {
        let index = self.tx.table(&ORDER_BY_CUSTOMER)?;
        let mut right = 0;
        for row in index.range::<OfCustomer>((w, d, 0, 0)..=(w, d, u32::MAX, u32::MAX)) {
            let ((_, _, c, o), ()) = row?;
            let is_right = orders.get(&o).is_some_and(|order| order.c_id == c);
            right += i64::from(is_right);
            self.checked.compare(14, (w, d, c, o), 1, is_right.into());
        }
        self.checked.compare(14, (w, d), orders.len() as i64, right);
        Ok(())
    }

    /// Condition 15.
    fn stocks(&mut self) -> Result<(), Error> {
        for w in 1..=self.loaded.scale.warehouses() {
            let mut ytd = 0;
            self.tx.table(&STOCK)?.visit::<(u32, u32)>((w, 0)..=(w, u32::MAX), |row| {
                ytd += i64::try_from(row.value()?.ytd).unwrap_or(i64::MAX);
                Ok(Continue(()))
            })?;
            self.checked.compare(15, w, self.taken.get(&w).copied().unwrap_or(0), ytd);
        }
        Ok(())
    }
}
