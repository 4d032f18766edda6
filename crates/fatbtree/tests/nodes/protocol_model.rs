//! A model of the product's protocol, checked exhaustively in each test run.
//!
//! The model has two PEs and three keys, and explores every order of splits, merges, moves, writes, searches,
//! lost and reordered messages and one crash. Each deliberate fault of the protocol, one at a time, must
//! violate an invariant, and the checker must report it.

mod model;
mod state;

use model::{Bounds, Hole, Protocol};
use stateright::{Checker, HasDiscoveries, Model};

/// Limit of the visited states. No model may reach it.
const ENOUGH: usize = 3_000_000;

fn check(hole: Option<Hole>, bounds: Bounds) -> (usize, Vec<&'static str>) {
    // With a fault, the first violation is enough.
    let until = if hole.is_some() { HasDiscoveries::Any } else { HasDiscoveries::All };
    let checker =
        Protocol { hole, bounds }.checker().target_state_count(ENOUGH).finish_when(until).spawn_bfs().join();
    let mut broken: Vec<_> = checker.discoveries().into_keys().collect();
    broken.sort_unstable();
    (checker.unique_state_count(), broken)
}

#[test]
fn the_protocol_keeps_its_invariants_in_every_order_of_events() {
    for bounds in [Bounds::CRASH, Bounds::CHANGES] {
        let (states, broken) = check(None, bounds);
        println!("{bounds:?}: {states} states");
        assert!(broken.is_empty(), "broken: {broken:?}");
        assert!((1_000..ENOUGH).contains(&states), "{states} states: the bounds say little or nothing");
    }
}

#[test]
fn each_fault_of_the_protocol_is_found() {
    for hole in Hole::ALL {
        let (states, broken) = check(Some(hole), hole.bounds());
        println!("{hole:?}: {states} states, {broken:?}");
        assert!(!broken.is_empty(), "{hole:?} does no harm: the model is blind to it");
    }
}
