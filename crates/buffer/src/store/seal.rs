//! Seals a page before every write, and verifies the seal after every read.

use std::io;
use std::path::Path;
use std::sync::Arc;

use azekura_base::cipher::{Kind, Unauthentic, associated};
use azekura_base::page::{HEADER_BYTES, image};
use azekura_base::{Cipher, PageBuf, PageId, checksum};

use super::StoreError;

/// Number of bytes of a page's associated data: the kind, and the header without the checksum.
const ASSOCIATED_BYTES: usize = 1 + HEADER_BYTES - 4;

fn associated_of(page: &[u8]) -> [u8; ASSOCIATED_BYTES] {
    associated(Kind::Page, &page[4..HEADER_BYTES])
}

/// Encrypts the part of a page after its header, if there is a cipher, and sets the checksum.
pub(crate) fn seal_page(page: &mut [u8], cipher: Option<&dyn Cipher>) -> io::Result<()> {
    if let Some(cipher) = cipher {
        let associated = associated_of(page);
        cipher.seal(&associated, &mut page[HEADER_BYTES..])?;
    }
    image::seal(page);
    Ok(())
}

/// Decrypts a verified page in place.
pub(crate) fn open_page(page: &mut [u8], cipher: &dyn Cipher) -> Result<(), Unauthentic> {
    let associated = associated_of(page);
    cipher.open(&associated, &mut page[HEADER_BYTES..])
}

/// Seals the pages of a batch, and returns its order by page id, as indices.
///
/// # Errors
///
/// As [`Cipher::seal`].
///
/// # Panics
///
/// As [`PageStore::write_pages`] says.
pub(crate) fn seal_batch(
    batch: &mut [(PageId, PageBuf)],
    page_size: usize,
    cipher: Option<&dyn Cipher>,
) -> io::Result<Vec<usize>> {
    for (id, page) in batch.iter_mut() {
        assert_eq!(page.len(), page_size, "a page is written whole");
        assert_eq!(image::id(page), *id, "a page is written to its own place");
        seal_page(page, cipher)?;
    }
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_unstable_by_key(|&i| batch[i].0);
    assert!(order.windows(2).all(|pair| batch[pair[0]].0 < batch[pair[1]].0), "a page comes once in a batch");
    Ok(order)
}

/// Checks that `bytes` are page `id`.
pub(crate) fn verify(id: PageId, bytes: &[u8], path: &Arc<Path>, offset: u64) -> Result<(), StoreError> {
    if image::is_intact(bytes, id) {
        return Ok(());
    }
    if image::is_zero(bytes) {
        return Err(StoreError::Unwritten { page: id, path: Arc::clone(path), offset });
    }
    Err(StoreError::Corrupt {
        page: id,
        path: Arc::clone(path),
        offset,
        found_checksum: stored_checksum(bytes),
        expected_checksum: checksum::crc32c(&bytes[4..]),
        found_page: image::id(bytes),
    })
}

/// Returns the checksum stored in the page.
pub(crate) fn stored_checksum(page: &[u8]) -> u32 {
    page.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
