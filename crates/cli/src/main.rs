//! The azekura command.
fn main() {}
