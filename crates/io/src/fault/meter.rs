//! `Meter`: counts all I/Os, records the last ones, and decides which I/Os fail.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use crate::error::{os, power_cut};

/// Number of recent I/Os that are recorded.
const REMEMBERED: usize = 256;

/// The kinds of calls that are counted as I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum IoKind {
    /// A file was created by opening or locking it.
    Create,
    /// A directory was created; each new directory counts.
    CreateDir,
    /// [`File::write_at`](crate::File::write_at).
    WriteAt,
    /// [`File::write_at_sync`](crate::File::write_at_sync).
    WriteAtSync,
    /// [`File::write_zeroes`](crate::File::write_zeroes).
    WriteZeroes,
    /// [`File::set_len`](crate::File::set_len).
    SetLen,
    /// [`File::sync`](crate::File::sync).
    Sync,
    /// [`Fs::rename`](crate::Fs::rename).
    Rename,
    /// [`Fs::remove_file`](crate::Fs::remove_file).
    Remove,
    /// [`Fs::sync_dir`](crate::Fs::sync_dir).
    SyncDir,
}

/// A failure to inject while the power stays on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailKind {
    /// EIO. Any sectors of a write may have been written.
    Io,
    /// ENOSPC. A prefix of a write may have been written.
    NoSpace,
    /// EDQUOT: like ENOSPC, but for the user's quota.
    Quota,
}

impl FailKind {
    pub(crate) fn error(self) -> io::Error {
        os(match self {
            Self::Io => Errno::IO,
            Self::NoSpace => Errno::NOSPC,
            Self::Quota => Errno::DQUOT,
        })
    }
}

/// The record of one I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoRecord {
    /// Number of the I/O, from 1.
    pub number: u64,
    /// Kind of the call.
    pub kind: IoKind,
    /// The file's name when it was opened; for a rename, both names.
    pub path: Arc<str>,
    /// Offset of a write.
    pub offset: u64,
    /// Number of bytes of a write; for `set_len` the length.
    pub len: u64,
    /// `None` if the I/O succeeded. Otherwise the reason of the failure: `"EIO"`, `"ENOSPC"`, `"EDQUOT"`,
    /// `"power cut"`.
    pub failure: Option<&'static str>,
}

impl std::fmt::Display for IoRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{} {:?} {}", self.number, self.kind, self.path)?;
        match self.kind {
            IoKind::WriteAt | IoKind::WriteAtSync | IoKind::WriteZeroes => {
                write!(f, " {}+{}", self.offset, self.len)?;
            }
            IoKind::SetLen => write!(f, " {}", self.len)?,
            _ => {}
        }
        self.failure.map_or(Ok(()), |failure| write!(f, " ({failure})"))
    }
}

/// Decision about an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    Fails(FailKind),
    /// The power is cut during the I/O, so its effect is unknown.
    Cut,
}

impl Verdict {
    /// Returns the result for the caller.
    pub(crate) fn result(self) -> io::Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::Fails(kind) => Err(kind.error()),
            Self::Cut => Err(power_cut()),
        }
    }

    const fn failure(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Fails(FailKind::Io) => Some("EIO"),
            Self::Fails(FailKind::NoSpace) => Some("ENOSPC"),
            Self::Fails(FailKind::Quota) => Some("EDQUOT"),
            Self::Cut => Some("power cut"),
        }
    }
}

/// Counters, recorded I/Os, and planned failures. I/Os are numbered from the creation of the file system; the
/// first is 1.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    ios: u64,
    reads: u64,
    kinds: BTreeMap<IoKind, u64>,
    last: VecDeque<IoRecord>,
    power_is_off: bool,
    cut_at: Option<u64>,
    fail_at: BTreeMap<u64, FailKind>,
    fail_from: Option<(u64, FailKind)>,
    full_from: Option<u64>,
    fail_read_at: Option<u64>,
    lookups: u64,
    fail_lookup_at: Option<u64>,
}

/// A requested I/O.
pub(crate) struct Request<'a> {
    pub(crate) kind: IoKind,
    pub(crate) path: &'a Arc<str>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// `true` if the call needs space on the disk.
    pub(crate) needs_space: bool,
}

