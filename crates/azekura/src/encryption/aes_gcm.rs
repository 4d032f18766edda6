//! AES-256-GCM with a random nonce of 192 bits for each encrypted unit.
//!
//! The first half of a nonce selects a key: the HMAC-SHA-256 of that half under the data key. The selected
//! key encrypts one unit, with the second half as the nonce of GCM. A pair of key and nonce repeats only if
//! all 192 bits repeat: after 2⁶⁴ units, with probability 2⁻⁶⁵. So no counter must be kept across crashes,
//! copies of the store and restores, and a data key has no limit of units. (XAES-256-GCM of C2SP is the same
//! construction with CMAC.)

use std::fmt;
use std::io;

use azekura_base::Cipher;
use azekura_base::cipher::{Kind, TRAILER_BYTES, Unauthentic, associated};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{error::Unspecified, hmac};

use super::{KEY_BYTES, WRAPPED_BYTES};

const TAG_BYTES: usize = 16;
const NONCE_BYTES: usize = 2 * NONCE_LEN;
/// Number of the data key in trailers; a store has only one data key.
const KEY_NUMBER: [u8; 4] = 1_u32.to_le_bytes();

/// The cipher of one data key.
pub(super) struct AesGcm(hmac::Key);

impl fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AesGcm")
    }
}

impl AesGcm {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// Returns the key and the nonce of GCM for a unit with this nonce.
    fn of(&self, nonce: &[u8; NONCE_BYTES]) -> Result<(LessSafeKey, Nonce), Unspecified> {
        let (selector, nonce) = nonce.split_at(NONCE_LEN);
        let key = UnboundKey::new(&AES_256_GCM, hmac::sign(&self.0, selector).as_ref())?;
        Ok((LessSafeKey::new(key), Nonce::try_assume_unique_for_key(nonce)?))
    }

    fn try_seal(&self, associated: &[u8], unit: &mut [u8]) -> Result<(), Unspecified> {
        let mut nonce = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut nonce)?;
        let (key, gcm_nonce) = self.of(&nonce)?;
        let (text, trailer) = unit.split_at_mut(unit.len() - TRAILER_BYTES);
        let tag = key.seal_in_place_separate_tag(gcm_nonce, Aad::from(associated), text)?;
        let (tag_place, rest) = trailer.split_at_mut(TAG_BYTES);
        let (nonce_place, rest) = rest.split_at_mut(NONCE_BYTES);
        tag_place.copy_from_slice(tag.as_ref());
        nonce_place.copy_from_slice(&nonce);
        rest.fill(0);
        rest[..KEY_NUMBER.len()].copy_from_slice(&KEY_NUMBER);
        Ok(())
    }

    fn try_open(&self, associated: &[u8], unit: &mut [u8]) -> Option<()> {
        let tag_at = unit.len().checked_sub(TRAILER_BYTES)?;
        let (sealed, rest) = unit.split_at_mut(tag_at + TAG_BYTES);
        let (nonce, rest) = rest.split_first_chunk::<NONCE_BYTES>()?;
        let (number, zero) = rest.split_at(KEY_NUMBER.len());
        if number != KEY_NUMBER || zero.iter().any(|&byte| byte != 0) {
            return None;
        }
        let (key, nonce) = self.of(nonce).ok()?;
        key.open_in_place(nonce, Aad::from(associated), sealed).ok().map(drop)
    }
}

impl Cipher for AesGcm {
    fn seal(&self, associated: &[u8], unit: &mut [u8]) -> io::Result<()> {
        self.try_seal(associated, unit).map_err(|_| io::Error::other("the system has no random bytes"))
    }

    fn open(&self, associated: &[u8], unit: &mut [u8]) -> Result<(), Unauthentic> {
        self.try_open(associated, unit).ok_or(Unauthentic)
    }
}

const WRAPPED: [u8; 5] = associated(Kind::DataKey, &KEY_NUMBER);

/// Returns a new data key.
pub(super) fn new_data_key() -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| io::Error::other("the system has no random bytes"))?;
    Ok(key)
}

/// Returns a data key encrypted with the caller's key.
pub(super) fn wrap(caller: &[u8; KEY_BYTES], data_key: &[u8; KEY_BYTES]) -> io::Result<Vec<u8>> {
    let mut unit = vec![0; WRAPPED_BYTES];
    unit[..KEY_BYTES].copy_from_slice(data_key);
    AesGcm::new(caller).seal(&WRAPPED, &mut unit)?;
    Ok(unit)
}

/// Returns the data key; `None` if it was wrapped with another key, or the wrapped key is damaged.
pub(super) fn unwrap(caller: &[u8; KEY_BYTES], wrapped: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let mut unit: [u8; WRAPPED_BYTES] = wrapped.try_into().ok()?;
    AesGcm::new(caller).open(&WRAPPED, &mut unit).ok()?;
    unit.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_round_trips_and_each_changed_bit_is_refused() {
        let (cipher, other) = (AesGcm::new(&[1; 32]), AesGcm::new(&[2; 32]));
        let mut unit = vec![7; 100 + TRAILER_BYTES];
        cipher.seal(b"place", &mut unit).unwrap();
        let mut opened = unit.clone();
        cipher.open(b"place", &mut opened).unwrap();
        assert_eq!(opened[..100], [7; 100]);
        assert!(cipher.open(b"plane", &mut unit.clone()).is_err());
        assert!(other.open(b"place", &mut unit.clone()).is_err());
        for bit in 0..unit.len() * 8 {
            let mut changed = unit.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(cipher.open(b"place", &mut changed), Err(Unauthentic), "bit {bit}");
        }
        assert!(cipher.open(b"place", &mut unit[..TRAILER_BYTES - 1].to_vec()).is_err());
    }

    #[test]
    fn each_encryption_has_its_own_nonce() {
        let cipher = AesGcm::new(&[1; 32]);
        let nonces = (0..1000).map(|_| {
            let mut unit = [0; TRAILER_BYTES];
            cipher.seal(b"", &mut unit).unwrap();
            unit[TAG_BYTES..][..NONCE_BYTES].to_vec()
        });
        assert_eq!(nonces.collect::<std::collections::BTreeSet<_>>().len(), 1000);
    }

    #[test]
    fn a_data_key_is_unwrapped_by_its_callers_key_only() {
        let (caller, other) = ([3; 32], [4; 32]);
        let key = new_data_key().unwrap();
        let wrapped = wrap(&caller, &key).unwrap();
        assert_eq!(unwrap(&caller, &wrapped), Some(key));
        assert_eq!(unwrap(&other, &wrapped), None);
        assert_eq!(unwrap(&caller, &wrapped[1..]), None);
        assert_eq!(unwrap(&other, &wrap(&other, &key).unwrap()), Some(key));
        assert!(!wrapped.windows(8).any(|part| key.windows(8).any(|of_key| of_key == part)));
    }
}
