//! A repetition of T. Horikawa's study on bottlenecks of multiprocessor scalability (IPSJ TOD, 2010). The
//! DBT-1 bookstore runs on this store, and each read by key acquires the reader–writer latch of InnoDB 5.0,
//! before the paper's change and after it. The lab checks whether the analyzer names the right lock in both
//! cases.
//!
//! Differences from the paper's study:
//!
//! | | paper | this lab |
//! |---|---|---|
//! | machine | 16 cores on front-side buses; 8 and 16 used | all available cores; 1, 2, 4, … used |
//! | engine | MySQL 5.0.75 with InnoDB | this store, with InnoDB's locks in front of it ([`front`]) |
//! | think time | 3.6 s | 12 ms: a page takes microseconds here, not tens of milliseconds |
//! | connections | 100 | 32 |
//! | CPU time per `index_read` | 87 µs | well under a microsecond, so its two events cost relatively more |
//! | cost inside the latch's mutex | transfer of its cache line | a list of holders (`rw_lock_debug_t`) |
//!
//! The last row is added on purpose: [`Latch::Account`](front::search::Latch::Account) is the latch before
//! the change. The plain [`Latch::Mutex`](front::search::Latch::Mutex) is measured too, without an expected
//! result. With more threads than processors, much of the waiting is for a holder that lost its processor;
//! the verdicts report this.
//!
//! | module | noun |
//! |---|---|
//! | [`settings`] | settings of the study |
//! | [`front`] | the engine's upper layer with the paper's locks |
//! | [`shop`], [`fill`](mod@fill), [`store`] | pages as transactions; the initial rows; their store |
//! | [`users`] | emulated users over connections |
//! | [`measure`] | one run, with or without a recording |
//! | [`simulate`] | the paper's machine, simulated |
//! | [`study`](mod@study) | all runs, and their results |
//! | [`slices`], [`served`] | cost of recording, by short intervals of one run |
//! | [`slowdown`] | cost of recording, by whole runs |
//! | [`findings`](mod@findings) | comparison of the named lock with the right one |
//! | [`text`], [`page`] | the tables and figures |

pub mod fill;
pub mod findings;
pub mod front;
mod interval;
pub mod measure;
pub mod page;
pub mod served;
pub mod settings;
pub mod shop;
pub mod simulate;
pub mod slices;
pub mod slowdown;
pub mod store;
pub mod study;
pub mod text;
pub mod users;

pub use settings::Settings;
pub use slices::sliced;
pub use study::{Study, slowdowns, study};
