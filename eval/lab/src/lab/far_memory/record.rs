//! A program's touches of pages.

use azekura_far::replace::replay::{Trace, optimal_swap_ins};
use azekura_kernels::{Kernel, Recorder};

use super::LabError;

/// Accesses of an epoch: few enough that no policy would want a page out and in again within one.
const EPOCH: u32 = 256;
/// The same for a program with three dozen arrays side by side and pages enough for them: it touches no more
/// pages in it.
const EPOCH_OF_MANY_ARRAYS: u32 = 1024;
/// Touches of a recording, unless told otherwise: time steps repeat themselves, and SP alone has hundreds.
pub const TOUCHES: usize = 16_777_216;

/// A program and its trace.
#[derive(Debug)]
pub struct Recorded {
    pub(super) kernel: Kernel,
    pub(super) trace: Trace,
    /// The trace has only the program's beginning.
    pub(super) cut: bool,
}

impl Recorded {
    /// Runs the program once, and remembers so many touches of pages at most, for 8 bytes each.
    ///
    /// # Errors
    ///
    /// If its verification fails.
    ///
    /// # Panics
    ///
    /// If the page is no power of two.
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

    /// Frames of a share of local memory.
    #[must_use]
    pub fn frames(&self, local: u32) -> u32 {
        let frames = u64::from(self.trace.pages()) * u64::from(local) / 100;
        u32::try_from(frames).unwrap_or(u32::MAX).max(1)
    }

    /// Swaps that no policy avoids.
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
