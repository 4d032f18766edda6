//! The rows of the nine tables (clause 1.3), without their keys.
//!
//! Money is in cents, taxes and discounts are in hundredths of a percent, dates in milliseconds since 1970. A
//! row of NEW-ORDER consists of its key only.

use super::scale::DISTRICTS;
use serde::{Deserialize, Serialize};

/// Length of a stock's information for one district.
pub const DIST_INFO: usize = 24;

/// The address of a warehouse, district or customer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// First line, 10 to 20 letters.
    pub street_1: String,
    /// Second line, 10 to 20 letters.
    pub street_2: String,
    /// City, 10 to 20 letters.
    pub city: String,
    /// State, two letters.
    pub state: String,
    /// Zip code, nine digits.
    pub zip: String,
}

/// A row of WAREHOUSE; key: warehouse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warehouse {
    /// Name, 6 to 10 letters.
    pub name: String,
    /// The address.
    pub address: Address,
    /// Sales tax.
    pub tax: u16,
    /// Sum of all payments to the warehouse.
    pub ytd: i64,
}

/// A row of DISTRICT; key: warehouse, district.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct District {
    /// Name, 6 to 10 letters.
    pub name: String,
    /// The address.
    pub address: Address,
    /// Sales tax.
    pub tax: u16,
    /// Sum of all payments to the district.
    pub ytd: i64,
    /// Number of the next order.
    pub next_o_id: u32,
}

/// A row of CUSTOMER; key: warehouse, district, customer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Customer {
    /// First name, 8 to 16 letters.
    pub first: String,
    /// Middle name, always `OE`.
    pub middle: String,
    /// Last name, one of a thousand.
    pub last: String,
    /// The address.
    pub address: Address,
    /// Phone number, 16 digits.
    pub phone: String,
    /// Time of the registration.
    pub since: u64,
    /// `true` for bad credit (`BC`, a tenth of all), `false` for good (`GC`).
    pub bad_credit: bool,
    /// Credit limit.
    pub credit_limit: i64,
    /// Discount.
    pub discount: u16,
    /// Balance; a positive balance is a debt.
    pub balance: i64,
    /// Sum of all payments.
    pub ytd_payment: i64,
    /// Number of payments.
    pub payment_cnt: u32,
    /// Number of deliveries.
    pub delivery_cnt: u32,
    /// Notes, 300 to 500 letters at first.
    pub data: String,
}

impl Customer {
    /// Largest length of `data`.
    pub const MAX_DATA: usize = 500;

    /// Prepends a note to the data of a customer with bad credit, and truncates the result to the largest
    /// length (clause 2.5.2.2).
    pub fn prepend_data(&mut self, note: &str) {
        let kept: String = note.chars().chain(self.data.chars()).take(Self::MAX_DATA).collect();
        self.data = kept;
    }
}

/// A row of HISTORY: one payment. The specification defines no key; here the key is the customer and the
/// number of this customer's payment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Number of the warehouse that received the payment.
    pub w_id: u32,
    /// Number of the district that received the payment.
    pub d_id: u8,
    /// Time of the payment.
    pub date: u64,
    /// Amount of the payment.
    pub amount: i64,
    /// Text, 12 to 24 letters at first.
    pub data: String,
}

/// A row of ORDER; key: warehouse, district, order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Number of the customer.
    pub c_id: u32,
    /// Time of the order.
    pub entry_d: u64,
    /// Number of the carrier; `None` before the delivery.
    pub carrier_id: Option<u8>,
    /// Number of lines.
    pub ol_cnt: u8,
    /// All items are supplied by the order's warehouse.
    pub all_local: bool,
}

/// A row of ORDER-LINE; key: warehouse, district, order, line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderLine {
    /// Number of the item.
    pub i_id: u32,
    /// Number of the supplying warehouse.
    pub supply_w_id: u32,
    /// Time of the delivery; `None` before the delivery.
    pub delivery_d: Option<u64>,
    /// Quantity.
    pub quantity: u8,
    /// Amount of the line.
    pub amount: i64,
    /// The stock's information for the district.
    pub dist_info: String,
}

/// A row of ITEM; key: item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Number of the item's picture.
    pub im_id: u32,
    /// Name, 14 to 24 letters.
    pub name: String,
    /// The price.
    pub price: i64,
    /// Text, 26 to 50 letters; in 10 % of all items it contains `ORIGINAL`.
    pub data: String,
}

/// A row of STOCK; key: warehouse, item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stock {
    /// Quantity in stock.
    pub quantity: i32,
    /// Information for all districts in order, 24 letters each.
    pub dists: String,
    /// Ordered quantity since loading.
    pub ytd: u64,
    /// Number of order lines.
    pub order_cnt: u32,
    /// Number of order lines from other warehouses.
    pub remote_cnt: u32,
    /// Text like that of [`Item::data`].
    pub data: String,
}

impl Stock {
    /// Returns the information for a district, from 1; empty if the row has none.
    #[must_use]
    pub fn dist_info(&self, d_id: u8) -> &str {
        let at = usize::from(d_id.clamp(1, DISTRICTS) - 1) * DIST_INFO;
        self.dists.get(at..at + DIST_INFO).unwrap_or_default()
    }

    /// Takes `quantity` from the stock for an order line. If fewer than ten would be left, 91 are added
    /// (clause 2.4.2.2).
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
