//! Stock-Level (clause 2.8.2): counts the items in a district's last twenty orders with a low stock.
//!
//! The specification requires only read committed; here the transaction is serializable like the others.

use super::rows::{OpenRows, Rows};
use super::schema::{DISTRICT, ORDER_LINE, STOCK, present};
use azekura_workload::tpcc::StockLevel;
use std::collections::BTreeSet;
use std::ops::ControlFlow::Continue;

/// Number of examined orders.
const LAST_ORDERS: u32 = 20;

/// Counts the items, in a read-only transaction.
///
/// # Errors
///
/// An error of the store.
pub fn stock_level<R: Rows>(tx: &R, input: &StockLevel) -> Result<usize, R::Error> {
    let (w, d) = (input.w_id, input.d_id);
    let district = present(tx.open(&DISTRICT)?.row(&(w, d))?, "district", (w, d))?;
    let next = district.next_o_id;
    let mut items = BTreeSet::new();
    let (first, last) = ((w, d, next.saturating_sub(LAST_ORDERS), 0), (w, d, next - 1, u8::MAX));
    tx.open(&ORDER_LINE)?.each(&first, &last, &mut |_, line| {
        items.insert(line.i_id);
        Continue(())
    })?;
    let stocks = tx.open(&STOCK)?;
    let mut few = 0;
    for i in items {
        let stock = present(stocks.row(&(w, i))?, "stock", (w, i))?;
        few += usize::from(stock.quantity < input.threshold);
    }
    Ok(few)
}
