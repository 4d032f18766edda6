//! The `azekura` command; its code is in the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    azekura_cli::run()
}
