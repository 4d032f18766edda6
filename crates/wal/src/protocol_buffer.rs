//! The buffer of records that wait for the next flush: one per log buffer, or the single one of a serial log.

use azekura_base::Lsn;

use crate::durable_lsn::DurableHorizon;
use crate::log_buffer::{Appended, Batch, LogBuffer, Refused, Totals};
use crate::lsn_range::Order;
use crate::options::{Admission, WalOptions};
#[cfg(feature = "baseline-logs")]
use crate::serial::SerialBuffer;

/// One of the log's buffers. The variant is chosen when the log is created, so each call costs one
/// well-predicted branch.
#[derive(Debug)]
#[cfg_attr(
    feature = "baseline-logs",
    expect(
        clippy::large_enum_variant,
        reason = "no indirection on each append; all buffers of a log are of one kind"
    )
)]
pub(crate) enum ProtocolBuffer {
    Parallel(LogBuffer),
    #[cfg(feature = "baseline-logs")]
    Serial(Box<SerialBuffer>),
}

impl ProtocolBuffer {
    /// Returns a buffer for these settings.
    pub(crate) fn new(options: &WalOptions, index: usize) -> Self {
        let capacity_bytes = options.buffer_bytes;
        #[cfg(feature = "baseline-logs")]
        if options.protocol.is_serial() {
            return Self::Serial(Box::new(SerialBuffer::new(capacity_bytes)));
        }
        let buffer = LogBuffer::new(index, capacity_bytes);
        Self::Parallel(buffer.with_ranges(options.lsn_range.into()))
    }

    /// Draws an LSN and copies the record into the buffer; see [`LogBuffer::append_in_order`],
    /// [`SerialBuffer::append`]. A serial log always draws a new LSN.
    #[inline]
    pub(crate) fn append(
        &self,
        horizon: &DurableHorizon,
        body: &[u8],
        admission: Admission,
        order: Order,
    ) -> Result<Appended, Refused> {
        match self {
            Self::Parallel(buffer) => buffer.append_in_order(horizon, body, admission, order),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => {
                let done = buffer.append(horizon, body, admission);
                done.map(|(lsn, was_idle)| Appended { lsn, was_idle, is_due: false })
            }
        }
    }

    /// Raises the floor, see [`LogBuffer::raise_floor`]. In a serial log every record comes after all earlier
    /// ones.
    pub(crate) fn raise_floor(&self, lsn: Lsn) {
        match self {
            Self::Parallel(buffer) => buffer.raise_floor(lsn),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(_) => {}
        }
    }

    /// Takes the buffered records; returns the LSN counter at that moment.
    pub(crate) fn take(&self, horizon: &DurableHorizon, empty: &mut Batch, admission: Admission) -> u64 {
        match self {
            Self::Parallel(buffer) => buffer.take(horizon, empty, admission),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => buffer.take(horizon, empty, admission),
        }
    }

    /// Passes the bytes of the batch that was taken last to `read`.
    pub(crate) fn with_bytes<T>(&self, taken: &Batch, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Parallel(_) => read(&taken.bytes),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => buffer.with_bytes(taken, read),
        }
    }

    pub(crate) fn wait_for_space(&self, taken: u32) {
        match self {
            Self::Parallel(buffer) => buffer.wait_for_space(taken),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => buffer.wait_for_space(taken),
        }
    }

    pub(crate) fn wake_everyone(&self) {
        match self {
            Self::Parallel(buffer) => buffer.wake_everyone(),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => buffer.wake_everyone(),
        }
    }

    pub(crate) fn mark_durable(&self, horizon: &DurableHorizon) {
        match self {
            Self::Parallel(buffer) => buffer.mark_durable(horizon),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => buffer.mark_durable(horizon),
        }
    }

    pub(crate) fn admit(&self, admission: Admission) {
        match self {
            Self::Parallel(buffer) => buffer.admit(admission),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => buffer.admit(admission),
        }
    }

    /// Limits the buffer, see [`LogBuffer::set_limit`]. The buffer of a serial log always has its full size.
    pub(crate) fn set_limit(&self, bytes: usize) {
        match self {
            Self::Parallel(buffer) => buffer.set_limit(bytes),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(_) => {}
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        match self {
            Self::Parallel(buffer) => buffer.totals(),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(buffer) => {
                let (records, bytes, draws) = buffer.totals();
                Totals { records, bytes, draws, gap_lsns: 0 }
            }
        }
    }

    /// Returns the buffer's number in the log.
    pub(crate) const fn index(&self) -> usize {
        match self {
            Self::Parallel(buffer) => buffer.index(),
            #[cfg(feature = "baseline-logs")]
            Self::Serial(_) => crate::serial::LOG_BUFFER,
        }
    }
}
