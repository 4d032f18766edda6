//! The `azekura-lab` command: arguments in, text and exit code out.

mod kv;
mod support;
mod tpcc;
