//! Tests of the `azekura-lab` command: arguments, output and exit code.

mod kv;
mod support;
mod tpcc;
