//! P-WAL
pub mod ground;
pub mod micro;
pub mod variant;
pub mod writes;
