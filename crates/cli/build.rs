//! Builds the library that `azekura far` puts before a program's own.

fn main() {
    azekura_embed::build(&azekura_embed::Embedded {
        member: "far-preload",
        file: "libazekura_far_preload.so",
        variable: "AZEKURA_FAR_PRELOAD_BUILT",
    });
}
