//! Shared-key authentication: two machines prove to each other that they have the same key, without sending
//! it.
//!
//! The handshakes of memory servers and of cluster nodes use it, each with its own messages. Both sides draw
//! a [`nonce`], and each side sends a [`proof`](AuthKey::proof) over all earlier messages, with its own
//! label. So a proof can neither be reflected to its sender nor be replayed.
//!
//! ```
//! use azekura_auth::{AuthKey, nonce};
//! let key = AuthKey::new(b"sixteen bytes at least").unwrap();
//! let (mine, yours) = (nonce::<32>()?, nonce::<32>()?);
//! let proof = key.proof("client", &[&mine, &yours]);
//! assert!(key.is_proof("client", &[&mine, &yours], &proof));
//! assert!(!key.is_proof("server", &[&mine, &yours], &proof));
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Size of a proof, in bytes.
pub const PROOF_BYTES: usize = 32;

/// The key that the machines of one installation share.
#[derive(Clone)]
pub struct AuthKey(Vec<u8>);

impl AuthKey {
    /// Least length of a key, in bytes: a shorter key could be guessed.
    pub const MIN_BYTES: usize = 16;

    /// Size of the largest file with a key, in bytes. Devices such as `/dev/urandom` have no end.
    pub const MAX_FILE_BYTES: usize = 4096;

    /// Creates a key from these bytes, or returns `None` if they are fewer than
    /// [`MIN_BYTES`](Self::MIN_BYTES).
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= Self::MIN_BYTES).then(|| Self(bytes.to_vec()))
    }

    /// Reads a key from a file, without white space at its end.
    ///
    /// # Errors
    ///
    /// If the file cannot be read; [`io::ErrorKind::InvalidData`] if it is too short, or has more than
    /// [`MAX_FILE_BYTES`](Self::MAX_FILE_BYTES).
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::open(path)?.take(Self::MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        let is_whole = bytes.len() <= Self::MAX_FILE_BYTES;
        Some(bytes.trim_ascii_end()).filter(|_| is_whole).and_then(Self::new).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "a key has at least {} bytes, and its file at most {}; make one: \
                     head -c 32 /dev/urandom | base64",
                    Self::MIN_BYTES,
                    Self::MAX_FILE_BYTES
                ),
            )
        })
    }

    /// Returns the HMAC-SHA256 of the label and the messages, concatenated. The sizes of all parts must be
    /// fixed by the protocol: otherwise two different dialogs could have the same concatenation.
    ///
    /// # Panics
    ///
    /// Never, because HMAC accepts keys of any length.
    #[must_use]
    pub fn proof(&self, label: &str, said: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.mac(label, said).finalize().into_bytes().into()
    }

    /// Returns `true` if `proof` equals the result of [`proof`](Self::proof). The time of the comparison does
    /// not depend on where the two differ.
    #[must_use]
    pub fn is_proof(&self, label: &str, said: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(label, said).verify_slice(proof).is_ok()
    }

    fn mac(&self, label: &str, said: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label.as_bytes());
        said.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthKey(…)")
    }
}

/// Returns random bytes that cannot be predicted.
///
/// # Errors
///
/// If the operating system gives no random bytes.
pub fn nonce<const N: usize>() -> io::Result<[u8; N]> {
    let mut nonce = [0; N];
    let mut filled = 0;
    while filled < nonce.len() {
        filled += rustix::rand::getrandom(&mut nonce[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_valid_for_its_label_handshake_and_key_only() {
        let key = AuthKey::new(b"0123456789abcdef").expect("long enough");
        let other = AuthKey::new(b"0123456789abcdeF").expect("long enough");
        let proof = key.proof("one", &[b"a", b"b"]);
        assert!(key.is_proof("one", &[b"a", b"b"], &proof));
        assert!(!key.is_proof("two", &[b"a", b"b"], &proof));
        assert!(!key.is_proof("one", &[b"a", b"c"], &proof));
        assert!(!other.is_proof("one", &[b"a", b"b"], &proof));
        assert!(!key.is_proof("one", &[b"a", b"b"], &proof[..31]));
        assert!(AuthKey::new(b"short").is_none());
        assert!(!format!("{key:?}").contains("0123"));
    }

    #[test]
    fn a_file_without_end_is_no_key() {
        for path in ["/dev/zero", "/dev/urandom", "/dev/null"] {
            let error = AuthKey::read(Path::new(path)).expect_err("no key");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{path}: {error}");
        }
        assert!(AuthKey::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).is_ok());
    }
}
