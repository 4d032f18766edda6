//! Builds the library that is preloaded into recorded programs.

fn main() {
    azekura_embed::build(&azekura_embed::Embedded {
        member: "preload",
        file: "libazekura_preload.so",
        variable: "AZEKURA_PRELOAD_BUILT",
    });
}
