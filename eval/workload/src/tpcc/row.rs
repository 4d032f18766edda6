//! The rows of the nine tables (clause 1.3), without their keys.
//!
//! Money is in cents, taxes and discounts in hundredths of a percent, dates in milliseconds since 1970. A row
//! of NEW-ORDER is its key and nothing else.

use super::scale::DISTRICTS;
use serde::{Deserialize, Serialize};

/// Letters of a stock's information for one district.
pub const DIST_INFO: usize = 24;

/// The address of a warehouse, district or customer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// First line, 10 to 20 letters.
    pub street_1: String,
    /// Second line, 10 to 20 letters.
    pub street_2: String,
    /// 10 to 20 letters.
    pub city: String,
    /// Two letters.
    pub state: String,
    /// Nine digits.
    pub zip: String,
}

/// WAREHOUSE; key: warehouse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warehouse {
    /// 6 to 10 letters.
    pub name: String,
    /// The address.
    pub address: Address,
    /// Sales tax.
    pub tax: u16,
    /// Sum of all payments here.
    pub ytd: i64,
}

/// DISTRICT; key: warehouse, district.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct District {
    /// 6 to 10 letters.
    pub name: String,
    /// The address.
    pub address: Address,
    /// Sales tax.
    pub tax: u16,
    /// Sum of all payments here.
    pub ytd: i64,
    /// Number of the next order.
    pub next_o_id: u32,
}

/// CUSTOMER; key: warehouse, district, customer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Customer {
    /// 8 to 16 letters.
    pub first: String,
    /// `OE`.
    pub middle: String,
    /// One of a thousand names.
    pub last: String,
    /// The address.
    pub address: Address,
    /// 16 digits.
    pub phone: String,
    /// The time of the registration.
    pub since: u64,
    /// `true` for bad credit (`BC`, a tenth of all), `false` for good (`GC`).
    pub bad_credit: bool,
    /// Credit limit.
    pub credit_limit: i64,
    /// Discount.
    pub discount: u16,
    /// Debt.
    pub balance: i64,
    /// Sum of all payments.
    pub ytd_payment: i64,
    /// Number of payments.
    pub payment_cnt: u32,
    /// Number of deliveries.
    pub delivery_cnt: u32,
    /// 300 to 500 letters.
    pub data: String,
}

impl Customer {
    /// Longest `data`.
    pub const MAX_DATA: usize = 500;

    /// Puts a note before the data of a customer with bad credit; the end is cut off at the maximum length
    /// (clause 2.5.2.2).
    pub fn prepend_data(&mut self, note: &str) {
        let kept: String = note.chars().chain(self.data.chars()).take(Self::MAX_DATA).collect();
        self.data = kept;
    }
}

/// HISTORY: one payment. The specification gives it no key; here it is the customer and the number of the
/// payment of this customer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Warehouse where it was paid.
    pub w_id: u32,
    /// District where it was paid.
    pub d_id: u8,
    /// The time.
    pub date: u64,
    /// The amount.
    pub amount: i64,
    /// 12 to 24 letters.
    pub data: String,
}

/// ORDER; key: warehouse, district, order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The customer.
    pub c_id: u32,
    /// The time.
    pub entry_d: u64,
    /// The carrier; `None` before the delivery.
    pub carrier_id: Option<u8>,
    /// Lines.
    pub ol_cnt: u8,
    /// `true` if all items are from the order's warehouse.
    pub all_local: bool,
}

/// ORDER-LINE; key: warehouse, district, order, line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderLine {
    /// The item.
    pub i_id: u32,
    /// The supplying warehouse.
    pub supply_w_id: u32,
    /// The time of the delivery; `None` before it.
    pub delivery_d: Option<u64>,
    /// Quantity.
    pub quantity: u8,
    /// The amount.
    pub amount: i64,
    /// The stock's information for the district.
    pub dist_info: String,
}

/// ITEM; key: item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Number of its picture.
    pub im_id: u32,
    /// 14 to 24 letters.
    pub name: String,
    /// The price.
    pub price: i64,
    /// 26 to 50 letters; in a tenth of all `ORIGINAL` is among them.
    pub data: String,
}

/// STOCK; key: warehouse, item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stock {
    /// Quantity in stock.
    pub quantity: i32,
    /// Information for each district, 24 letters each, one after another.
    pub dists: String,
    /// Ordered quantity.
    pub ytd: u64,
    /// Number of order lines.
    pub order_cnt: u32,
    /// Of these, by other warehouses.
    pub remote_cnt: u32,
    /// Like an item's data.
    pub data: String,
}

impl Stock {
    /// The information for a district, from 1; empty in a row that has none.
    #[must_use]
    pub fn dist_info(&self, d_id: u8) -> &str {
        let at = usize::from(d_id.clamp(1, DISTRICTS) - 1) * DIST_INFO;
        self.dists.get(at..at + DIST_INFO).unwrap_or_default()
    }

    /// Takes `quantity` away for an order line; when fewer than ten would be left, 91 come in (clause
    /// 2.4.2.2).
    pub fn take(&mut self, quantity: u8, is_remote: bool) {
        let wanted = i32::from(quantity);
        self.quantity += if self.quantity >= wanted + 10 { -wanted } else { 91 - wanted };
        self.ytd += u64::from(quantity);
        self.order_cnt += 1;
        self.remote_cnt += u32::from(is_remote);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(quantity: i32) -> Stock {
        let dists = ('a'..='j').flat_map(|c| std::iter::repeat_n(c, DIST_INFO)).collect();
        Stock { quantity, dists, ytd: 0, order_cnt: 0, remote_cnt: 0, data: String::new() }
    }

    #[test]
    fn a_stock_that_would_fall_below_ten_is_filled_up() {
        for (before, taken, after) in [(20, 10, 10), (19, 10, 100), (10, 1, 100), (11, 1, 10), (15, 5, 10)] {
            let mut stock = stock(before);
            stock.take(taken, taken == 1);
            assert_eq!(stock.quantity, after, "{before} - {taken}");
            assert_eq!(
                (stock.ytd, stock.order_cnt, stock.remote_cnt),
                (taken.into(), 1, u32::from(taken == 1))
            );
        }
    }

    #[test]
    fn each_district_has_its_information() {
        let stock = stock(1);
        assert_eq!(stock.dist_info(1), "a".repeat(24));
        assert_eq!(stock.dist_info(10), "j".repeat(24));
        assert_eq!(Stock { dists: "short".into(), ..stock }.dist_info(3), "");
    }
}
