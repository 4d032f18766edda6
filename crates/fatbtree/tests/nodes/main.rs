//! Tests of the cluster: models of the protocols, a simulation with failures, connections and stores.

#[path = "../chaos/mod.rs"]
mod chaos;
mod decisions;
mod decommissions;
mod hazards;
mod leaf_counts;
mod leave_model;
mod links;
#[path = "../lists/mod.rs"]
mod lists;
mod lost_stores;
mod members;
mod open_ends;
mod open_transactions;
mod page_sizes;
mod protocol_model;
mod real_stores;
mod simulation;
mod store_errors;
