//! The papers' evaluations, run again on this store.
pub mod bottleneck;
//! The evaluations of the papers, run again on real code: one module per paper, one command each (`azekura lab …`).

pub mod nb_gclock;
