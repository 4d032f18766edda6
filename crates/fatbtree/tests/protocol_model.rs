//! The product protocol as a model, checked exhaustively before it was coded, and again at each test run.
//!
//! Two PEs and three keys; every order of splits, merges, moves, writes, searches, lost and reordered
//! messages and one crash. A hole in the protocol is made on purpose, one at a time, and the checker must
//! find what it breaks.

#[path = "protocol_model/model.rs"]
mod model;
#[path = "protocol_model/state.rs"]
mod state;

use model::{Bounds, Hole, Protocol};
use stateright::{Checker, HasDiscoveries, Model};

/// States that the checker may look at before it gives up; it must not get there.
const ENOUGH: usize = 3_000_000;

fn check(hole: Option<Hole>, bounds: Bounds) -> (usize, Vec<&'static str>) {
    // With a hole, the first thing that breaks is enough.
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
fn each_hole_in_the_protocol_is_noticed() {
    for hole in Hole::ALL {
        let (states, broken) = check(Some(hole), hole.bounds());
        println!("{hole:?}: {states} states, {broken:?}");
        assert!(!broken.is_empty(), "{hole:?} does no harm: the model is blind to it");
    }
}
