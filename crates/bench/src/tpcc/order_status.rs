//! Order-Status (clause 2.6.2): what a customer ordered last, and how far it is.

use super::customer;
use super::schema::{CUSTOMER, LineKey, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE, OfCustomer, present};
use azekura::{Error, Transaction};
use azekura_workload::tpcc::{Order, OrderLine, OrderStatus};

/// What the customer is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The customer's number.
    pub c_id: u32,
    /// What he owes, in cents.
    pub balance: i64,
    /// Number of his last order.
    pub o_id: u32,
    /// The order.
    pub order: Order,
    /// Its lines.
    pub lines: Vec<OrderLine>,
}

/// Looks at a customer's last order. Only reads.
///
/// # Errors
///
/// Those of the store.
pub fn order_status(tx: &Transaction, input: &OrderStatus) -> Result<Status, Error> {
    let (w, d) = (input.w_id, input.d_id);
    let c_id = customer::find(tx, w, d, &input.customer)?;
    let customer = present(tx.table(&CUSTOMER)?.get(&(w, d, c_id))?, "customer", (w, d, c_id))?;
    let mut orders =
        tx.table(&ORDER_BY_CUSTOMER)?.range::<OfCustomer>((w, d, c_id, 0)..=(w, d, c_id, u32::MAX));
    // Every customer has an order from the start.
    let ((.., o_id), ()) = present(orders.next_back().transpose()?, "order_by_customer", (w, d, c_id))?;
    let order = present(tx.table(&ORDER)?.get(&(w, d, o_id))?, "order", (w, d, o_id))?;
    let lines = tx
        .table(&ORDER_LINE)?
        .range::<LineKey>((w, d, o_id, 0)..=(w, d, o_id, u8::MAX))
        .map(|row| row.map(|(_, line)| line))
        .collect::<Result<_, _>>()?;
    Ok(Status { c_id, balance: customer.balance, o_id, order, lines })
}
