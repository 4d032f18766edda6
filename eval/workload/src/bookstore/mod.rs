//! The bookstore of OSDL's Database Test 1 (DBT-1), a simplified TPC-W: rows, visitors and
//! requests.
//!
//! The module is independent of engines: a [`User`] returns the next [`Request`] and receives the
//! [`Answer`]; the caller (the bottleneck lab) implements the requests over a store. Each row is generated
//! from its number, so the same [`Scale`] and seed give the same store.
//!
//! ```
//! use azekura_workload::bookstore::{Answer, Conformance, Mix, Request, Scale, User};
//! use std::time::Duration;
//!
//! let scale = Scale::new(1_000, 1);
//! let mut user = User::new(scale, Mix::Shopping, Conformance::Kit, 42);
//! let request = user.next(Duration::ZERO);
//! assert!(matches!(request, Request::Home { .. }), "every visit begins there");
//! user.answered(&Answer::default());
//! ```
//!
//! [`Conformance`] selects the rules of DBT-1's driver or those of TPC-W. They differ in the query of *best
//! sellers*, in the refreshing of a cart's quantities, and in the use of the store by *search request* and
//! *registration*. Two numbers of DBT-1's ordering table are misprints, which are used only on request
//! ([`Transitions::with_misprint`]). Think times ([`Think`]) are exponential in DBT-1 and constant in the
//! paper's study.
//!
//! | module | noun |
//! |---|---|
//! | [`interaction`] | the 14 kinds of pages |
//! | [`mix`] | transitions between pages: three tables of TPC-W |
//! | [`request`] | a page request with its parameters; the answer to it |
//! | [`user`] | one emulated user: visits, think time, state between requests |
//! | [`think`] | think time between two pages |
//! | [`row`] | the rows of the ten tables |
//! | [`data`] | rows by number |
//! | [`text`] | random strings, names made of syllables, skewed numbers |
//! | [`metric`] | bogotransactions per second, mix, response times |

pub mod data;
pub mod interaction;
pub mod metric;
pub mod mix;
pub mod request;
pub mod row;
pub mod text;
pub mod think;
pub mod user;

pub use data::Data;
pub use interaction::Interaction;
pub use metric::Tally;
pub use mix::{Mix, Transitions};
pub use request::{Answer, Request, Search};
pub use think::Think;
pub use user::User;

/// The rules to follow where DBT-1 and TPC-W differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Conformance {
    /// The rules of DBT-1's driver and stored procedures. *Best sellers* runs the query of *new products*. A
    /// cart's quantities are never refreshed, because the driver tests for it in an unreachable branch.
    /// *Search request* and *registration* use no table.
    #[default]
    Kit,
    /// The rules of TPC-W. *Best sellers* sums up the quantities sold in the newest orders. The quantities of
    /// a shown cart are refreshed, and every page shows its promotion.
    TpcW,
}

/// The size of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scale {
    items: u64,
    users: u64,
}

/// Number of countries, at every scale.
pub const COUNTRIES: u64 = 92;
/// Number of subjects of books.
pub const SUBJECTS: u8 = 24;
/// Number of newest orders that TPC-W's best sellers are computed from.
pub const BEST_SELLER_ORDERS: u64 = 3_333;
/// Largest number of rows in a list.
pub const LIST: usize = 50;
/// Largest number of lines in a cart.
pub const CART_LINES: usize = 100;
/// Number of lines that the page of a cart shows.
pub const CART_SHOWN: usize = 20;

impl Scale {
    /// Returns the scale of `items` books and `users` users, with 2,880 customers for each user. DBT-1 has
    /// 1,000 to 10,000,000 books, in powers of ten; at least 10 are needed.
    #[must_use]
    pub const fn new(items: u64, users: u64) -> Self {
        Self { items: if items < 10 { 10 } else { items }, users: if users == 0 { 1 } else { users } }
    }

    /// Returns the number of items.
    #[must_use]
    pub const fn items(self) -> u64 {
        self.items
    }

    /// Returns the initial number of customers.
    #[must_use]
    pub const fn customers(self) -> u64 {
        2_880 * self.users
    }

    /// Returns the initial number of addresses.
    #[must_use]
    pub const fn addresses(self) -> u64 {
        2 * self.customers()
    }

    /// Returns the number of authors.
    #[must_use]
    pub const fn authors(self) -> u64 {
        if self.items < 4 { 1 } else { self.items / 4 }
    }

    /// Returns the initial number of orders.
    #[must_use]
    pub const fn orders(self) -> u64 {
        self.customers() * 9 / 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_items_and_users() {
        let scale = Scale::new(10_000, 10);
        let sizes = [scale.customers(), scale.addresses(), scale.authors(), scale.orders()];
        assert_eq!(sizes, [28_800, 57_600, 2_500, 25_920]);
    }
}
