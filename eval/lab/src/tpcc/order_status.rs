//! Order-Status (clause 2.6.2): reads the last order of a customer, and its state.

use super::customer;
use super::rows::{OpenRows, Rows, collect};
use super::schema::{CUSTOMER, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE, present};
use azekura_workload::tpcc::{Order, OrderLine, OrderStatus};

/// Result for the customer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Number of the customer.
    pub c_id: u32,
    /// Balance of the customer, in cents.
    pub balance: i64,
    /// Number of the customer's last order.
    pub o_id: u32,
    /// Row of that order.
    pub order: Order,
    /// Lines of that order.
    pub lines: Vec<OrderLine>,
}

/// Reads a customer's last order, in a read-only transaction.
///
/// # Errors
///
/// An error of the store.
pub fn order_status<R: Rows>(tx: &R, input: &OrderStatus) -> Result<Status, R::Error> {
    let (w, d) = (input.w_id, input.d_id);
    let c_id = customer::find(tx, w, d, &input.customer)?;
    let customer = present(tx.open(&CUSTOMER)?.row(&(w, d, c_id))?, "customer", (w, d, c_id))?;
    let last = tx.open(&ORDER_BY_CUSTOMER)?.last_key(&(w, d, c_id, 0), &(w, d, c_id, u32::MAX))?;
    // Every customer has an order after loading.
    let (.., o_id) = present(last, "order_by_customer", (w, d, c_id))?;
    let order = present(tx.open(&ORDER)?.row(&(w, d, o_id))?, "order", (w, d, o_id))?;
    let lines = collect(&tx.open(&ORDER_LINE)?, &(w, d, o_id, 0), &(w, d, o_id, u8::MAX), |_, line| line)?;
    Ok(Status { c_id, balance: customer.balance, o_id, order, lines })
}
