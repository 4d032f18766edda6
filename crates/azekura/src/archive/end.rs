//! The file `end.azk` of an archive: the LSN and the horizon up to which the archive was written. It reveals
//! that the newest files, or the end of the newest file, are missing. The head of `format` has its bytes.

use std::path::{Path, PathBuf};

use azekura_base::Lsn;
use azekura_base::bytes::{u32_at, u64_at};
use azekura_base::checksum::crc32c;
use azekura_io::{File, Fs, OpenOptions};

use super::CommitTime;
use crate::Error;

const END_NAME: &str = "end.azk";
const MAGIC: [u8; 8] = *b"AZKEND\r\n";
const VERSION: u32 = 1;
/// Size of the file; smaller than a sector, so that a write of it is atomic.
const BYTES: usize = 44;

/// The end of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) database_id: u64,
    pub(super) next_lsn: Lsn,
    pub(super) horizon: u64,
}

impl End {
    pub(super) fn path(dir: &Path) -> PathBuf {
        dir.join(END_NAME)
    }

    /// Reads the end of the archive; `None` if the file is missing.
    pub(super) fn read(fs: &dyn Fs, dir: &Path) -> Result<Option<Self>, Error> {
        let path = Self::path(dir);
        let mut bytes = [0; BYTES];
        let file = fs.open(&path, OpenOptions::new().read_only(true));
        let len = match file.and_then(|file| file.read_at(0, &mut bytes)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|e| Error::io("read", &path, e))?,
        };
        let word = |at| u32_at(&bytes, at);
        let long = |at| u64_at(&bytes, at);
        if len < BYTES || bytes[..8] != MAGIC || word(40) != crc32c(&bytes[..40]) {
            let reason = "it does not have the end of an archive";
            return Err(Error::Corrupt { path, offset: 0, reason: reason.into() });
        }
        if word(8) != VERSION {
            return Err(Error::UnsupportedFormat { path, found: word(8), supported: VERSION });
        }
        Ok(Some(Self { database_id: long(16), next_lsn: Lsn(long(24)), horizon: long(32) }))
    }

    pub(super) fn write(self, file: &dyn File) -> std::io::Result<()> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 4]);
        for number in [self.database_id, self.next_lsn.0, self.horizon] {
            out.extend(number.to_le_bytes());
        }
        out.extend(crc32c(&out).to_le_bytes());
        file.write_at(0, &out)
    }

    /// Returns an error if the archive in `dir` ends before this end: with `next_lsn` and `horizon`
    /// (ARCHIVE-6).
    pub(super) fn require(self, dir: &Path, next_lsn: Lsn, horizon: CommitTime) -> Result<(), Error> {
        if self.next_lsn <= next_lsn {
            return Ok(());
        }
        let reason = format!(
            "the newest part of the archive is missing: it has commits up to {horizon}, and had those up to \
             {}; copy the missing files back, or restore to {horizon} at the latest",
            CommitTime::from_micros(self.horizon)
        );
        Err(Error::Corrupt { path: dir.into(), offset: 0, reason })
    }

    /// Returns the error for an archive that has lost this file.
    pub(super) fn missing(dir: &Path, horizon: CommitTime) -> Error {
        let reason = format!(
            "the file is missing, so the archive may lack its newest part: it has commits up to {horizon}; \
             copy the file back, or restore to {horizon} at the latest"
        );
        Error::Corrupt { path: Self::path(dir), offset: 0, reason }
    }
}
