//! Numbers of rows of the tables (clauses 1.2 and 4.3.3).

use serde::{Deserialize, Serialize};

/// Number of districts of a warehouse.
pub const DISTRICTS: u8 = 10;

/// Number of items, and of stocks of each warehouse, at full scale.
const ITEMS: u32 = 100_000;
/// Number of customers of a district at full scale, and of its initial orders.
const CUSTOMERS: u32 = 3_000;
/// Number of different last names.
const NAMES: u32 = 1_000;

/// The size of a database: its number of warehouses, and a divisor of the specification's other numbers of
/// rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    warehouses: u32,
    divisor: u32,
}

impl Scale {
    /// Returns the scale of the specification.
    ///
    /// # Panics
    ///
    /// If `warehouses` is 0.
    #[must_use]
    pub const fn full(warehouses: u32) -> Self {
        Self::reduced(warehouses, 1)
    }

    /// Returns a scale with items and customers divided by `divisor`, for tests: 1 is full scale, 100 the
    /// smallest.
    ///
    /// # Panics
    ///
    /// If `warehouses` is 0, or `divisor` is not from 1 to 100.
    #[must_use]
    pub const fn reduced(warehouses: u32, divisor: u32) -> Self {
        assert!(warehouses > 0, "at least one warehouse");
        assert!(divisor > 0 && divisor <= 100, "a divisor from 1 to 100");
        Self { warehouses, divisor }
    }

    /// Returns the number of warehouses. They are numbered from 1, as are all other rows.
    #[must_use]
    pub const fn warehouses(self) -> u32 {
        self.warehouses
    }

    /// Returns the divisor of the specification's numbers.
    #[must_use]
    pub const fn divisor(self) -> u32 {
        self.divisor
    }

    /// Returns the number of items, and of stocks of each warehouse.
    #[must_use]
    pub const fn items(self) -> u32 {
        ITEMS / self.divisor
    }

    /// Returns the number of customers of each district.
    #[must_use]
    pub const fn customers(self) -> u32 {
        CUSTOMERS / self.divisor
    }

    /// Returns the initial number of orders of each district.
    #[must_use]
    pub const fn orders(self) -> u32 {
        self.customers()
    }

    /// Returns the number of initial orders of each district that are not delivered: the newest ones.
    #[must_use]
    pub const fn undelivered(self) -> u32 {
        self.orders() * 3 / 10
    }

    /// Returns the number of last names in use. Customers up to this number have distinct names.
    #[must_use]
    pub const fn names(self) -> u32 {
        if self.customers() < NAMES { self.customers() } else { NAMES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_scale_is_that_of_the_specification() {
        let full = Scale::full(3);
        let sizes = (full.items(), full.customers(), full.orders(), full.undelivered(), full.names());
        assert_eq!(sizes, (100_000, 3_000, 3_000, 900, 1_000));
        assert_eq!(full.warehouses(), 3);
    }

    #[test]
    fn the_smallest_scale_still_has_some_of_everything() {
        let least = Scale::reduced(1, 100);
        let sizes = (least.items(), least.customers(), least.undelivered(), least.names());
        assert_eq!(sizes, (1_000, 30, 9, 30));
    }
}
