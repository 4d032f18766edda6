//! Builds the library that `azekura far` preloads into a program.

fn main() {
    azekura_embed::build(&azekura_embed::Embedded {
        member: "far-preload",
        file: "libazekura_far_preload.so",
        variable: "AZEKURA_FAR_PRELOAD_BUILT",
    });
}
