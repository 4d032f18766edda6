//! The consistency conditions of the specification (clause 3.3.2), and three additional ones, checked over a
//! whole database.
//!
//! | condition | statement |
//! |---|---|
//! | 1 | `W_YTD` = Σ `D_YTD` of the warehouse |
//! | 2 | `D_NEXT_O_ID` − 1 = largest order number = largest open order number, if an order is open |
//! | 3 | the numbers of a district's open orders have no gap |
//! | 4 | Σ `O_OL_CNT` = order lines of the district |
//! | 5 | an order has no carrier exactly when it is open |
//! | 6 | `O_OL_CNT` = lines of the order |
//! | 7 | a line has no delivery date exactly when its order has no carrier |
//! | 8, 9 | `W_YTD`, `D_YTD` = Σ `H_AMOUNT` paid there |
//! | 10 | `C_BALANCE` = Σ `OL_AMOUNT` delivered − Σ `H_AMOUNT` |
//! | 11 | orders − open orders = initially delivered orders + Σ `C_DELIVERY_CNT` (specified: initially 0) |
//! | 12 | `C_BALANCE` + `C_YTD_PAYMENT` = Σ `OL_AMOUNT` delivered |
//! | 13 | the index by name contains each customer under the customer's name, and nothing else |
//! | 14 | the index by customer contains each order, and nothing else |
//! | 15 | Σ `S_YTD` of a warehouse = quantities of orders placed since loading |
//!
//! The check is one transaction, so it reads one state, and writers wait for it. It scans all tables except
//! the items. It needs memory for a few words per customer, and for the orders of one district.

use super::failed;
use super::rows::{OpenRows, Rows, collect};
use super::schema::{
    CUSTOMER, CUSTOMER_BY_NAME, DISTRICT, HISTORY, InDistrict, Loaded, NEW_ORDER, NameKey, ORDER,
    ORDER_BY_CUSTOMER, ORDER_LINE, STOCK, WAREHOUSE, present,
};
use crate::error::BenchError;
use crate::progress::Progress;
use azekura::Database;
use azekura_workload::tpcc::{Customer, DISTRICTS};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::ControlFlow::Continue;

/// Number of conditions; they are numbered from 1.
pub const CONDITIONS: u8 = 15;

/// Largest number of violations that are kept; more are only counted.
const KEPT: usize = 20;

/// A violated condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Number of the condition, from 1.
    pub condition: u8,
    /// Key of the warehouse, district, order or customer.
    pub place: String,
    /// Expected value.
    pub expected: i64,
    /// Value found.
    pub found: i64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, place, expected, found } = self;
        write!(f, "condition {condition}, {place}: expected {expected}, found {found}")
    }
}

/// Results of the check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Number of comparisons for each condition, from the first.
    pub comparisons: Vec<u64>,
    /// Number of violations.
    pub violated: u64,
    /// The first violations.
    pub violations: Vec<Violation>,
}

impl Checked {
    /// Returns whether every condition holds.
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
/// An error of the store, or a missing warehouse or district. Violations are in the result.
pub fn check(db: &Database, loaded: &Loaded, progress: &Progress) -> Result<Checked, BenchError> {
    db.transact(|tx| check_rows(tx, loaded, progress)).map_err(failed("checking"))
}

/// Checks all conditions in a transaction of any engine.
///
/// # Errors
///
/// The same as those of [`check`].
pub fn check_rows<R: Rows>(tx: &R, loaded: &Loaded, progress: &Progress) -> Result<Checked, R::Error> {
    let districts = u64::from(loaded.scale.warehouses()) * u64::from(DISTRICTS);
    progress.begin("checking the consistency conditions", districts);
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
}

/// Sums of the payments, by district and by customer.
#[derive(Default)]
struct Paid {
    in_district: HashMap<(u32, u8), i64>,
    by_customer: HashMap<InDistrict, i64>,
}

impl Paid {
    fn of<R: Rows>(tx: &R) -> Result<Self, R::Error> {
        let mut paid = Self::default();
        let (first, last) = ((0, 0, 0, 0), (u32::MAX, u8::MAX, u32::MAX, u32::MAX));
        tx.open(&HISTORY)?.each(&first, &last, &mut |(w, d, c, _), history| {
            *paid.in_district.entry((history.w_id, history.d_id)).or_default() += history.amount;
            *paid.by_customer.entry((w, d, c)).or_default() += history.amount;
            Continue(())
        })?;
        Ok(paid)
    }

