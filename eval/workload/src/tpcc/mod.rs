//! TPC-C: rows, initial population and the inputs of its five transactions, with no engine in them.
//!
//! After the TPC Benchmark C specification, revision 5.11; clause numbers in the modules are its own. The
//! P-WAL paper (§5.2.2) runs the New-Order transaction alone, without rollbacks: [`Mix::NewOrder`]. Money is
//! kept in cents and rates in hundredths of a percent, so that the consistency conditions compare whole
//! numbers.
//!
//! It is not the whole of the specification: there are no think and keying times, and a thread stands for
//! many terminals.
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
//! | [`scale`] | [`Scale`]: how many rows of what |
//! | [`random`] | [`Random`], [`Constants`]: uniform and non-uniform numbers, text |
//! | [`name`] | last names |
//! | [`row`] | the rows of the nine tables |
//! | [`loader`] | [`Loader`]: the initial population |
//! | [`input`] | [`Input`]: what a terminal asks for |
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
