//! Recording of a program's page accesses.

use azekura_far::replace::replay::{Trace, optimal_swap_ins};
use azekura_kernels::{Kernel, Recorder};

use super::LabError;

/// Accesses per epoch: few enough that no policy would page the same page out and in within one epoch.
const EPOCH: u32 = 256;
/// Accesses per epoch of a program with about 36 arrays and many pages. In this time it accesses no more
/// pages than other programs in `EPOCH`.
const EPOCH_OF_MANY_ARRAYS: u32 = 1024;
/// Default limit of recorded accesses. Time steps repeat, and SP alone has hundreds of them.
pub const TOUCHES: usize = 16_777_216;

/// A program with its trace.
#[derive(Debug)]
pub struct Recorded {
    pub(super) kernel: Kernel,
    pub(super) trace: Trace,
    /// The trace has only the beginning of the program.
    pub(super) cut: bool,
}

impl Recorded {
    /// Runs the program once and records at most `most_touches` page accesses, at 8 bytes each.
    ///
    /// # Errors
    ///
    /// If the program needs more memory, or its verification fails.
    ///
    /// # Panics
    ///
    /// If the page size is not a power of two.
    pub fn of(kernel: Kernel, page_bytes: usize, most_touches: usize) -> Result<Self, LabError> {
        let epoch = epoch(kernel, page_bytes);
        let mut memory = Recorder::limited(page_bytes, epoch, most_touches);
        let verdict = kernel.run(&mut memory).map_err(|source| LabError::Memory { kernel, source })?;
        if !verdict.verified() {
            return Err(LabError::Unverified { kernel, verdict });
        }
        let recording = memory.finish();
        let trace = Trace::of_epochs(epoch, &recording.touches, &recording.epochs);
        Ok(Self { kernel, trace, cut: recording.cut })
    }

    /// Returns the number of frames for a share of local memory in percent.
    #[must_use]
    pub fn frames(&self, local: u32) -> u32 {
        let frames = u64::from(self.trace.pages()) * u64::from(local) / 100;
        u32::try_from(frames).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the minimum number of swaps with any policy.
    #[must_use]
    pub fn optimal(&self, local: u32) -> u64 {
        optimal_swap_ins(&self.trace, self.frames(local))
    }
}

fn epoch(kernel: Kernel, page_bytes: usize) -> u32 {
    match kernel {
        Kernel::Sp(_) if kernel.bytes() / page_bytes >= 1024 => EPOCH_OF_MANY_ARRAYS,
        _ => EPOCH,
    }
}