    fn in_district(&self, w: u32, d: u8) -> i64 {
        self.in_district.get(&(w, d)).copied().unwrap_or(0)
    }
}

/// An order with the sums of its lines.
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

struct Check<'c, R> {
    tx: &'c R,
    loaded: &'c Loaded,
    paid: Paid,
    /// Quantities of orders placed since loading, by supplying warehouse.
    taken: BTreeMap<u32, i64>,
    checked: Checked,
}

impl<R: Rows> Check<'_, R> {
    fn warehouse(&mut self, w: u32, progress: &Progress) -> Result<(), R::Error> {
        let warehouse = present(self.tx.open(&WAREHOUSE)?.row(&w)?, "warehouse", w)?;
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

    /// Checks one district and returns its `D_YTD`.
    fn district(&mut self, w: u32, d: u8) -> Result<i64, R::Error> {
        let district = present(self.tx.open(&DISTRICT)?.row(&(w, d))?, "district", (w, d))?;
        self.checked.compare(9, (w, d), self.paid.in_district(w, d), district.ytd);
        let open = self.open_orders(w, d)?;
        let mut orders = self.order_rows(w, d)?;
        let mut lines = 0;
        self.add_lines(w, d, &mut orders, &mut lines)?;
        for o in &open {
            // An open order without an ORDER row counts as an order without carrier and lines: conditions 2
            // and 11 report it.
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

    fn open_orders(&self, w: u32, d: u8) -> Result<Vec<u32>, R::Error> {
        collect(&self.tx.open(&NEW_ORDER)?, &(w, d, 0), &(w, d, u32::MAX), |(.., o), ()| o)
    }

    fn order_rows(&self, w: u32, d: u8) -> Result<BTreeMap<u32, OrderSums>, R::Error> {
        let mut orders = BTreeMap::new();
        self.tx.open(&ORDER)?.each(&(w, d, 0), &(w, d, u32::MAX), &mut |(.., o), order| {
            let sums = OrderSums {
                c_id: order.c_id,
                ol_cnt: order.ol_cnt.into(),
                has_carrier: order.carrier_id.is_some(),
                ..OrderSums::default()
            };
            orders.insert(o, sums);
            Continue(())
        })?;
        Ok(orders)
    }

    fn add_lines(
        &mut self,
        w: u32,
        d: u8,
        orders: &mut BTreeMap<u32, OrderSums>,
        lines: &mut i64,
    ) -> Result<(), R::Error> {
        let (taken, first_new) = (&mut self.taken, self.loaded.scale.orders() + 1);
        let (first, last) = ((w, d, 0, 0), (w, d, u32::MAX, u8::MAX));
        self.tx.open(&ORDER_LINE)?.each(&first, &last, &mut |(_, _, o, _), line| {
            *lines += 1;
            // Lines of a missing order count as an order with `O_OL_CNT` 0: conditions 4 and 6 report it.
            let order = orders.entry(o).or_default();
            order.lines += 1;
            if line.delivery_d.is_some() {
                order.delivered_lines += 1;
                order.delivered_amount += line.amount;
            }
            if o >= first_new {
                *taken.entry(line.supply_w_id).or_default() += i64::from(line.quantity);
            }
            Continue(())
        })
    }

    /// Checks conditions 2 and 3.
    fn numbers(&mut self, w: u32, d: u8, next: u32, open: &[u32], orders: &BTreeMap<u32, OrderSums>) {
        let last = i64::from(next) - 1;
        self.checked.compare(2, (w, d), last, orders.keys().next_back().map_or(0, |&o| o.into()));
        if let (Some(&first), Some(&newest)) = (open.first(), open.last()) {
            self.checked.compare(2, (w, d), last, newest.into());
            self.checked.compare(3, (w, d), i64::from(newest) - i64::from(first) + 1, open.len() as i64);
        }
    }

    /// Checks conditions 5, 6 and 7.
    fn order(&mut self, key: InDistrict, order: &OrderSums) {
        self.checked.compare(5, key, i64::from(!order.is_open), i64::from(order.has_carrier));
        self.checked.compare(6, key, order.ol_cnt, order.lines);
        let delivered = if order.has_carrier { order.lines } else { 0 };
        self.checked.compare(7, key, delivered, order.delivered_lines);
    }

    /// Checks conditions 10 to 13.
    fn customers(
        &mut self,
        w: u32,
        d: u8,
        orders: &BTreeMap<u32, OrderSums>,
        open: usize,
    ) -> Result<(), R::Error> {
        let mut delivered: HashMap<u32, i64> = HashMap::new();
        for order in orders.values() {
            *delivered.entry(order.c_id).or_default() += order.delivered_amount;
        }
        let (paid, checked) = (&self.paid, &mut self.checked);
        let (mut deliveries, mut names) = (0, BTreeMap::new());
        self.tx.open(&CUSTOMER)?.each(&(w, d, 0), &(w, d, u32::MAX), &mut |key, customer| {
            let Customer { balance, ytd_payment, delivery_cnt, last, first, .. } = customer;
            let amount = delivered.get(&key.2).copied().unwrap_or(0);
            let paid = paid.by_customer.get(&key).copied().unwrap_or(0);
            checked.compare(10, key, amount - paid, balance);
            checked.compare(12, key, amount, balance + ytd_payment);
            deliveries += i64::from(delivery_cnt);
            names.insert(key.2, (last, first));
            Continue(())
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
    ) -> Result<(), R::Error> {
        let none = String::new;
        let district: (NameKey, NameKey) = ((w, d, none(), none(), 0), (w, d + 1, none(), none(), 0));
        let checked = &mut self.checked;
        self.tx.open(&CUSTOMER_BY_NAME)?.each(
            &district.0,
            &district.1,
            &mut |(_, _, last, first, c), ()| {
                let is_right = names.remove(&c) == Some((last, first));
                checked.compare(13, (w, d, c), 1, is_right.into());
                Continue(())
            },
        )?;
        self.checked.compare(13, (w, d), 0, names.len() as i64);
        Ok(())
    }

    /// Checks condition 14.
    fn orders_index(&mut self, w: u32, d: u8, orders: &BTreeMap<u32, OrderSums>) -> Result<(), R::Error> {
        let (mut right, checked) = (0, &mut self.checked);
        let (first, last) = ((w, d, 0, 0), (w, d, u32::MAX, u32::MAX));
        self.tx.open(&ORDER_BY_CUSTOMER)?.each(&first, &last, &mut |(_, _, c, o), ()| {
            let is_right = orders.get(&o).is_some_and(|order| order.c_id == c);
            right += i64::from(is_right);
            checked.compare(14, (w, d, c, o), 1, is_right.into());
            Continue(())
        })?;
        self.checked.compare(14, (w, d), orders.len() as i64, right);
        Ok(())
    }

    /// Checks condition 15.
    fn stocks(&mut self) -> Result<(), R::Error> {
        for w in 1..=self.loaded.scale.warehouses() {
            let mut ytd = 0;
            self.tx.open(&STOCK)?.each(&(w, 0), &(w, u32::MAX), &mut |_, stock| {
                ytd += i64::try_from(stock.ytd).unwrap_or(i64::MAX);
                Continue(())
            })?;
            self.checked.compare(15, w, self.taken.get(&w).copied().unwrap_or(0), ytd);
        }
        Ok(())
    }
}
