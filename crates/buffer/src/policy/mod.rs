//! Which page leaves when another comes.

pub(crate) mod clock_hand;
pub(crate) mod nb_gclock;

pub use clock_hand::HandKind;
