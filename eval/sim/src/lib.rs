//! A simulated machine with any number of processors: deterministic simulation of the shipped code.
//!
//! Threads of a [`Simulation`] run the real pool, log, locks and trees, compiled with the feature `sim`. Then
//! `azekura_base::sync` calls the simulation before each access to shared memory. The threads run on one
//! operating-system thread, each on a stack of its own. The thread with the earliest virtual clock runs next,
//! and a model of caches gives the time of each access. Runs with the same seed are identical, to the last
//! byte. The algorithms are not modeled, and instructions are not counted: the code between two accesses
//! takes a constant time, which calibration determines.
//!
//! ```
//! use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use azekura_sim::{Profile, Simulation};
//! use std::rc::Rc;
//! use std::sync::Arc;
//!
//! let counter = Arc::new(AtomicU64::new(0));
//! let mut simulation = Simulation::new(Rc::new(Profile::t2()), 64, 1);
//! for _ in 0..64 {
//!     let counter = Arc::clone(&counter);
//!     simulation.thread(move || for _ in 0..100 { counter.fetch_add(1, Relaxed); });
//! }
//! match simulation.run() {
//!     Err(azekura_sim::SimulationError::NotBuilt) => {} // without the feature
//!     outcome => println!("{:?}", outcome?.time),
//! }
//! # Ok::<(), azekura_sim::SimulationError>(())
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`simulation`] | one run |
//! | [`profile`] | machines: processors, and their costs |
//! | [`coherence`] | cost of an access to a cache line, by the earlier accesses to it |
//! | [`processors`] | assignment of threads to processors |
//! | [`schedule`] | choice of the next thread, if time does not decide |
//! | [`explore`] | random and enumerated schedules; shrinking of a failing one; stopped threads |
//! | [`stalls`] | places at which threads waited for lines |
//! | [`measure`](mod@measure) | counts of a part of a run |
//! | [`name`] | the accessed object at a place in the source |
//! | [`what_if`] | lines that cost nothing, to see the next limit |
//! | [`lines`] | numbers of cache lines, instead of addresses |
//! | `world`, `handle`, `fiber` | state of a machine; its interface to `sync`; stacks of its threads |

pub mod coherence;
pub mod explore;
mod fiber;
mod handle;
pub mod lines;
pub mod measure;
pub mod name;
pub mod processors;
pub mod profile;
mod random;
pub mod schedule;
pub mod simulation;
pub mod stalls;
pub mod what_if;
mod world;

pub use lines::LineAllocator;
pub use name::Name;
pub use profile::Profile;
pub use random::Random;
pub use schedule::Schedule;
pub use simulation::{Blocked, Outcome, Simulation, SimulationError};
pub use what_if::LineName;
