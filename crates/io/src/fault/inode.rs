//! `Inode`: the contents of one file on a fault disk: its durable bytes, and the writes since.
//!
//! Steps of a write: (1) it changes the volatile image, which all reads use; (2) it is added to the list of
//! unsynced changes; (3) a sync *promotes* it: the write is applied to the durable image and removed from the
//! list. A crash starts from the durable image and applies a part of the list that the seed selects.
//!
//! - **INODE-1** The volatile image is the durable image with the unsynced changes applied in order.
//! - **INODE-2** No unsynced change is older than a durable byte in its range: promotion removes the promoted
//!   range from the earlier changes on the list, so that the newer bytes remain.
//! - **INODE-3** A sector has the content that the cache had at *some* moment: if a crash keeps one write to
//!   a sector, it also keeps every earlier write to that sector. (Writes smaller than a sector share
//!   sectors.)
//! - **INODE-4** A change of length is promoted with the next promotion, because the file system's journal
//!   keeps lengths in order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::sectors::{SECTOR_BYTES, Sectors};
use super::survival::{Fate, Survival};
use crate::image::Image;

/// Content of a write.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    Data { all: Arc<[u8]>, part: Range<usize> },
    Zeroes { len: u64 },
}

impl Bytes {
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        Self::Data { all: bytes.into(), part: 0..bytes.len() }
    }

    pub(crate) const fn len(&self) -> u64 {
        match self {
            Self::Data { part, .. } => (part.end - part.start) as u64,
            Self::Zeroes { len } => *len,
        }
    }

    /// Returns the bytes from `from` to `to`, counted from the first byte of the write.
    fn slice(&self, from: u64, to: u64) -> Self {
        match self {
            Self::Data { all, part } => Self::Data {
                all: Arc::clone(all),
                part: part.start + from as usize..part.start + to as usize,
            },
            Self::Zeroes { .. } => Self::Zeroes { len: to - from },
        }
    }

    fn write_to(&self, image: &mut Image, offset: u64) {
        match self {
            Self::Data { all, part } => image.write(offset, &all[part.clone()]),
            Self::Zeroes { len } => image.write_zeroes(offset, *len),
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: Bytes },
    SetLen(u64),
}

impl Change {
    /// Returns the range of bytes that the change determines.
    const fn range(&self) -> Range<u64> {
        match self {
            Self::Write { offset, bytes } => *offset..*offset + bytes.len(),
            Self::SetLen(len) => *len..u64::MAX,
        }
    }

    fn apply(&self, image: &mut Image) {
        match self {
            Self::Write { offset, bytes } => bytes.write_to(image, *offset),
            Self::SetLen(len) => image.set_len(*len),
        }
    }
}

/// A change that no sync has covered.
#[derive(Clone, Debug)]
struct Unsynced {
    /// Number of the I/O that made the change.
    io: u64,
    change: Change,
    /// `true` after a failed sync of the change: the cache treats it as clean, and no later sync writes it.
    forgotten: bool,
}

/// The contents of one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    volatile: Image,
    durable: Image,
    unsynced: Vec<Unsynced>,
}

impl Inode {
    /// Creates a file with durable bytes.
    pub(crate) fn durable(image: Image) -> Self {
        Self { volatile: image.clone(), durable: image, unsynced: Vec::new() }
    }

    /// Returns the content that reads return.
    pub(crate) const fn volatile_image(&self) -> &Image {
        &self.volatile
    }

    /// Returns the content that every crash keeps, unless an unsynced change overwrites it.
    pub(crate) const fn durable_image(&self) -> &Image {
        &self.durable
    }

    /// Returns the numbers of the I/Os with unsynced changes.
    pub(crate) fn unsynced_ios(&self) -> impl Iterator<Item = u64> {
        self.unsynced.iter().map(|u| u.io)
    }

    fn change(&mut self, io: u64, change: Change) {
        change.apply(&mut self.volatile);
        self.unsynced.push(Unsynced { io, change, forgotten: false });
    }

    /// Writes into the cache; a write of no bytes does nothing.
    pub(crate) fn write(&mut self, io: u64, offset: u64, bytes: Bytes) {
        if bytes.len() > 0 {
            self.change(io, Change::Write { offset, bytes });
        }
    }

    /// Changes the length, in the cache.
    pub(crate) fn set_len(&mut self, io: u64, len: u64) {
        self.change(io, Change::SetLen(len));
    }

    /// Makes a write that is durable at once; other writes stay unsynced.
    pub(crate) fn write_durable(&mut self, io: u64, offset: u64, bytes: Bytes) {
        self.write(io, offset, bytes);
        self.promote(|u| u.io == io);
    }

    /// Writes only some sectors into the cache.
    pub(crate) fn write_partly(&mut self, io: u64, offset: u64, bytes: &Bytes, sectors: &Sectors) {
        for run in sectors.runs(&(offset..offset + bytes.len())) {
            self.write(io, run.start, bytes.slice(run.start - offset, run.end - offset));
        }
    }

    /// Makes all changes durable except those of failed syncs.
    pub(crate) fn sync(&mut self) {
        self.promote(|u| !u.forgotten);
    }

