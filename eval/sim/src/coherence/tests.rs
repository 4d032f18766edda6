//! Small cases with results calculated by hand.

use super::*;
use crate::profile::{Constant, Source, Topology};

/// A machine of two sockets with two cores of one thread each. No cost is equal to the sum of others, in
/// nanoseconds.
fn machine(protocol: Protocol) -> Directory {
    Directory::new(&profile(protocol))
}

fn profile(protocol: Protocol) -> Profile {
    let mut profile = Profile::t2();
    let set = |constant: &mut Constant, value: f64| *constant = Constant { value, source: Source::Measured };
    profile.protocol = protocol;
    profile.topology = Topology {
        sockets: 2,
        clusters_per_socket: 1,
        cores_per_cluster: 2,
        threads_per_core: 1,
        pipes_per_core: 1,
        private_lines: (4, 1),
        shared_lines: (64, 4),
    };
    let costs = &mut profile.costs;
    set(&mut costs.load_hit, 1.0);
    set(&mut costs.store, 2.0);
    set(&mut costs.swap, 5.0);
    set(&mut costs.shared_hit, 20.0);
    set(&mut costs.memory, 90.0);
    set(&mut costs.other_socket, 100.0);
    set(&mut costs.transfer_in_cluster, 40.0);
    set(&mut costs.transfer_in_socket, 60.0);
    set(&mut costs.transfer_occupancy, 1.0);
    set(&mut costs.read_occupancy, 3.0);
    set(&mut costs.write_occupancy, 4.0);
    set(&mut costs.swap_occupancy, 7.0);
    set(&mut costs.queued_occupancy, 11.0);
    profile
}

/// Returns the time at which the thread continues, in nanoseconds.
fn until(directory: &mut Directory, core: usize, line: u32, access: Access, now: u64) -> f64 {
    directory.access(core, line, access, now * 1000, 0).until as f64 / 1e3
}

use Access::{Load, Store, Swap};

#[test]
fn a_line_comes_from_memory_once_and_then_from_the_own_cache() {
    let mut d = machine(Protocol::Owned);
    assert_eq!(until(&mut d, 0, 0, Load, 0), 91.0, "memory 90, then a hit's 1");
    assert_eq!(until(&mut d, 0, 0, Load, 100), 101.0);
    assert_eq!(until(&mut d, 1, 0, Load, 200), 221.0, "core 1: from the last cache that both share");
    assert_eq!(
        until(&mut d, 2, 0, Load, 300),
        461.0,
        "core 2, on the other socket: 60 + 100 to the nearest copy"
    );
}

#[test]
fn memory_of_the_other_socket_is_farther() {
    let mut d = machine(Protocol::Owned);
    assert_eq!(until(&mut d, 0, 1, Load, 0), 191.0, "odd lines belong to socket 1");
    assert_eq!(until(&mut d, 2, 3, Load, 0), 91.0);
}

#[test]
fn a_written_line_moves_to_its_reader_and_both_share_it() {
    let mut d = machine(Protocol::Owned);
    assert_eq!(until(&mut d, 0, 0, Swap, 0), 95.0, "memory 90, the instruction 5");
    assert_eq!(until(&mut d, 0, 0, Swap, 100), 105.0, "owned");
    assert_eq!(until(&mut d, 1, 0, Load, 200), 241.0, "40 from core 0");
    assert_eq!(until(&mut d, 0, 0, Load, 300), 301.0, "which still has it");
    assert_eq!(until(&mut d, 0, 0, Swap, 400), 445.0, "but must tell core 1");
    assert_eq!(until(&mut d, 1, 0, Load, 500), 541.0, "which has lost it");
}

#[test]
fn writers_of_one_line_queue_in_the_order_of_their_requests() {
    let mut d = machine(Protocol::Owned);
    until(&mut d, 0, 0, Swap, 0);
    assert_eq!(until(&mut d, 1, 0, Swap, 100), 145.0);
    assert_eq!(until(&mut d, 0, 0, Swap, 101), 190.0, "not before core 1 is done at 145, then 40 and 5");
    let third = d.access(1, 0, Swap, 102_000, 0);
    assert_eq!((third.until, third.queued, third.stall), (235_000, 88_000, 128_000));
}

