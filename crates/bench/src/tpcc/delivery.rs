//! Delivery (clause 2.7.4): the oldest open order of each district of a warehouse is delivered.
//!
//! The specification lets a terminal queue it and go on, and allows a transaction for each district; here all ten are one transaction, which is
//! measured as the others are.

use super::schema::{CUSTOMER, InDistrict, LineKey, NEW_ORDER, ORDER, ORDER_LINE, present};
use azekura::{Error, Transaction};
use azekura_workload::tpcc::{DISTRICTS, Delivery};

/// Delivers in all districts; gives back how many had nothing to deliver.
///
/// # Errors
///
/// Those of the store.
pub fn delivery(tx: &Transaction, input: &Delivery) -> Result<u8, Error> {
    let mut skipped = 0;
    for d in 1..=DISTRICTS {
        match oldest_open(tx, input.w_id, d)? {
            Some(o_id) => deliver(tx, input, d, o_id)?,
            None => skipped += 1,
        }
    }
    Ok(skipped)
}

/// The oldest order of a district that is not delivered; its row in NEW-ORDER is removed.
fn oldest_open(tx: &Transaction, w: u32, d: u8) -> Result<Option<u32>, Error> {
    let open = tx.table(&NEW_ORDER)?;
    let first = open.range::<InDistrict>((w, d, 0)..=(w, d, u32::MAX)).next().transpose()?;
    let Some((key, ())) = first else { return Ok(None) };
    present(open.remove(&key)?, "new_order", key)?;
    Ok(Some(key.2))
}

fn deliver(tx: &Transaction, input: &Delivery, d: u8, o_id: u32) -> Result<(), Error> {
    let w = input.w_id;
    let orders = tx.table(&ORDER)?;
    let mut order = present(orders.get_for_update(&(w, d, o_id))?, "order", (w, d, o_id))?;
    order.carrier_id = Some(input.carrier_id);
    orders.insert(&(w, d, o_id), &order)?;

    let lines = tx.table(&ORDER_LINE)?;
    let mut sum = 0;
    for number in 1..=order.ol_cnt {
        let key: LineKey = (w, d, o_id, number);
        let mut line = present(lines.get_for_update(&key)?, "order_line", key)?;
        sum += line.amount;
        line.delivery_d = Some(input.delivery_d);
        lines.insert(&key, &line)?;
    }

    let customers = tx.table(&CUSTOMER)?;
    let key = (w, d, order.c_id);
    let mut customer = present(customers.get_for_update(&key)?, "customer", key)?;
    customer.balance += sum;
    customer.delivery_cnt += 1;
    customers.insert(&key, &customer)
}
