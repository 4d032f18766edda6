//! Where records wait for the next flush: a worker's own buffer, or the serial log's one.

use azekura_base::Lsn;

use crate::durable_lsn::DurableHorizon;
use crate::lsn_range::Order;
use crate::options::{Admission, LogProtocol, WalOptions};
use crate::serial::SerialBuffer;
use crate::worker_buffer::{Appended, Batch, Refused, Totals, WorkerBuffer};

/// One of the log's buffers. The choice is made when the log is created: one well-predicted branch per call.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a look less for each record; there are as many as workers, all of one kind"
)]
pub(crate) enum LogBuffer {
    Worker(WorkerBuffer),
    Serial(Box<SerialBuffer>),
}

impl LogBuffer {
    /// A buffer as these settings have it.
    pub(crate) fn new(options: &WalOptions, worker: usize) -> Self {
        let capacity_bytes = options.buffer_bytes;
        let buffer = match options.protocol {
            LogProtocol::Serial => return Self::Serial(Box::new(SerialBuffer::new(capacity_bytes))),
            LogProtocol::PWal | LogProtocol::Epoch { .. } => WorkerBuffer::new(worker, capacity_bytes),
        };
        Self::Worker(buffer.with_ranges(options.lsn_range.into()))
    }

    /// Draws an LSN and copies the record in; see [`WorkerBuffer::append_in_order`],
    /// [`SerialBuffer::append`]. In a serial log every record is the newest.
    #[inline]
    pub(crate) fn append(
        &self,
        horizon: &DurableHorizon,
        body: &[u8],
        admission: Admission,
        order: Order,
    ) -> Result<Appended, Refused> {
        match self {
            Self::Worker(buffer) => buffer.append_in_order(horizon, body, admission, order),
            Self::Serial(buffer) => {
                let done = buffer.append(horizon, body, admission);
                done.map(|(lsn, was_idle)| Appended { lsn, was_idle })
            }
        }
    }

    /// See [`WorkerBuffer::raise_floor`]. In a serial log every record comes after all before.
    pub(crate) fn raise_floor(&self, lsn: Lsn) {
        if let Self::Worker(buffer) = self {
            buffer.raise_floor(lsn);
        }
    }

    /// Takes what is buffered; returns the LSN counter at that moment.
    pub(crate) fn take(&self, horizon: &DurableHorizon, empty: &mut Batch, admission: Admission) -> u64 {
        match self {
            Self::Worker(buffer) => buffer.take(horizon, empty, admission),
            Self::Serial(buffer) => buffer.take(horizon, empty, admission),
        }
    }

    /// Lends the bytes of the batch that was taken last.
    pub(crate) fn with_bytes<T>(&self, taken: &Batch, read: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Self::Worker(_) => read(&taken.bytes),
            Self::Serial(buffer) => buffer.with_bytes(taken, read),
        }
    }

    pub(crate) fn wait_for_space(&self, taken: u32) {
        match self {
            Self::Worker(buffer) => buffer.wait_for_space(taken),
            Self::Serial(buffer) => buffer.wait_for_space(taken),
        }
    }

    pub(crate) fn wake_everyone(&self) {
        match self {
            Self::Worker(buffer) => buffer.wake_everyone(),
            Self::Serial(buffer) => buffer.wake_everyone(),
        }
    }

    pub(crate) fn settle(&self, horizon: &DurableHorizon) {
        match self {
            Self::Worker(buffer) => buffer.settle(horizon),
            Self::Serial(buffer) => buffer.settle(horizon),
        }
    }

    pub(crate) fn admit(&self, admission: Admission) {
        match self {
            Self::Worker(buffer) => buffer.admit(admission),
            Self::Serial(buffer) => buffer.admit(admission),
        }
    }

    /// See [`WorkerBuffer::set_limit`]; the serial log's buffer always has its full size.
    pub(crate) fn set_limit(&self, bytes: usize) {
        if let Self::Worker(buffer) = self {
            buffer.set_limit(bytes);
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        match self {
            Self::Worker(buffer) => buffer.totals(),
            Self::Serial(buffer) => {
                let (records, bytes, draws) = buffer.totals();
                Totals { records, bytes, draws, gap_lsns: 0 }
            }
        }
    }

    /// The buffer's number among the log's workers.
    pub(crate) const fn worker(&self) -> usize {
        match self {
            Self::Worker(buffer) => buffer.worker(),
            Self::Serial(_) => crate::serial::WORKER,
        }
    }
}
