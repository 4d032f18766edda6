//! `azekura-lab`: the evaluations of the five papers, the store's workloads, and simulated machines.

#![forbid(unsafe_code)]

mod command;

use std::process::ExitCode;

// Makes simulations reproducible: a block shares no cache line with blocks that happened to be allocated
// before it.
#[cfg(feature = "sim")]
#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn main() -> ExitCode {
    // Labs that need a memory server or `azekura far` start this program as `azekura-lab azekura ...`.
    let mut arguments = std::env::args_os();
    if std::env::args_os().nth(1).is_some_and(|first| first == "azekura") {
        arguments.next();
        return azekura_cli::run_from(arguments);
    }
    match azekura_cli::parse::<command::Arguments>("azekura-lab", arguments) {
        Ok(arguments) => azekura_cli::run_command("azekura-lab", |out| arguments.run(out)),
        Err(code) => code,
    }
}
