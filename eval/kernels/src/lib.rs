//! The programs of the far-memory paper (§3.1), written from their specifications. They run on any memory:
//! the heap, a region of far memory, or a memory that records page accesses.
//!
//! The crate does not measure the machine; `azekura-lab` does.
//!
//! ```
//! use azekura_kernels::{Arena, Kernel};
//!
//! let kernel: Kernel = "is.s".parse()?;
//! let mut bytes = vec![0_u8; kernel.bytes()];
//! let verdict = kernel.run(&mut Arena::of_zeroed(&mut bytes))?;
//! assert!(verdict.verified(), "{verdict}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`memory`] | [`Memory`]: source of a program's arrays; [`Arena`]: a memory over bytes |
//! | [`record`] | [`Recorder`]: a memory that records page accesses |
//! | [`kernel`] | [`Kernel`]: the programs, by name and size |
//! | [`verdict`] | [`Verdict`]: the result of a program's own verification |
//! | [`himeno`] | Jacobi's method for pressure, fourteen arrays |
//! | [`npb`] | some of the NAS Parallel Benchmarks |
//! | [`cluster`] | hierarchical clustering of gene expressions |
#![forbid(unsafe_code)]

pub mod cluster;
pub mod himeno;
pub mod kernel;
pub mod memory;
pub mod npb;
pub mod record;
pub mod verdict;

pub use kernel::{Kernel, ParseKernelError};
pub use memory::{Arena, Array, Memory, OutOfMemory};
pub use record::{Recorder, Recording};
pub use verdict::{Check, Verdict};
