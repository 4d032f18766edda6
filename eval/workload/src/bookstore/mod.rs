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
//! Two ways to be exact ([`Conformance`]): as the kit's driver behaves, or as TPC-W says. They differ in what
//! *best sellers* asks for, in whether a cart's quantities are ever refreshed, and in whether the pages of
//! *search request* and *registration* touch the store. Apart from that, two numbers of the kit's ordering
//! table are misprints, and are followed only on request ([`Transitions::with_misprint`]); and think times
//! ([`Think`]) are exponential in the kit, constant in the paper's study.
//!
//! | module | noun |
//! |---|---|
//! | [`interaction`] | the 14 kinds of page |
//! | [`mix`] | which page follows which: three tables of TPC-W |
//! | [`request`] | a page with all it needs; what its answer tells the visitor |
//! | [`user`] | one emulated user: visits, think time, what is remembered |
//! | [`think`] | how long a user looks at a page |
//! | [`row`] | the rows of the ten tables |
//! | [`data`] | rows by their numbers |
//! | [`text`] | random strings, names made of syllables, skewed numbers |
//! | [`metric`] | bogotransactions per second, mix, responses |

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

/// The rules to follow where the kit and TPC-W differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Conformance {
    /// The rules of DBT-1's driver and stored procedures: *best sellers* is the query of *new products*,
    /// a cart's quantities are never refreshed (the driver tests for it in a branch that it cannot
    /// reach), and *search request* and *registration* touch no table.
    #[default]
    Kit,
    /// The rules of TPC-W: *best sellers* sums up the quantities sold in the newest orders, a shown cart's
    /// quantities are refreshed, and every page shows its promotion.
    TpcW,
}

/// The size of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scale {
    items: u64,
    users: u64,
}

/// Countries, at every scale.
pub const COUNTRIES: u64 = 92;
/// Subjects of books.
pub const SUBJECTS: u8 = 24;
/// Number of newest orders for best sellers, in TPC-W.
pub const BEST_SELLER_ORDERS: u64 = 3_333;
/// Most rows of a list.
pub const LIST: usize = 50;
/// Most lines of a cart.
pub const CART_LINES: usize = 100;
/// Lines that a cart's page shows.
pub const CART_SHOWN: usize = 20;

impl Scale {
    /// The scale of `items` books (the kit has 1,000 to 10,000,000 in powers of ten; at least 10 are
    /// needed) and `users`, with 2,880 customers for each.
    #[must_use]
    pub const fn new(items: u64, users: u64) -> Self {
        Self { items: if items < 10 { 10 } else { items }, users: if users == 0 { 1 } else { users } }
    }

    /// Items.
    #[must_use]
    pub const fn items(self) -> u64 {
        self.items
    }

    /// Customers before anybody registers.
    #[must_use]
    pub const fn customers(self) -> u64 {
        2_880 * self.users
    }

    /// Addresses before anybody registers.
    #[must_use]
    pub const fn addresses(self) -> u64 {
        2 * self.customers()
    }

    /// Authors.
    #[must_use]
    pub const fn authors(self) -> u64 {
        if self.items < 4 { 1 } else { self.items / 4 }
    }

    /// Orders before anybody buys.
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
