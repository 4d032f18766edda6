//! The inputs of restores and incremental backups: backups in directories and in streams.
//!
//! - **SOURCE-1** A base in a directory is opened for each read, so a restore has at most one base open at a
//!   time. The number of bases is not limited by the number of open files that the process may have. The
//!   checksums of the blocks detect a base that was replaced between two reads.

use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_io::{File, Fs, OpenOptions};

use super::format::BLOCK_BYTES;
use super::rows::Rows;
use super::{BACKUP_NAME, UNFINISHED_NAME};
use crate::Error;
use crate::location::refuse_empty;

/// A reader or writer of a file from its start to its end.
pub(crate) struct Sequential {
    pub(crate) file: Arc<dyn File>,
    pub(crate) at: u64,
}

impl Write for Sequential {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Sequential {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(self.at, bytes)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// A reader of a file from its start to its end, which opens the file for each read (SOURCE-1).
struct Reopened {
    fs: Arc<dyn Fs>,
    path: PathBuf,
    at: u64,
}

impl Read for Reopened {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let file = self.fs.open(&self.path, OpenOptions::new().read_only(true))?;
        let read = file.read_at(self.at, bytes)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The base of an incremental backup.
pub(crate) enum Source<'a> {
    Directory(PathBuf),
    /// A stream: its name in errors, and its bytes.
    Stream(PathBuf, Box<dyn Read + 'a>),
}

impl<'a> Source<'a> {
    /// Reads the header; returns a reader of the rows, and the name for errors.
    ///
    /// The caller sets the cipher of an encrypted base ([`Rows::set_store_cipher`]).
    pub(super) fn open(self, fs: &Arc<dyn Fs>) -> Result<(Rows<'a>, PathBuf), Error> {
        match self {
            Self::Directory(directory) => {
                let (Sequential { file, .. }, name) = open_directory(&**fs, &directory)?;
                let io = |source| Error::io("open", &name, source);
                // The buffers of a long chain of small backups have the size of the backups.
                let len = file.len().map_err(io)?.clamp(1, BLOCK_BYTES as u64);
                // The working directory may change between two reads.
                let path = fs.absolute(&name).map_err(io)?;
                let input = Reopened { fs: Arc::clone(fs), path, at: 0 };
                let input = BufReader::with_capacity(usize::try_from(len).unwrap_or(BLOCK_BYTES), input);
                Ok((Rows::open(input, &name, None)?, name))
            }
            Self::Stream(name, input) => Ok((Rows::open(input, &name, None)?, name)),
        }
    }
}

/// Opens the complete backup in a directory; returns the file and its path.
pub(super) fn open_directory(fs: &dyn Fs, path: &Path) -> Result<(Sequential, PathBuf), Error> {
    refuse_empty(path, "backup")?;
    let complete = path.join(BACKUP_NAME);
    match fs.open(&complete, OpenOptions::new().read_only(true)) {
        Ok(file) => Ok((Sequential { file, at: 0 }, complete)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            let reason = if fs.exists(&path.join(UNFINISHED_NAME)) {
                format!(
                    "is not a backup: its backup did not finish (it holds {UNFINISHED_NAME}); make the \
                     backup again"
                )
            } else if error.kind() == io::ErrorKind::NotADirectory {
                "is not a backup: it is a file, not a directory; read the backup in a file as a stream \
                 (`azekura restore - DB < FILE`)"
                    .into()
            } else {
                format!("is not a backup: there is no file {BACKUP_NAME} in it")
            };
            Err(Error::NotABackup { path: path.to_path_buf(), reason })
        }
        Err(error) => Err(Error::io("open", &complete, error)),
    }
}
