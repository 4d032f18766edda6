//! Cost of one lock and its release.
fn main() {}