#[test]
fn the_next_access_waits_for_a_line_only_during_its_transfer() {
    let mut profile = profile(Protocol::Owned);
    profile.costs.transfer_occupancy.value = 0.2;
    let mut d = Directory::new(&profile);
    until(&mut d, 0, 0, Swap, 0);
    assert_eq!(until(&mut d, 1, 0, Swap, 100), 145.0, "40 from core 0, 5 the instruction");
    assert_eq!(
        until(&mut d, 0, 0, Swap, 101),
        154.0,
        "busy with it for a fifth of that, until 109; then 40 and 5"
    );
    assert_eq!(until(&mut d, 0, 0, Swap, 160), 165.0, "an own line is busy for as long as it is used");
    assert_eq!(until(&mut d, 1, 0, Load, 164), 206.0, "so it is asked for at 165; then 40 and 1");
    assert_eq!(until(&mut d, 0, 0, Store, 166), 168.0);
    assert_eq!(
        d.access(1, 0, Load, 166_000, 0).queued,
        17_000,
        "165, 8 for the load's way, 8 for the store's, 2 the store: 183"
    );
}

#[test]
fn a_store_delays_its_thread_only_when_an_atomic_instruction_follows() {
    let mut d = machine(Protocol::Owned);
    until(&mut d, 2, 0, Swap, 0);
    let store = d.access(0, 0, Store, 1_000_000, 0);
    assert_eq!((store.until, store.done), (1_002_000, 1_162_000), "160 from the other socket, 2 the store");
    let swap = d.access(0, 2, Swap, store.until, store.done);
    assert_eq!(swap.until, 1_162_000 + 95_000, "all stores first");
}

#[test]
fn a_cache_that_is_too_small_asks_the_last_cache_again() {
    let mut d = machine(Protocol::Owned);
    assert_eq!(until(&mut d, 0, 0, Load, 0), 91.0);
    assert_eq!(until(&mut d, 0, 4, Load, 100), 191.0, "the same set of one way");
    assert_eq!(until(&mut d, 0, 0, Load, 300), 321.0);
}

#[test]
fn stores_in_the_shared_cache_leave_lines_without_an_owner() {
    let mut d = machine(Protocol::Shared);
    assert_eq!(until(&mut d, 0, 0, Load, 0), 90.0, "memory");
    assert_eq!(until(&mut d, 0, 0, Load, 100), 101.0, "own cache");
    assert_eq!(until(&mut d, 1, 0, Swap, 200), 220.0, "there and back");
    assert_eq!(until(&mut d, 0, 0, Load, 300), 320.0, "the copy was dropped");
    assert_eq!(until(&mut d, 1, 0, Swap, 400), 420.0);
    assert_eq!(until(&mut d, 0, 0, Swap, 401), 427.0, "the line is busy for 7 with the first, then 20");
}

#[test]
fn a_store_that_is_written_through_keeps_the_own_copy_only() {
    let mut d = machine(Protocol::Shared);
    until(&mut d, 0, 0, Load, 0);
    until(&mut d, 1, 0, Load, 0);
    assert_eq!(until(&mut d, 0, 0, Store, 200), 202.0);
    assert_eq!(until(&mut d, 0, 0, Load, 300), 301.0);
    assert_eq!(until(&mut d, 1, 0, Load, 400), 420.0);
}

#[test]
fn accesses_to_a_line_of_the_shared_cache_are_serialized() {
    let mut d = machine(Protocol::Shared);
    assert_eq!(until(&mut d, 0, 0, Load, 0), 90.0);
    assert_eq!(until(&mut d, 1, 0, Load, 1), 23.0, "the line is busy for 3 with the first, then 20");
    assert_eq!(
        until(&mut d, 2, 0, Load, 2),
        104.0,
        "for 11 with the second, which waited: until 14; then memory 90"
    );
    assert_eq!(until(&mut d, 3, 0, Swap, 100), 120.0, "nobody waits");
    assert_eq!(until(&mut d, 0, 0, Swap, 101), 127.0, "for 7 with an atomic instruction, whoever waited");
    assert_eq!(until(&mut d, 1, 0, Swap, 102), 134.0);
    assert_eq!(until(&mut d, 2, 0, Load, 103), 141.0);
}
