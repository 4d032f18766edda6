//! Stock-Level (clause 2.8.2): of how many items in a district's last twenty orders there are few left.
//!
//! The specification asks for no more than read committed; here it is serializable like the others.

use super::schema::{DISTRICT, LineKey, ORDER_LINE, STOCK, present};
use azekura::{Error, Transaction};
use azekura_workload::tpcc::StockLevel;
use std::collections::BTreeSet;

/// Orders that are looked at.
const LAST_ORDERS: u32 = 20;

/// Counts the items. Only reads.
///
/// # Errors
///
/// Those of the store.
pub fn stock_level(tx: &Transaction, input: &StockLevel) -> Result<usize, Error> {
    let (w, d) = (input.w_id, input.d_id);
    let district = present(tx.table(&DISTRICT)?.get(&(w, d))?, "district", (w, d))?;
    let next = district.next_o_id;
    let mut items = BTreeSet::new();
    let recent = (w, d, next.saturating_sub(LAST_ORDERS), 0)..(w, d, next, 0);
    for row in tx.table(&ORDER_LINE)?.range::<LineKey>(recent) {
        items.insert(row?.1.i_id);
    }
    let stocks = tx.table(&STOCK)?;
    let mut few = 0;
    for i in items {
        let stock = present(stocks.get(&(w, i))?, "stock", (w, i))?;
        few += usize::from(stock.quantity < input.threshold);
    }
    Ok(few)
}
