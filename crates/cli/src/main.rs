//! The azekura command; see the library for what it does.

#![forbid(unsafe_code)]

// One seed, one answer: blocks that share no cache line with what happened to be allocated before.
#[cfg(feature = "sim")]
#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn main() -> std::process::ExitCode {
    azekura_cli::run()
}
