//! Engines that need nothing but Rust.

pub mod memory;
