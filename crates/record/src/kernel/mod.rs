//! Events that only the kernel sees, by `perf_event_open`: context switches, calls of functions, futexes of
//! a running process.
//!
//! | event | mechanism | needs |
//! |---|---|---|
//! | `switches`: times off the processors, preemption | `PERF_RECORD_SWITCH` | perf_event_paranoid up to 2 |
//! | samples of the program counter: spin loops | `PERF_COUNT_SW_CPU_CLOCK` | as switches |
//! | `functions`: operations by function symbols | uprobes at entry and return | root or CAP_PERFMON |
//! | [`attach`]: waits of a running process | tracepoints of the futex calls | root or CAP_PERFMON |
//!
//! All of it is on `CLOCK_MONOTONIC`, to which the recorder's own clock is calibrated (hazard T3). A switch
//! with a record costs 1 microsecond more, a probed call about 6 (two traps). Records that found no room are
//! counted (hazard T2).
//!
//! Rings are drained by a thread that is started before the events are opened, so that it does not inherit
//! them.

mod attach;
mod drain;
mod functions;
mod futexes;
mod merge;
mod seen;
mod tracepoints;
mod watch;

pub use attach::attach;
pub use functions::{Function, program};
pub use seen::{Kernel, Seen};
pub use watch::{Target, Watch, Watched};
