//! Delivery (clause 2.7.4): delivers the oldest open order of each district of a warehouse.
//!
//! The specification lets a terminal queue the delivery and continue, and allows one transaction per
//! district. Here all ten districts are one transaction, which is measured like the others.

use super::rows::{OpenRows, Rows};
use super::schema::{CUSTOMER, LineKey, NEW_ORDER, ORDER, ORDER_LINE, present};
use azekura_workload::tpcc::{DISTRICTS, Delivery};

/// Delivers one order in each district. Returns the number of districts without an open order.
///
/// # Errors
///
/// An error of the store.
pub fn delivery<R: Rows>(tx: &R, input: &Delivery) -> Result<u8, R::Error> {
    let mut skipped = 0;
    for d in 1..=DISTRICTS {
        // `take_first` removes the order's row in NEW-ORDER.
        match tx.open(&NEW_ORDER)?.take_first(&(input.w_id, d, 0), &(input.w_id, d, u32::MAX))? {
            Some((.., o_id)) => deliver(tx, input, d, o_id)?,
            None => skipped += 1,
        }
    }
    Ok(skipped)
}

fn deliver<R: Rows>(tx: &R, input: &Delivery, d: u8, o_id: u32) -> Result<(), R::Error> {
    let w = input.w_id;
    let orders = tx.open(&ORDER)?;
    let mut order = present(orders.row_for_update(&(w, d, o_id))?, "order", (w, d, o_id))?;
    order.carrier_id = Some(input.carrier_id);
    orders.put(&(w, d, o_id), &order)?;

    let lines = tx.open(&ORDER_LINE)?;
    let mut sum = 0;
    for number in 1..=order.ol_cnt {
        let key: LineKey = (w, d, o_id, number);
        let mut line = present(lines.row_for_update(&key)?, "order_line", key)?;
        sum += line.amount;
        line.delivery_d = Some(input.delivery_d);
        lines.put(&key, &line)?;
    }

    let customers = tx.open(&CUSTOMER)?;
    let key = (w, d, order.c_id);
    let mut customer = present(customers.row_for_update(&key)?, "customer", key)?;
    customer.balance += sum;
    customer.delivery_cnt += 1;
    customers.put(&key, &customer)
}
