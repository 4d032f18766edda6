//! New-Order (clause 2.4.2): places an order of 5 to 15 items; the most frequent transaction of the mix.

use super::rows::{OpenRows, Rows};
use super::schema::{
    CUSTOMER, DISTRICT, ITEM, NEW_ORDER, ORDER, ORDER_BY_CUSTOMER, ORDER_LINE, STOCK, UnusedItem, WAREHOUSE,
    present,
};
use azekura_workload::tpcc::{NewOrder, Order, OrderLine, OrderedItem};

/// Result for the customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Number of the order.
    pub o_id: u32,
    /// Price with discount and taxes, in cents.
    pub total: i64,
}

/// Places an order. The district's row is locked from the assignment of the order's number until the end, so
/// orders of a district are placed one after another. The warehouse's row, which every payment changes, is
/// read last (see the [module](super)).
///
/// # Errors
///
/// [`UnusedItem`], after the rest of the order was placed, as the specification requires (clause 2.4.2.3); an
/// error of the store.
pub fn new_order<R: Rows>(tx: &R, input: &NewOrder) -> Result<Placed, R::Error> {
    let (w, d) = (input.w_id, input.d_id);
    let customer_key = (w, d, input.c_id);
    let customer = present(tx.open(&CUSTOMER)?.row(&customer_key)?, "customer", customer_key)?;
    let districts = tx.open(&DISTRICT)?;
    let mut district = present(districts.row_for_update(&(w, d))?, "district", (w, d))?;
    let o_id = district.next_o_id;
    district.next_o_id += 1;
    districts.put(&(w, d), &district)?;
    insert_order(tx, input, o_id)?;
    let (mut sum, mut unused) = (0, None);
    for (number, ordered) in (1..).zip(&input.lines) {
        match insert_line(tx, input, o_id, number, ordered)? {
            Some(amount) => sum += amount,
            None => unused = Some(UnusedItem(ordered.i_id)),
        }
    }
    let warehouse = present(tx.open(&WAREHOUSE)?.row(&w)?, "warehouse", w)?;
    if let Some(unused) = unused {
        return Err(unused.into());
    }
    let total = with_rates(sum, customer.discount, warehouse.tax, district.tax);
    Ok(Placed { o_id, total })
}

fn insert_order<R: Rows>(tx: &R, input: &NewOrder, o_id: u32) -> Result<(), R::Error> {
    let key = (input.w_id, input.d_id, o_id);
    let order = Order {
        c_id: input.c_id,
        entry_d: input.entry_d,
        carrier_id: None,
        ol_cnt: input.lines.len() as u8, // at most 15
        all_local: input.lines.iter().all(|line| line.supply_w_id == input.w_id),
    };
    tx.open(&ORDER)?.add(&key, &order)?;
    tx.open(&NEW_ORDER)?.add(&key, &())?;
    tx.open(&ORDER_BY_CUSTOMER)?.add(&(input.w_id, input.d_id, input.c_id, o_id), &())
}

/// Takes the quantity of one line from the stock and inserts the line. Returns its amount, or `None` if the
/// item does not exist.
fn insert_line<R: Rows>(
    tx: &R,
    input: &NewOrder,
    o_id: u32,
    number: u8,
    ordered: &OrderedItem,
) -> Result<Option<i64>, R::Error> {
    let Some(item) = tx.open(&ITEM)?.row(&ordered.i_id)? else { return Ok(None) };
    let stocks = tx.open(&STOCK)?;
    let stock_key = (ordered.supply_w_id, ordered.i_id);
    let mut stock = present(stocks.row_for_update(&stock_key)?, "stock", stock_key)?;
    stock.take(ordered.quantity, ordered.supply_w_id != input.w_id);
    stocks.put(&stock_key, &stock)?;
    let line = OrderLine {
        i_id: ordered.i_id,
        supply_w_id: ordered.supply_w_id,
        delivery_d: None,
        quantity: ordered.quantity,
        amount: item.price * i64::from(ordered.quantity),
        dist_info: stock.dist_info(input.d_id).to_owned(),
    };
    let key = (input.w_id, input.d_id, o_id, number);
    tx.open(&ORDER_LINE)?.add(&key, &line)?;
    Ok(Some(line.amount))
}

/// Returns `sum × (1 − discount) × (1 + taxes)`, rounded down; rates are in hundredths of a percent.
fn with_rates(sum: i64, discount: u16, warehouse_tax: u16, district_tax: u16) -> i64 {
    const WHOLE: i64 = 10_000;
    let taxes = i64::from(warehouse_tax) + i64::from(district_tax);
    sum * (WHOLE - i64::from(discount)) * (WHOLE + taxes) / (WHOLE * WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discount_and_taxes_are_applied_one_after_the_other() {
        assert_eq!(with_rates(10_000, 0, 0, 0), 10_000);
        assert_eq!(with_rates(10_000, 5_000, 0, 0), 5_000);
        assert_eq!(with_rates(10_000, 1_000, 500, 500), 9_900);
        assert_eq!(with_rates(15 * 10 * 10_000, 0, 2_000, 2_000), 2_100_000);
    }
}
