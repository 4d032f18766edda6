//! Engines that need nothing but Rust.

pub mod azekura;
pub mod memory;
