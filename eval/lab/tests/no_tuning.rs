//! The adaptive policy needs no tuning, which is an open problem of the far-memory paper (§3.3, §4). Programs
//! of the paper's evaluation are recorded here and replayed. The policy never makes more swaps than Simple,
//! and at most 1.10 times the swaps of the best of the paper's eight policies. If there are so few swaps that
//! random choices decide, the mean over seeds must hold instead, with one exception at 1.25. The programs
//! include some that were not used to develop the policy.
//!
//! The counts are those of a replay, so they are the same on every machine. `azekura-lab far-memory` has the
//! larger sizes, and CG.

use azekura_far::Policy;
use azekura_far::replace::replay::{Costs, Trace, replay};
use azekura_kernels::{Kernel, Recorder};

const PAGE: usize = 4096;
const EPOCH: u32 = 256;
const SEED: u64 = 1;
const SEEDS: [u64; 3] = [1, 2, 3];
/// Number of swaps below which random choices decide a case: is.s and cluster.200 with three quarters local.
const FEW: u64 = 100;
const MANY_SEEDS: std::ops::RangeInclusive<u64> = 1..=40;

fn record(kernel: &str) -> Trace {
    let kernel: Kernel = kernel.parse().expect("there is such a program");
    let mut memory = Recorder::new(PAGE, EPOCH);
    assert!(kernel.run(&mut memory).expect("it has no limit").verified(), "{kernel}");
    let recording = memory.finish();
    Trace::of_epochs(EPOCH, &recording.touches, &recording.epochs)
}

fn swaps(trace: &Trace, policy: Policy, local: u32, seed: u64) -> u64 {
    let costs = Costs::PAPER.scaled((1 << 20) as f64 / PAGE as f64);
    replay(trace, policy, trace.pages() * local / 100, &costs, seed).swap_ins
}

/// Calls `check` for each share of local memory and each seed, with the swaps of the adaptive policy, of
/// Simple, and of the best of the eight, with the name of the last.
fn each_case(kernel: &str, check: impl Fn(&str, u64, u64, (u64, Policy))) {
    let trace = record(kernel);
    for local in [75, 50, 25] {
        for seed in SEEDS {
            let swaps = |policy| swaps(&trace, policy, local, seed);
            let best = Policy::PAPER.map(|policy| (swaps(policy), policy));
            let best = best.into_iter().min_by_key(|&(swaps, _)| swaps).expect("there are eight");
            let case = format!("{kernel}, {local} % local, seed {seed}");
            check(&case, swaps(Policy::Adaptive), swaps(Policy::Simple), best);
        }
    }
}

#[test]
fn the_adaptive_policy_never_swaps_more_than_simple() {
    for kernel in ["himeno.xs", "is.s", "ft.s", "mg.s", "sp.s", "cluster.200"] {
        each_case(kernel, |case, ours, simple, _| {
            assert!(ours <= simple, "{case}: {ours} swaps, Simple {simple}");
        });
    }
}

#[test]
fn the_adaptive_policy_is_near_the_best_of_the_eight_whichever_that_is() {
    for kernel in ["himeno.xs", "is.s", "ft.s", "mg.s", "sp.s", "cluster.200"] {
        each_case(kernel, |case, ours, _, (best, policy)| {
            assert!(
                ours * 10 <= best * 11 || best < FEW,
                "{case}: {ours} swaps, the best of the eight {best} ({policy})"
            );
        });
    }
}

#[test]
fn where_few_swaps_are_a_matter_of_lot_the_adaptive_policy_is_near_the_best_of_the_eight_in_the_mean() {
    // For cluster.200 the best are U-pLRU and U-Clock, with 29 and 30 swaps and no random choices; the others
    // make 44 or more.
    for (kernel, hundredths) in [("is.s", 110), ("cluster.200", 125)] {
        let trace = record(kernel);
        let (mut ours, mut best) = (0, 0);
        for seed in MANY_SEEDS {
            let swaps = |policy| swaps(&trace, policy, 75, seed);
            let (adaptive, simple) = (swaps(Policy::Adaptive), swaps(Policy::Simple));
            assert!(adaptive <= simple, "{kernel}, seed {seed}: {adaptive} swaps, Simple {simple}");
            ours += adaptive;
            best += Policy::PAPER.map(swaps).into_iter().min().expect("there are eight");
        }
        assert!(ours * 100 <= best * hundredths, "{kernel}: {ours} swaps, the best of the eight {best}");
    }
}

/// Costs in nanoseconds, measured on one machine: pages of 64 KiB over the loopback interface, where a swap
/// takes as long as clearing three bits.
const CHEAP: Costs =
    Costs { access: 32.0, swap_in: 130_000.0, write_back: 40_000.0, fault: 35_000.0, protect: 5_000.0 };

#[test]
fn with_swaps_as_quick_as_cleared_bits_the_adaptive_policy_is_no_slower_than_swap_in_history() {
    for kernel in ["himeno.xs", "is.s", "mg.s", "cluster.200"] {
        let trace = record(kernel);
        for local in [75, 50, 25] {
            for swap_in in [1.0, 2.0, 3.0].map(|times| times * CHEAP.swap_in) {
                let costs = Costs { swap_in, ..CHEAP };
                let run = |policy| replay(&trace, policy, trace.pages() * local / 100, &costs, SEED);
                let (ours, history) = (run(Policy::Adaptive), run(Policy::SwapInHistory));
                let (took, wanted) = (ours.total_ns(), 1.1 * history.total_ns());
                assert!(
                    took <= wanted,
                    "{kernel}, {local} % local, {swap_in} ns: {took} ns, at most {wanted}"
                );
                assert_eq!(run(Policy::Adaptive), ours, "the same each time");
            }
        }
    }
}
