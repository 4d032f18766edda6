//! TPC-C: rows, initial population and inputs of its five transactions, independent of engines.
//!
//! Follows the TPC Benchmark C specification, revision 5.11; the modules cite its clauses. The P-WAL paper
//! (§5.2.2) runs only the New-Order transaction, without rollbacks: [`Mix::NewOrder`]. Money is in cents and
//! rates are in hundredths of a percent, so that the consistency conditions compare integers.
//!
//! Not all of the specification is implemented: there are no think times and keying times, and a thread
//! represents many terminals.
//!
//! ```
//! use azekura_workload::Lane;
//! use azekura_workload::tpcc::{Constants, Input, Mix, Scale, Terminal};
//!
//! let scale = Scale::full(2);
//! assert_eq!((scale.items(), scale.customers(), scale.undelivered()), (100_000, 3_000, 900));
//! let mut terminal = Terminal::new(scale, Constants::draw(1), Mix::Full, Lane::only(), 42);
//! if let Input::NewOrder(order) = terminal.next(0) {
//!     assert!((5..=15).contains(&order.lines.len()));
//! }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`scale`] | [`Scale`]: numbers of rows |
//! | [`random`] | [`Random`], [`Constants`]: uniform and non-uniform numbers, text |
//! | [`name`] | last names |
//! | [`row`] | the rows of the nine tables |
//! | [`loader`] | [`Loader`]: the initial population |
//! | [`input`] | [`Input`]: inputs of the transactions |
//! | [`terminal`] | [`Terminal`]: one thread's endless, repeatable list of inputs; [`Mix`] |

pub mod input;
pub mod loader;
pub mod name;
pub mod random;
pub mod row;
pub mod scale;
pub mod terminal;

pub use input::{CustomerBy, Delivery, Input, Kind, NewOrder, OrderStatus, OrderedItem, Payment, StockLevel};
pub use loader::Loader;
pub use random::{Constants, Random};
pub use row::{Address, Customer, District, History, Item, Order, OrderLine, Stock, Warehouse};
pub use scale::{DISTRICTS, Scale};
pub use terminal::{Mix, Terminal};
