//! `RestartLog`: the log of a store during and after its restart.

use std::sync::{Arc, OnceLock};

use azekura_base::sync::Mutex;
use azekura_base::{DurableLog, LogFailed, Lsn, PageId};
use azekura_buffer::FixError;
use azekura_wal::{AppendError, LogBufferId, Order, Wal};

use crate::Error;
use crate::timeline::Timeline;

/// The log for the page cache and the trees. During a restart, all replayed records count as durable.
/// Afterward, all calls use the new log.
#[derive(Debug)]
pub(super) struct RestartLog {
    wal: OnceLock<NewLog>,
    /// LSN below which records are not redone.
    redo_lsn: Lsn,
    /// The timeline in CONTROL at the beginning of the restart.
    timeline: Timeline,
    /// The largest LSN of a page that was read before the new log replaced the old one, and that page.
    newest_read: Mutex<(Lsn, PageId)>,
}

#[derive(Debug)]
struct NewLog {
    wal: Arc<Wal>,
    timeline: Timeline,
}

impl RestartLog {
    pub(super) const fn new(redo_lsn: Lsn, timeline: Timeline) -> Self {
        let newest_read = Mutex::new((Lsn(0), PageId(0)));
        Self { wal: OnceLock::new(), redo_lsn, timeline, newest_read }
    }

    pub(super) fn switch_to(&self, wal: Arc<Wal>, timeline: Timeline) {
        assert!(self.wal.set(NewLog { wal, timeline }).is_ok(), "a restart begins one log");
    }

    fn wal(&self) -> Option<&Wal> {
        self.wal.get().map(|new| &*new.wal)
    }

    /// Checks that no page read so far is newer than the log, which ends with `end`. A page is written only
    /// after its log records are durable (W7), so a newer page shows that log was lost.
    pub(super) fn check_pages_read(&self, end: Lsn) -> Result<(), Error> {
        let (lsn, page_id) = *self.newest_read.lock();
        if lsn <= end { Ok(()) } else { Err(FixError::Foreign { page_id, lsn }.into()) }
    }
}

impl DurableLog for RestartLog {
    fn next_lsn(&self) -> Lsn {
        // During redo, threads are at different LSNs; `redo_lsn` is a lower bound for all of them.
        self.wal().map_or(self.redo_lsn, DurableLog::next_lsn)
    }

    fn lsn_bound(&self) -> Lsn {
        self.wal().map_or(self.redo_lsn, DurableLog::lsn_bound)
    }

    fn durable_lsn(&self) -> Lsn {
        self.wal().map_or(Lsn::MAX, DurableLog::durable_lsn)
    }

    fn is_possible(&self, page_id: PageId, page_lsn: Lsn) -> bool {
        let Some(new) = self.wal.get() else {
            let mut newest = self.newest_read.lock();
            *newest = (*newest).max((page_lsn, page_id));
            return !self.timeline.is_in_gap(page_lsn);
        };
        // The bound is checked first, because it is cheaper and usually sufficient.
        let is_durable = page_lsn < new.wal.lsn_bound() || page_lsn <= new.wal.durable_lsn();
        is_durable && !new.timeline.is_in_gap(page_lsn)
    }

    fn make_durable(&self, lsn: Lsn) -> Result<(), LogFailed> {
        self.wal().map_or(Ok(()), |wal| wal.make_durable(lsn))
    }
}

impl azekura_btree::Log for RestartLog {
    fn append(&self, log_buffer: LogBufferId, body: &[u8], order: Order) -> Result<Lsn, AppendError> {
        match self.wal() {
            Some(wal) => wal.append_in_order(log_buffer, body, order),
            None => Err(LogFailed { reason: "the log accepts no records during its replay".into() }.into()),
        }
    }
}
