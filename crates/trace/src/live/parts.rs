//! Parts for a recorder that records other processes; [`area`](crate::area) describes their shared memory.

pub use super::clock::{cpu_ns_of, process_cpu_ns_of, thread_id};
pub use super::clock::{sample, ticks, time_source};
pub use super::machine::{cpu_ns as machine_cpu_ns, parse_maps, processors};
pub use super::quota::CpuQuotas;
pub use super::sample_counts::SampleCounts;
pub use super::sampler::Sampler;
pub use super::session::session_info;
pub use super::signal::sender_of;
pub use super::track::{Track, When};

/// Determines this machine's clock and its method of detecting switches, once. May allocate.
pub fn detect_clock() {
    let _ = time_source();
    let _ = super::cpu::SwitchWord::of_thread();
}
