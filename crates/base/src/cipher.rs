//! The interface of encryption for the files of a store: page file, log and archive.
//!
//! A *unit* is the part of a file that is encrypted at once: a page without its header, the payload of a log
//! chunk, or a block of a backup. The last [`TRAILER_BYTES`] of a unit are the cipher's trailer. Encryption
//! is in place. Checksums of files cover the encrypted bytes, so they are verified without a key.
//!
//! - **CIPHER-1** The trailer of each encryption has a new random nonce. So the same unit may be encrypted
//!   again with other bytes after a crash, or in a copy of the store.
//! - **CIPHER-2** The associated data contain the place of a unit. A unit that was moved to another place is
//!   refused.

use std::fmt::Debug;
use std::io;

/// Number of bytes at the end of a unit that belong to the cipher: tag (16), nonce (24), number of the data
/// key (4), zero (4).
pub const TRAILER_BYTES: usize = 48;

/// Kind of a unit: the first byte of its associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A page of the page file.
    Page = 1,
    /// A chunk of the log.
    Chunk = 2,
    /// A block of a sorted run.
    Run = 3,
    /// A block of a backup.
    Backup = 4,
    /// A block of the log archive.
    Archive = 5,
    /// A data key, encrypted with the caller's key.
    DataKey = 6,
}

/// Returns the associated data of a unit: its kind, then `place`.
///
/// # Panics
///
/// If `N` is not one more than the length of `place`.
#[must_use]
pub const fn associated<const N: usize>(kind: Kind, place: &[u8]) -> [u8; N] {
    let mut data = [0; N];
    data[0] = kind as u8;
    data.split_at_mut(1).1.copy_from_slice(place);
    data
}

/// Encryption of units with the data key of a store.
pub trait Cipher: Debug + Send + Sync {
    /// Encrypts a unit in place, and writes its trailer.
    ///
    /// # Errors
    ///
    /// The system has no random bytes. The unit is unchanged.
    ///
    /// # Panics
    ///
    /// If the unit is shorter than a trailer.
    fn seal(&self, associated: &[u8], unit: &mut [u8]) -> io::Result<()>;

    /// Decrypts a unit in place. The trailer stays.
    ///
    /// # Errors
    ///
    /// [`Unauthentic`]: the unit was not encrypted with this key for this place, or was changed since. The
    /// content of the unit is then unspecified.
    fn open(&self, associated: &[u8], unit: &mut [u8]) -> Result<(), Unauthentic>;
}

/// Error: the bytes of a unit are not those that were encrypted for its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unauthentic;
