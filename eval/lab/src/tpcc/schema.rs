//! Tables and indexes: nine tables of the specification, two indexes that its transactions need, one row of
//! our own.
//!
//! | table | key | |
//! |---|---|---|
//! | `history` | customer, number of the payment among his | the specification gives it none |
//! | `customer_by_name` | warehouse, district, last name, first name, customer | Payment, Order-Status |
//! | `order_by_customer` | warehouse, district, customer, order | index for Order-Status |
//! | `tpcc` | `settings` | how the database was made |

use azekura::{Serde, TableDefinition};
use azekura_workload::tpcc::{
    Constants, Customer, District, History, Item, Order, OrderLine, Scale, Stock, Warehouse,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Warehouse, district, and the number within the district: a customer or an order.
pub type InDistrict = (u32, u8, u32);
/// Warehouse, district, last name, first name, customer.
pub type NameKey = (u32, u8, String, String, u32);
/// Warehouse, district, order, line.
pub type LineKey = (u32, u8, u32, u8);
/// Warehouse, district, customer, payment; or warehouse, district, customer, order.
pub type OfCustomer = (u32, u8, u32, u32);

/// WAREHOUSE.
pub const WAREHOUSE: TableDefinition<u32, Serde<Warehouse>> = TableDefinition::new("warehouse");
/// DISTRICT.
pub const DISTRICT: TableDefinition<(u32, u8), Serde<District>> = TableDefinition::new("district");
/// CUSTOMER.
pub const CUSTOMER: TableDefinition<InDistrict, Serde<Customer>> = TableDefinition::new("customer");
/// Customers by last and first name.
pub const CUSTOMER_BY_NAME: TableDefinition<NameKey, ()> = TableDefinition::new("customer_by_name");
/// HISTORY.
pub const HISTORY: TableDefinition<OfCustomer, Serde<History>> = TableDefinition::new("history");
/// NEW-ORDER.
pub const NEW_ORDER: TableDefinition<InDistrict, ()> = TableDefinition::new("new_order");
/// ORDER.
pub const ORDER: TableDefinition<InDistrict, Serde<Order>> = TableDefinition::new("order");
/// Orders by customer.
pub const ORDER_BY_CUSTOMER: TableDefinition<OfCustomer, ()> = TableDefinition::new("order_by_customer");
/// ORDER-LINE.
pub const ORDER_LINE: TableDefinition<LineKey, Serde<OrderLine>> = TableDefinition::new("order_line");
/// ITEM.
pub const ITEM: TableDefinition<u32, Serde<Item>> = TableDefinition::new("item");
/// STOCK.
pub const STOCK: TableDefinition<(u32, u32), Serde<Stock>> = TableDefinition::new("stock");
/// Settings of the database's loading.
pub const SETTINGS: TableDefinition<str, Serde<Loaded>> = TableDefinition::new("tpcc");
/// The key of the only row of [`SETTINGS`].
pub const SETTINGS_KEY: &str = "settings";

/// The database's own description once it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Its size.
    pub scale: Scale,
    /// The constants of its non-uniform distributions.
    pub constants: Constants,
    /// The seed of its rows.
    pub seed: u64,
    /// Rows, those of the indexes included.
    pub rows: u64,
    /// Runs that were begun on it.
    pub runs: u64,
}

/// A row that must be there is not, or one is that must not be: the database, or the store, is broken.
#[derive(Debug, thiserror::Error)]
#[error("table {table} {what} {key}")]
pub struct Broken {
    table: String,
    what: &'static str,
    key: String,
}

impl Broken {
    /// A row that must be there is not.
    pub fn lacks(table: &str, key: impl fmt::Debug) -> Self {
        Self { table: table.to_owned(), what: "lacks row", key: format!("{key:?}") }
    }

    /// A row that must not be there is.
    pub fn has_already(table: &str, key: impl fmt::Debug) -> Self {
        Self { table: table.to_owned(), what: "has already row", key: format!("{key:?}") }
    }
}

/// An item that does not exist was asked for: the order is rolled back, as it should be in one of a hundred
/// cases.
#[derive(Debug, thiserror::Error)]
#[error("item {0} is not valid")]
pub struct UnusedItem(pub u32);

/// The row that must be there.
///
/// # Errors
///
/// [`Broken`].
pub fn present<T>(row: Option<T>, table: &str, key: impl fmt::Debug) -> Result<T, Broken> {
    row.ok_or_else(|| Broken::lacks(table, key))
}
