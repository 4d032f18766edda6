//! Fat-Btree.
#![forbid(unsafe_code)]
