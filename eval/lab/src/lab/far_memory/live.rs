//! Programs on a region of far memory: real faults, and real transfers to a memory server on this machine.

use std::time::{Duration, Instant};

use azekura_far::{FarMemory, Mechanism, Policy, Server};
use azekura_kernels::{Arena, Kernel};

use super::LabError;
use super::cell::Cell;

/// Smallest number of local pages, because one instruction can access several pages at once.
const LEAST_LOCAL: usize = 8;
/// Time without an answer after which the server, a thread of this process, counts as lost. A busy machine
/// may not run it for some seconds.
const STALL: Duration = Duration::from_secs(60);

/// Settings of real paging.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// Mechanism that detects accesses to pages.
    pub mechanism: Mechanism,
    /// Enables prefetching, which the paper's system does not have.
    pub prefetch: bool,
}

impl Live {
    /// Runs a program once with a policy and checks its verification.
    pub(super) fn run(
        self,
        kernel: Kernel,
        policy: Policy,
        local: u32,
        page_bytes: usize,
        seed: u64,
    ) -> Result<Cell, LabError> {
        let pages = kernel.bytes().div_ceil(page_bytes).max(LEAST_LOCAL);
        let frames = (pages * local as usize / 100).max(LEAST_LOCAL);
        let capacity = 2 * (pages * page_bytes) as u64 + (64 << 20);
        let server = Server::builder().capacity(capacity).listen("127.0.0.1:0").map_err(LabError::Server)?;
        let mut memory = FarMemory::builder()
            .bytes(pages * page_bytes)
            .local(frames * page_bytes)
            .page(page_bytes)
            .servers([server.address().to_string()])
            .policy(policy)
            .mechanism(self.mechanism)
            .prefetch(self.prefetch)
            .stall(STALL)
            .seed(seed)
            .build()
            .map_err(|source| LabError::Region { kernel, policy, source })?;
        let began = Instant::now();
        let verdict = kernel.run(&mut Arena::of_zeroed(&mut memory));
        let total = began.elapsed().as_secs_f64();
        let verdict = verdict.map_err(|source| LabError::Memory { kernel, source })?;
        if !verdict.verified() {
            return Err(LabError::Wrong { kernel, policy, local, verdict });
        }
        let stats = memory.stats();
        let seconds = |ns: u64| ns as f64 * 1e-9;
        let (clear_s, set_s, swap_s) =
            (seconds(stats.clear_ns), seconds(stats.set_ns), seconds(stats.swap_ns));
        Ok(Cell {
            kernel: kernel.to_string(),
            policy: policy.to_string(),
            local,
            pages: pages as u32,
            frames: frames as u32,
            optimal: 0,
            swap_ins: stats.swap_ins + stats.prefetches,
            swap_outs: stats.swap_outs + stats.clean_drops + stats.zero_drops,
            write_backs: stats.swap_outs,
            bits_set: stats.bits_set,
            bits_cleared: stats.bits_cleared,
            clear_s,
            set_s,
            swap_s,
            // Bits are cleared in parallel to the program, so this difference can be a little too small.
            compute_s: (total - clear_s - set_s - swap_s).max(0.0),
            clear_interval_ms: None,
        })
    }
}
