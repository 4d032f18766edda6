//! The rows of the ten tables. Money is in cents, dates are days since 1970, times are seconds since then.

use serde::{Deserialize, Serialize};

/// A row of `author`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct Author {
    pub first_name: String,
    pub last_name: String,
    pub middle_name: String,
    pub born: u32,
    pub bio: String,
}

/// A row of `country`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct Country {
    pub name: String,
    pub exchange_micros: u64,
    pub currency: String,
}

/// A row of `address`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct Address {
    pub street1: String,
    pub street2: String,
    pub city: String,
    pub state: String,
    pub zip: String,
    pub country: u64,
}

/// A row of `customer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct Customer {
    pub user_name: String,
    pub password: String,
    pub first_name: String,
    pub last_name: String,
    pub address: u64,
    pub phone: String,
    pub email: String,
    pub since: u32,
    pub last_visit: u32,
    pub login: u64,
    pub expiration: u64,
    /// Discount in percent.
    pub discount: u8,
    pub balance: i64,
    pub year_to_date: i64,
    pub born: u32,
    pub data: String,
}

/// A row of `item`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct Item {
    pub title: String,
    pub author: u64,
    pub published: u32,
    pub publisher: String,
    pub subject: u8,
    pub description: String,
    pub related: [u64; 5],
    pub thumbnail: u64,
    pub image: u64,
    /// Suggested retail price.
    pub retail_price: i64,
    pub cost: i64,
    pub available: u32,
    pub stock: i64,
    pub isbn: String,
    pub pages: u32,
    pub backing: u8,
    pub dimensions: String,
}

/// A row of `orders`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct Order {
    pub customer: u64,
    pub date: u64,
    pub sub_total: i64,
    pub tax: i64,
    pub total: i64,
    pub ship_type: u8,
    pub ship_date: u64,
    pub bill_address: u64,
    pub ship_address: u64,
    pub status: u8,
}

/// A row of `order_line`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct OrderLine {
    pub item: u64,
    pub quantity: u32,
    /// Discount in percent.
    pub discount: u8,
    pub comments: String,
}

/// A row of `cc_xacts`: a payment by credit card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct CardPayment {
    pub card_type: u8,
    pub number: String,
    pub name: String,
    pub expiry: u32,
    pub authorisation: String,
    pub amount: i64,
    pub date: u64,
    pub country: u64,
}

/// A row of `shopping_cart`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct Cart {
    pub customer: Option<u64>,
    pub date: u64,
    pub sub_total: i64,
    pub tax: i64,
    pub shipping: i64,
    pub total: i64,
    pub first_name: String,
    pub last_name: String,
    /// Discount in percent.
    pub discount: u8,
}

/// A row of `shopping_cart_line`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the columns are those of DBT-1")]
pub struct CartLine {
    pub quantity: u32,
    pub cost: i64,
    pub retail_price: i64,
    pub title: String,
    pub backing: u8,
}

/// Sales tax, in hundredths of a percent.
const TAX: i64 = 825;
/// Shipping costs of an order, and of each copy in it, in cents.
const SHIPPING: (i64, i64) = (300, 100);

impl Cart {
    /// Computes the price of the cart: its lines minus the customer's discount, plus tax and shipping.
    pub fn price<'l>(&mut self, lines: impl IntoIterator<Item = &'l CartLine>) {
        let (mut cost, mut copies) = (0, 0);
        for line in lines {
            cost += line.cost * i64::from(line.quantity);
            copies += i64::from(line.quantity);
        }
        self.sub_total = cost * i64::from(100 - self.discount.min(100)) / 100;
        self.tax = self.sub_total * TAX / 10_000;
        self.shipping = SHIPPING.0 + SHIPPING.1 * copies;
        self.total = self.sub_total + self.tax + self.shipping;
    }
}

impl Item {
    /// Returns the stock after a sale; 21 copies are added if at most ten would be left.
    #[must_use]
    pub const fn stock_after(&self, sold: u32) -> i64 {
        let sold = sold as i64;
        if self.stock - 10 <= sold { self.stock - sold + 21 } else { self.stock - sold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cart_is_priced_with_discount_tax_and_shipping() {
        let line = |quantity, cost| CartLine {
            quantity,
            cost,
            retail_price: cost,
            title: String::new(),
            backing: 0,
        };
        let mut cart = Cart { discount: 10, ..Cart::default() };
        cart.price(&[line(2, 1_000), line(1, 500)]);
        assert_eq!((cart.sub_total, cart.tax, cart.shipping, cart.total), (2_250, 185, 600, 3_035));
    }

    #[test]
    fn stock_is_filled_up_before_it_runs_out() {
        let stock = |stock, sold| {
            let item = Item {
                title: String::new(),
                author: 1,
                published: 0,
                publisher: String::new(),
                subject: 0,
                description: String::new(),
                related: [1; 5],
                thumbnail: 0,
                image: 0,
                retail_price: 0,
                cost: 0,
                available: 0,
                stock,
                isbn: String::new(),
                pages: 1,
                backing: 0,
                dimensions: String::new(),
            };
            item.stock_after(sold)
        };
        assert_eq!([stock(30, 2), stock(13, 2), stock(12, 2), stock(10, 5)], [28, 11, 31, 26]);
    }
}
