//! Tables and indexes: nine tables of the specification, two indexes that its transactions need, and one row
//! with the description of the loaded data.
//!
//! | table | key | |
//! |---|---|---|
//! | `history` | customer, number of the payment of this customer | the specification defines no key |
//! | `customer_by_name` | warehouse, district, last name, first name, customer | Payment, Order-Status |
//! | `order_by_customer` | warehouse, district, customer, order | index for Order-Status |
//! | `tpcc` | `settings` | description of the loaded data |

use azekura::{Serde, TableDefinition};
use azekura_workload::tpcc::{
    Constants, Customer, District, History, Item, Order, OrderLine, Scale, Stock, Warehouse,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Key: warehouse, district, and number in the district of a customer or an order.
pub type InDistrict = (u32, u8, u32);
/// Key: warehouse, district, last name, first name, customer.
pub type NameKey = (u32, u8, String, String, u32);
/// Key: warehouse, district, order, line.
pub type LineKey = (u32, u8, u32, u8);
/// Key: warehouse, district, customer, and payment or order.
pub type OfCustomer = (u32, u8, u32, u32);

/// Table WAREHOUSE.
pub const WAREHOUSE: TableDefinition<u32, Serde<Warehouse>> = TableDefinition::new("warehouse");
/// Table DISTRICT.
pub const DISTRICT: TableDefinition<(u32, u8), Serde<District>> = TableDefinition::new("district");
/// Table CUSTOMER.
pub const CUSTOMER: TableDefinition<InDistrict, Serde<Customer>> = TableDefinition::new("customer");
/// Index of customers by last and first name.
pub const CUSTOMER_BY_NAME: TableDefinition<NameKey, ()> = TableDefinition::new("customer_by_name");
/// Table HISTORY.
pub const HISTORY: TableDefinition<OfCustomer, Serde<History>> = TableDefinition::new("history");
/// Table NEW-ORDER.
pub const NEW_ORDER: TableDefinition<InDistrict, ()> = TableDefinition::new("new_order");
/// Table ORDER.
pub const ORDER: TableDefinition<InDistrict, Serde<Order>> = TableDefinition::new("order");
/// Index of orders by customer.
pub const ORDER_BY_CUSTOMER: TableDefinition<OfCustomer, ()> = TableDefinition::new("order_by_customer");
/// Table ORDER-LINE.
pub const ORDER_LINE: TableDefinition<LineKey, Serde<OrderLine>> = TableDefinition::new("order_line");
/// Table ITEM.
pub const ITEM: TableDefinition<u32, Serde<Item>> = TableDefinition::new("item");
/// Table STOCK.
pub const STOCK: TableDefinition<(u32, u32), Serde<Stock>> = TableDefinition::new("stock");
/// Table with the description of the loaded data.
pub const SETTINGS: TableDefinition<str, Serde<Loaded>> = TableDefinition::new("tpcc");
/// Key of the only row of [`SETTINGS`].
pub const SETTINGS_KEY: &str = "settings";

/// Description of the loaded data, stored in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Size of the database.
    pub scale: Scale,
    /// Constants of the non-uniform distributions.
    pub constants: Constants,
    /// Seed of the rows.
    pub seed: u64,
    /// Number of rows, including those of the indexes.
    pub rows: u64,
    /// Number of runs that were begun on the database.
    pub runs: u64,
}

/// A required row is missing, or a forbidden one exists: the database or the store is broken.
#[derive(Debug, thiserror::Error)]
#[error("table {table} {what} {key}")]
pub struct Broken {
    table: String,
    what: &'static str,
    key: String,
}

impl Broken {
    /// Returns the error of a missing row.
    pub fn lacks(table: &str, key: impl fmt::Debug) -> Self {
        Self { table: table.to_owned(), what: "lacks row", key: format!("{key:?}") }
    }

    /// Returns the error of a row that must not exist.
    pub fn has_already(table: &str, key: impl fmt::Debug) -> Self {
        Self { table: table.to_owned(), what: "has already row", key: format!("{key:?}") }
    }
}

/// A requested item does not exist. The order is rolled back, as the specification requires for one of a
/// hundred orders.
#[derive(Debug, thiserror::Error)]
#[error("item {0} is not valid")]
pub struct UnusedItem(pub u32);

/// Returns a required row.
///
/// # Errors
///
/// [`Broken`].
pub fn present<T>(row: Option<T>, table: &str, key: impl fmt::Debug) -> Result<T, Broken> {
    row.ok_or_else(|| Broken::lacks(table, key))
}
