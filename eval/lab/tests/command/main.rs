//! Tests of the `azekura-lab` command: arguments, output and exit code.

mod kv;
mod simulated;
mod support;
mod tpcc;
