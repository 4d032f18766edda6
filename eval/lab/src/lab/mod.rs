//! The evaluations of the papers, repeated on real code: one module and one command (`azekura-lab …`) per
//! paper.

pub mod bottleneck;
pub mod far_goals;
pub mod far_kills;
pub mod far_memory;
pub mod far_soak;
pub mod fat_btree;
pub mod figures;
pub mod judged;
pub mod mariadb;
pub mod nb_gclock;
pub mod p_wal;
mod server_process;
pub(crate) mod simulated;
pub mod snapshots;
pub mod steady;
