//! Engines that need no C library: the store, a map in memory, and servers that already run.

pub mod azekura;
pub mod memory;
pub mod resp;
