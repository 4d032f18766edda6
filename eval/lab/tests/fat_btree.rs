//! The lab's real nodes agree with the paper's numbers, and with the model that was made before the nodes.
//! All results are virtual times and counts, so they are the same on every machine.

use azekura_fatbtree::{Placement, Protocol};
use azekura_lab::lab::fat_btree::expected::{anchors, rate};
use azekura_lab::lab::fat_btree::run::{Outcome, Setup};

fn setup(placement: Placement, pes: u16, cache_pages: usize) -> Setup {
    Setup {
        placement,
        protocol: Protocol::BOpt,
        is_choice_by_range: false,
        pes,
        cache_pages,
        inserts: 0.0,
        clients_per_pe: 20,
        operations: (4_000, 10_000),
        seed: 1,
    }
}

fn run(setup: Setup) -> Outcome {
    let outcome = setup.run();
    println!(
        "{} {:?} {} PEs, {} pages, {} inserts: model {:?}, {outcome:?}",
        setup.placement,
        setup.protocol,
        setup.pes,
        setup.cache_pages,
        setup.inserts,
        rate(&setup)
    );
    outcome
}

#[test]
fn remote_locks_and_hits_are_those_of_the_paper_and_its_model() {
    for anchor in anchors() {
        let value = (anchor.value)(&run(setup(anchor.placement, anchor.pes, 50)));
        println!("{}: paper {}, model {}, here {value:.1}", anchor.series, anchor.paper, anchor.model);
        if anchor.series.contains("locks") {
            let apart = (value - anchor.model).abs() / anchor.model;
            assert!(apart < 0.03, "{}: {value} and {}", anchor.series, anchor.model);
        } else {
            assert!((value - anchor.model).abs() < 2.0, "{}: {value} and {}", anchor.series, anchor.model);
        }
    }
}

/// Lazy copies avoid the locks of copies, which reduce the rate of B-OPT.
#[test]
#[ignore = "half a minute; the gate runs it, with the one below"]
fn with_half_inserts_lazy_copies_are_far_ahead_of_b_opt_and_of_a_single_index() {
    let run = |placement, protocol| {
        let is_choice_by_range = protocol == Protocol::Lazy;
        let operations = (2_000, 5_000);
        run(Setup { protocol, is_choice_by_range, inserts: 0.5, operations, ..setup(placement, 16, 50) })
            .per_s
    };
    let lazy = run(Placement::FatBtree, Protocol::Lazy);
    let b_opt = run(Placement::FatBtree, Protocol::BOpt);
    assert!(lazy > b_opt * 2.5, "{lazy} and {b_opt}");
    for protocol in [Protocol::Lazy, Protocol::BOpt] {
        let single = run(Placement::SingleIndex, protocol);
        assert!(lazy > single, "{lazy} and SIB with {protocol:?} {single}");
    }
}

#[test]
#[ignore = "two minutes: all points of all figures"]
fn rates_are_within_15_per_cent_of_the_models() {
    let mut far = Vec::new();
    // Whole copies with half inserts are up to 30 % faster here than in the model. The model includes the
    // splits of a long run from the start.
    let is_known = |setup: &Setup| setup.placement == Placement::CopyWhole && setup.inserts == 0.5;
    let mut look = |setup: Setup| {
        let outcome = run(setup);
        let Some(model) = rate(&setup) else { return };
        if (outcome.per_s - model).abs() / model > 0.15 && !is_known(&setup) {
            far.push(format!("{setup:?}: {:.0}, model {model}", outcome.per_s));
        }
    };
    for pes in [4, 8, 16] {
        for cache_pages in azekura_lab::lab::fat_btree::CACHES {
            for placement in Placement::ALL {
                look(setup(placement, pes, cache_pages));
            }
        }
    }
    for inserts in [0.1, 0.5] {
        for cache_pages in [10, 50, 200] {
            for protocol in Protocol::ALL {
                for placement in Placement::ALL {
                    let is_choice_by_range = protocol == Protocol::Lazy;
                    look(Setup {
                        protocol,
                        is_choice_by_range,
                        inserts,
                        ..setup(placement, 16, cache_pages)
                    });
                }
            }
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}