impl Meter {
    /// Fails if the power is off.
    pub(crate) fn check_power(&self) -> io::Result<()> {
        if self.power_is_off { Err(power_cut()) } else { Ok(()) }
    }

    /// Counts an I/O and decides about it; returns its number.
    pub(crate) fn begin(&mut self, request: &Request<'_>) -> io::Result<(u64, Verdict)> {
        self.check_power()?;
        self.ios += 1;
        *self.kinds.entry(request.kind).or_default() += 1;
        let verdict = self.verdict(request.needs_space);
        self.power_is_off = verdict == Verdict::Cut;
        self.remember(request, verdict);
        Ok((self.ios, verdict))
    }

    fn verdict(&mut self, needs_space: bool) -> Verdict {
        let io = self.ios;
        let from = |from: Option<u64>| from.is_some_and(|from| io >= from);
        if from(self.cut_at) {
            Verdict::Cut
        } else if let Some(kind) = self.fail_at.remove(&io) {
            Verdict::Fails(kind)
        } else if let Some((_, kind)) = self.fail_from.filter(|&(first, _)| io >= first) {
            Verdict::Fails(kind)
        } else if needs_space && from(self.full_from) {
            Verdict::Fails(FailKind::NoSpace)
        } else {
            Verdict::Done
        }
    }

    fn remember(&mut self, request: &Request<'_>, verdict: Verdict) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(IoRecord {
            number: self.ios,
            kind: request.kind,
            path: Arc::clone(request.path),
            offset: request.offset,
            len: request.len,
            failure: verdict.failure(),
        });
    }

    /// Counts a read and decides about it.
    pub(crate) fn begin_read(&mut self) -> io::Result<()> {
        self.check_power()?;
        self.reads += 1;
        if self.fail_read_at.take_if(|at| *at == self.reads).is_some() {
            return Err(FailKind::Io.error());
        }
        Ok(())
    }

    /// Counts a lookup and decides about it.
    pub(crate) fn begin_lookup(&mut self) -> io::Result<()> {
        self.check_power()?;
        self.lookups += 1;
        if self.fail_lookup_at.take_if(|at| *at == self.lookups).is_some() {
            return Err(FailKind::Io.error());
        }
        Ok(())
    }

    pub(crate) fn cut_at(&mut self, n: u64) {
        self.power_is_off |= n == 0;
        self.cut_at = Some(self.ios + n);
    }

    pub(crate) const fn power_is_off(&self) -> bool {
        self.power_is_off
    }

    pub(crate) fn fail_at(&mut self, n: u64, kind: FailKind) {
        self.fail_at.insert(self.ios + n, kind);
    }

    pub(crate) const fn fail_from(&mut self, n: u64, kind: FailKind) {
        self.fail_from = Some((self.ios + n, kind));
    }

    pub(crate) const fn full_from(&mut self, n: u64) {
        self.full_from = Some(self.ios + n);
    }

    pub(crate) const fn fail_read_at(&mut self, n: u64) {
        self.fail_read_at = Some(self.reads + n);
    }

    pub(crate) const fn fail_lookup_at(&mut self, n: u64) {
        self.fail_lookup_at = Some(self.lookups + n);
    }

    /// Cancels all planned failures. Power that is off stays off.
    pub(crate) fn heal(&mut self) {
        self.cut_at = None;
        self.fail_at.clear();
        self.fail_from = None;
        self.full_from = None;
        self.fail_read_at = None;
        self.fail_lookup_at = None;
    }

    pub(crate) const fn ios(&self) -> u64 {
        self.ios
    }

    pub(crate) const fn reads(&self) -> u64 {
        self.reads
    }

    pub(crate) const fn lookups(&self) -> u64 {
        self.lookups
    }

    pub(crate) fn of_kind(&self, kind: IoKind) -> u64 {
        self.kinds.get(&kind).copied().unwrap_or(0)
    }

    pub(crate) fn last(&self) -> impl Iterator<Item = &IoRecord> {
        self.last.iter()
    }
}
