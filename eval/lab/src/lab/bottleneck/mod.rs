//! The study of T. Horikawa's paper on bottlenecks of multiprocessor scalability (IPSJ TOD, 2010), again: the
//! DBT-1 bookstore on this store, with the reader–writer latch of InnoDB 5.0 on the way of every read by key,
//! before the paper's cure and after it; and whether the analyzer names the right lock each time.
//!
//! Differences from the paper's study:
//!
//! | | there | here |
//! |---|---|---|
//! | machine | 16 cores on front-side buses; 8 and 16 used | as many cores as there are; 1, 2, 4, … used |
//! | engine | MySQL 5.0.75 with InnoDB | this store, with InnoDB's locks in front of it ([`front`]) |
//! | think time | 3.6 s | 12 ms: a page takes microseconds here, not tens of milliseconds |
//! | connections | 100 | 32 |
//! | CPU per `index_read` | 87 µs | well under a microsecond: so two events for each weigh more |
//! | cost inside the latch's mutex | transfer of its cache line | a list of holders (`rw_lock_debug_t`) |
//!
//! The last row is the planted part: [`Latch::Account`](front::search::Latch::Account) is the latch *before*,
//! the plain [`Latch::Mutex`](front::search::Latch::Mutex) is shown beside it, with whatever the analyzer
//! says about it. With more threads than processors a good part of every wait is for a holder that lost its
//! processor; the verdicts say so.
//!
//! | module | noun |
//! |---|---|
//! | [`settings`] | settings of the study |
//! | [`front`] | the engine's upper side with the paper's locks |
//! | [`shop`], [`fill`](mod@fill), [`store`] | pages as transactions; their rows; the place of these |
//! | [`users`] | emulated users over connections |
//! | [`measure`] | one run, with or without a recording |
//! | [`simulate`] | the paper's machine, simulated |
//! | [`study`](mod@study) | all runs, and their results |
//! | [`slices`], [`served`] | cost of recording, by short slices of one run |
//! | [`slowdown`] | the same by whole runs |
//! | [`findings`](mod@findings) | whether the right lock was named |
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
