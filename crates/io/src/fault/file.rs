//! `FaultFile`: an open file of a [`FaultFs`](super::FaultFs).

use std::io;
use std::sync::Arc;

use azekura_base::sync::MutexGuard;
use rustix::io::Errno;

use super::choice::Choice;
use super::inode::{Bytes, Inode};
use super::meter::{FailKind, IoKind, Request, Verdict};
use super::names::Node;
use super::sectors::Sectors;
use super::{Disk, State};
use crate::error::{check_aligned, check_aligned_range, check_end, os};
use crate::fs::{File, OpenOptions};
use crate::image::MAX_LEN;

/// An open file.
#[derive(Debug)]
pub(super) struct FaultFile {
    disk: Arc<Disk>,
    node: Arc<Node>,
    /// The name at the opening, for messages.
    path: Arc<str>,
    alignment: usize,
    read_only: bool,
}

impl FaultFile {
    pub(super) fn new(disk: Arc<Disk>, node: Arc<Node>, path: Arc<str>, options: OpenOptions) -> Self {
        let alignment = if options.direct { disk.alignment } else { 1 };
        Self { disk, node, path, alignment, read_only: options.read_only }
    }

    /// Counts a call on this file and decides about it. The returned guards serialize I/Os of all files.
    fn begin(
        &self,
        kind: IoKind,
        offset: u64,
        len: u64,
    ) -> io::Result<(u64, Verdict, MutexGuard<'_, State>, MutexGuard<'_, Inode>)> {
        let mut state = self.disk.state.lock();
        let inode = self.node.lock();
        let is_write = matches!(kind, IoKind::WriteAt | IoKind::WriteAtSync | IoKind::WriteZeroes);
        let needs_space = is_write && inode.needs_space(offset, len);
        let (io, verdict) =
            state.meter.begin(&Request { kind, path: &self.path, offset, len, needs_space })?;
        Ok((io, verdict, state, inode))
    }

    fn write(&self, kind: IoKind, offset: u64, bytes: Bytes) -> io::Result<()> {
        self.check_writable(offset, bytes.len())?;
        let (io, verdict, _state, mut inode) = self.begin(kind, offset, bytes.len())?;
        match verdict {
            Verdict::Done if kind == IoKind::WriteAtSync => inode.write_durable(io, offset, bytes),
            Verdict::Done | Verdict::Cut => inode.write(io, offset, bytes),
            Verdict::Fails(FailKind::Io) if kind == IoKind::WriteAtSync => {
                inode.write(io, offset, bytes);
                inode.forget_io(io); // the bytes are written, and their sync has failed
            }
            Verdict::Fails(failure) => {
                let range = offset..offset + bytes.len();
                let mut choice = Choice::new(io);
                let sectors = match failure {
                    FailKind::Io => Sectors::torn(&range, &mut choice),
                    FailKind::NoSpace | FailKind::Quota => Sectors::prefix(&range, &mut choice),
                };
                inode.write_partly(io, offset, &bytes, &sectors);
            }
        }
        verdict.result()
    }

    fn check_writable(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.read_only {
            return Err(os(Errno::BADF));
        }
        check_end(offset, len, MAX_LEN).map(drop)
    }
}

impl File for FaultFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        check_aligned(self.alignment, offset, buf)?;
        self.disk.state.lock().meter.begin_read()?;
        Ok(self.node.lock().volatile_image().read(offset, buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_aligned(self.alignment, offset, buf)?;
        self.write(IoKind::WriteAt, offset, Bytes::copy_of(buf))
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_aligned(self.alignment, offset, buf)?;
        self.write(IoKind::WriteAtSync, offset, Bytes::copy_of(buf))
    }

    fn sync(&self) -> io::Result<()> {
        let (_, verdict, _state, mut inode) = self.begin(IoKind::Sync, 0, 0)?;
        match verdict {
            Verdict::Done => inode.sync(),
            Verdict::Fails(_) => inode.forget(),
            Verdict::Cut => {}
        }
        verdict.result()
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.state.lock().meter.begin_lookup()?;
        Ok(self.node.lock().volatile_image().len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable(0, len)?;
        let (io, verdict, _state, mut inode) = self.begin(IoKind::SetLen, 0, len)?;
        if !matches!(verdict, Verdict::Fails(_)) {
            inode.set_len(io, len);
        }
        verdict.result()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        check_aligned_range(self.alignment, offset, len)?;
        self.write(IoKind::WriteZeroes, offset, Bytes::Zeroes { len })
    }

    fn alignment(&self) -> usize {
        self.alignment
    }
}
