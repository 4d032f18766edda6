//! Runs the entry of the fuzz target (directory `fuzz` of the repository) on seeded mutations of valid
//! inputs.

#![allow(unreachable_pub, dead_code, reason = "the entries are shared with the fuzz targets")]

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/node_wire.rs"]
mod node_wire;

#[test]
fn any_bytes_to_a_node_are_messages_or_refused_and_need_the_key() {
    mutate::run_mutated(20_000, &node_wire::seeds(), node_wire::node_wire);
}
