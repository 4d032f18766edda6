//! Random memory calls and system calls. `AZEKURA_FAR_SEEDS=100` runs 100 programs with each mechanism
//! (default: 8 programs, one mechanism each); `AZEKURA_FAR_SEED=n` runs one with each mechanism.

use azekura_far::Mechanism;
use azekura_far::launch::Launch;

use crate::support::{launch, mechanisms, same_with};

/// Programs by default, and steps of a program.
const SEEDS: u64 = 8;
const STEPS: &str = "150";

fn var(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect(name))
}

#[test]
fn random_programs_print_the_same() {
    let (one, many) = (var("AZEKURA_FAR_SEED"), var("AZEKURA_FAR_SEEDS"));
    let seeds = one.map_or(1..=many.unwrap_or(SEEDS), |seed| seed..=seed);
    let all = mechanisms();
    for (seed, one_mechanism) in seeds.zip(all.iter().cycle()) {
        let is_each = one.is_some() || many.is_some();
        for &mechanism in if is_each { &all[..] } else { std::slice::from_ref(one_mechanism) } {
            println!("seed {seed} by {mechanism}");
            let seed = seed.to_string();
            // With SIGSEGV a child has no far memory, and only a mechanism for which the kernel waits lets a
            // parent read the memory of its child.
            let children = match mechanism {
                Mechanism::Sigsegv => "0",
                mechanism if mechanism.serves_system_calls() => "2",
                _ => "1",
            };
            let arguments = [seed.as_str(), STEPS, children];
            let paged = |server: &azekura_far::Server, mechanism| Launch {
                mechanism,
                page: 16 << 10,
                ..launch(server)
            };
            same_with("random", &arguments, paged, mechanism);
        }
    }
}
