//! The azekura command; see the library for what it does.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    azekura_cli::run()
}
