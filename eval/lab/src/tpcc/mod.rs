//! TPC-C on the store: loading, the five transactions, and the consistency conditions.
//!
//! Rows and inputs come from [`azekura_workload::tpcc`]; this module stores them in tables
//! ([`azekura::TableDefinition`]). The run is not an audited TPC-C: there are no think times and no
//! terminals, and one thread represents many terminals. Every transaction is serializable. Unless commits are
//! pipelined, each transaction is durable before the next one begins.
//!
//! *Order of locks.* The specification leaves the order within a transaction open. Rows are locked until the
//! end of the transaction, so contended rows are locked late: first the customer, then the district, and last
//! the warehouse, which every Payment changes and every New-Order reads. All transactions follow this order,
//! so these three tables alone never cause a deadlock.
//!
//! ```
//! use azekura_lab::Progress;
//! use azekura_lab::tpcc::{Plan, run};
//! use std::time::Duration;
//!
//! let dir = std::env::temp_dir().join(format!("azekura-tpcc-example-{}", std::process::id()));
//! let plan = Plan { measured: Duration::from_millis(50), ..Plan::in_dir(&dir) };
//! let report = run(&plan, &Progress::hidden(), &mut |_| {})?;
//! assert!(report.ops > 0 && report.is_consistent());
//! println!("{}", report.render());
//! # std::fs::remove_dir_all(dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`schema`] | tables and indexes |
//! | [`load`](mod@load) | loading of the initial population |
//! | [`new_order`](mod@new_order), [`payment`](mod@payment) | transactions |
//! | [`order_status`](mod@order_status), [`delivery`](mod@delivery) | transactions |
//! | [`stock_level`](mod@stock_level) | transactions |
//! | [`customer`] | finding a customer by name |
//! | [`rows`], [`keyed`] | interface of a transaction; its implementation on engines with ordered bytes |
//! | [`client`] | work of one thread |
//! | [`phase`] | one timed phase of work by many threads |
//! | [`check`](mod@check) | the consistency conditions |
//! | [`plan`] | settings of a run |
//! | [`run`](mod@run) | a run from beginning to end |
//! | [`report`] | results of a run |
//! | [`contest`](mod@contest), [`session`] | comparison of several engines; transactions on any engine |
//! | [`standing`] | results of the compared engines |

pub mod check;
pub mod client;
pub mod contest;
pub mod customer;
pub mod delivery;
pub mod keyed;
pub mod load;
pub mod new_order;
pub mod order_status;
pub mod payment;
pub mod phase;
pub mod plan;
pub mod report;
pub mod rows;
pub mod run;
pub mod schema;
pub mod session;
pub mod standing;
pub mod stock_level;

pub use check::{CONDITIONS, Checked, Violation, check};
pub use contest::{Contest, contest};
pub use load::{load, loaded};
pub use plan::Plan;
pub use report::Report;
pub use run::run;
pub use schema::Loaded;
pub use standing::Standing;

use crate::error::{BenchError, EngineError};
use azekura_base::sync::machine::simulated;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns a function that wraps an error of the store.
pub(crate) fn failed(doing: &'static str) -> impl Fn(azekura::Error) -> BenchError {
    move |error| EngineError::failed(doing, error).into()
}

/// Start of a simulated machine's clock: 2026-01-01.
const SIMULATED_BEGIN_MS: u64 = 1_767_225_600_000;

/// Returns the milliseconds since 1970; on a simulated machine, of its clock.
fn now_ms() -> u64 {
    if let Some(machine) = simulated() {
        let since = Duration::from_millis(SIMULATED_BEGIN_MS) + machine.now();
        return u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
