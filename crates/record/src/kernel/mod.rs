//! Events that only the kernel can record, through `perf_event_open`: context switches, calls of functions,
//! and futex calls of a running process.
//!
//! | event | mechanism | needs |
//! |---|---|---|
//! | `switches`: times off the processors, preemption | `PERF_RECORD_SWITCH` | perf_event_paranoid up to 2 |
//! | page faults that waited for a device | `PERF_COUNT_SW_PAGE_FAULTS_MAJ` | as switches |
//! | samples of the program counter: spin loops | `PERF_COUNT_SW_CPU_CLOCK` | as switches |
//! | `functions`: operations by function symbols | uprobes at entry and return | root or CAP_PERFMON |
//! | [`attach`]: waits of a running process | tracepoints of the futex calls | root or CAP_PERFMON |
//!
//! All records use `CLOCK_MONOTONIC`, to which the recorder's own clock is calibrated (hazard T3). Recording
//! a switch costs 1 microsecond, and recording a call about 6 microseconds (two traps). Records that did not
//! fit into a ring are counted (hazard T2).
//!
//! The thread that drains the rings is started before the events are opened, so that it does not inherit
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
pub use seen::{Kernel, KernelRecords};
pub use watch::{Target, Watch, Watched};
