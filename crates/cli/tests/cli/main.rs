//! Tests of the command from outside: arguments in, text and exit code out.

mod backup;
mod cluster;
mod demo;
mod far;
mod guide;
mod inherited;
mod load;
mod log;
mod rows;
mod serve;
mod support;
mod usage;
mod whole;
