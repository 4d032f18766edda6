//! The papers' evaluations, run again on this store.

pub mod bottleneck;
