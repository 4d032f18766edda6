//! The `azekura` command; its code is in the library.

#![deny(unsafe_code)]

fn main() -> std::process::ExitCode {
    azekura_cli::run()
}

/// Called by the loader before Rust's runtime changes what this process inherited.
#[cfg(target_os = "linux")]
#[used]
#[expect(
    unsafe_code,
    reason = "a function of the loader's table, which takes no argument and allocates nothing"
)]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = azekura_base::inherited::note;
