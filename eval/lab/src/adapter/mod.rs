//! Engines that need nothing but Rust, and servers that are there already.

pub mod azekura;
pub mod memory;
pub mod resp;
