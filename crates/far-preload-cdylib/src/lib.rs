//! The library `libazekura_far_preload.so` with the profile of the build: the tests of `azekura-far-preload`
//! load it with assertions. The library that `azekura far` loads is optimized, and part of the command.

extern crate azekura_far_preload as _;
