//! Where records wait for the next flush: a worker's own buffer, or the serial log's one.

use azekura_base::Lsn;

use crate::durable_lsn::DurableHorizon;
use crate::options::{Admission, LogProtocol};
use crate::serial::SerialBuffer;
use crate::worker_buffer::{Batch, Refused, WorkerBuffer};

/// One of the log's buffers. The choice is made when the log is created: one well-predicted branch per call.
#[derive(Debug)]
pub(crate) enum LogBuffer {
    Worker(WorkerBuffer),
    Serial(Box<SerialBuffer>),
}

/// What has gone through a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) records: u64,
    /// Bytes of the records with their frames.
    pub(crate) bytes: u64,
    /// Writes to the LSN counter.
    pub(crate) draws: u64,
}

impl LogBuffer {
    pub(crate) fn new(protocol: LogProtocol, worker: usize, capacity_bytes: usize) -> Self {
        match protocol {
            LogProtocol::Serial => Self::Serial(Box::new(SerialBuffer::new(capacity_bytes))),
            LogProtocol::PWal | LogProtocol::Epoch { .. } => {
                Self::Worker(WorkerBuffer::new(worker, capacity_bytes))
            }
        }
    }

    /// Draws an LSN and copies the record in; see [`WorkerBuffer::append`], [`SerialBuffer::append`].
    #[inline]
    pub(crate) fn append(
        &self,
        horizon: &DurableHorizon,
        body: &[u8],
        admission: Admission,
    ) -> Result<(Lsn, bool), Refused> {
        match self {
            Self::Worker(buffer) => buffer.append(horizon, body, admission),
            Self::Serial(buffer) => buffer.append(horizon, body, admission),
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

    pub(crate) fn wait_for_room(&self, taken: u32) {
        match self {
            Self::Worker(buffer) => buffer.wait_for_room(taken),
            Self::Serial(buffer) => buffer.wait_for_room(taken),
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

    pub(crate) fn totals(&self) -> Totals {
        match self {
            Self::Worker(buffer) => {
                let (records, bytes) = buffer.totals();
                Totals { records, bytes, draws: records }
            }
            Self::Serial(buffer) => {
                let (records, bytes, draws) = buffer.totals();
                Totals { records, bytes, draws }
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