    /// Applies the effect of a failed sync: the written bytes stay readable, and no later sync writes them.
    pub(crate) fn forget(&mut self) {
        self.forget_where(|_| true);
    }

    /// Applies [`Inode::forget`] to the writes of one I/O.
    pub(crate) fn forget_io(&mut self, io: u64) {
        self.forget_where(|u| u.io == io);
    }

    fn forget_where(&mut self, which: impl Fn(&Unsynced) -> bool) {
        for u in self.unsynced.iter_mut().filter(|u| which(u)) {
            u.forgotten |= matches!(u.change, Change::Write { .. }); // lengths: INODE-4
        }
    }

    fn promote(&mut self, chosen: impl Fn(&Unsynced) -> bool) {
        let mut kept = Vec::new();
        for u in std::mem::take(&mut self.unsynced) {
            if matches!(u.change, Change::SetLen(_)) || chosen(&u) {
                u.change.apply(&mut self.durable);
                subtract(&mut kept, &u.change.range());
            } else {
                kept.push(u);
            }
        }
        self.unsynced = kept;
    }

    /// Damages the disk: sets `bytes` in the cache and in the durable image.
    pub(crate) fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        self.promote(|_| false);
        self.volatile.write(offset, bytes);
        self.durable.write(offset, bytes);
        subtract(&mut self.unsynced, &(offset..offset + bytes.len() as u64));
    }

    /// Returns the content after a power loss.
    pub(crate) fn after_crash(&self, survival: &mut Survival) -> Image {
        let mut image = self.durable.clone();
        let mut fates: Vec<Fate> =
            self.unsynced.iter().map(|u| survival.of_write(u.io, &u.write_range())).collect();
        self.complete_shared_sectors(&mut fates);
        for (u, fate) in self.unsynced.iter().zip(&fates) {
            u.apply_surviving(&mut image, fate);
        }
        image
    }

    /// Establishes INODE-3: for each sector that some write covers only in part, keeps all writes up to the
    /// last kept one. Compares the numbers of I/Os instead of positions on the list, because the pieces of a
    /// write that promotion has split are kept or lost together.
    fn complete_shared_sectors(&self, fates: &mut [Fate]) {
        let mut last_kept: BTreeMap<u64, Option<u64>> = BTreeMap::new();
        for u in &self.unsynced {
            let range = u.write_range();
            for edge in [range.start, range.end].into_iter().filter(|edge| !edge.is_multiple_of(SECTOR_BYTES))
            {
                last_kept.insert(edge / SECTOR_BYTES, None);
            }
        }
        if last_kept.is_empty() {
            return;
        }
        for (u, fate) in self.unsynced.iter().zip(&*fates) {
            for (&sector, last) in last_kept.range_mut(fate.sectors.range()) {
                if fate.sectors.contains(sector) {
                    *last = Some(u.io);
                }
            }
        }
        for (u, fate) in self.unsynced.iter().zip(fates) {
            for (&sector, &last) in last_kept.range(fate.sectors.range()) {
                fate.sectors.set(sector, last.is_some_and(|last| u.io <= last));
            }
        }
    }

    /// Returns `true` if a write there needs space on the disk.
    pub(crate) fn needs_space(&self, offset: u64, len: u64) -> bool {
        self.volatile.needs_space(offset, len)
    }
}

impl Unsynced {
    /// Returns the range of bytes that a crash may tear; empty for a change of length.
    const fn write_range(&self) -> Range<u64> {
        match self.change {
            Change::Write { .. } => self.change.range(),
            Change::SetLen(_) => 0..0,
        }
    }

    fn apply_surviving(&self, image: &mut Image, fate: &Fate) {
        match &self.change {
            Change::SetLen(len) if fate.length => image.set_len(*len),
            Change::SetLen(_) => {}
            Change::Write { offset, bytes } => {
                let range = self.change.range();
                for run in fate.sectors.runs(&range) {
                    bytes.slice(run.start - offset, run.end - offset).write_to(image, run.start);
                }
                if fate.length && image.len() < range.end {
                    image.set_len(range.end); // the length is durable without the data: a hole
                }
            }
        }
    }
}

/// Removes `range` from every write on the list.
fn subtract(list: &mut Vec<Unsynced>, range: &Range<u64>) {
    let overlaps = |u: &Unsynced| {
        let own = u.change.range();
        own.start < range.end && range.start < own.end
    };
    if !list.iter().any(overlaps) {
        return;
    }
    let mut rest = Vec::with_capacity(list.len() + 1);
    for u in list.drain(..) {
        match &u.change {
            Change::Write { offset, bytes } if overlaps(&u) => {
                let own = u.change.range();
                for piece in [own.start..range.start.max(own.start), range.end.min(own.end)..own.end] {
                    if !piece.is_empty() {
                        let bytes = bytes.slice(piece.start - offset, piece.end - offset);
                        let change = Change::Write { offset: piece.start, bytes };
                        rest.push(Unsynced { change, ..u.clone() });
                    }
                }
            }
            _ => rest.push(u),
        }
    }
    *list = rest;
}
