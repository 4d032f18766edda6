//! The seal of a page: set before every write, checked after every read.

use std::path::Path;
use std::sync::Arc;

use azekura_base::page::image;
use azekura_base::{PageBuf, PageId, checksum};

use super::StoreError;

/// Sets the checksums of a batch, and returns its order by page id, as indices.
///
/// # Panics
///
/// As [`PageStore::write_pages`] says.
pub(crate) fn seal_batch(batch: &mut [(PageId, PageBuf)], page_size: usize) -> Vec<usize> {
    for (id, page) in batch.iter_mut() {
        assert_eq!(page.len(), page_size, "a page is written whole");
        assert_eq!(image::id(page), *id, "a page is written to its own place");
        image::seal(page);
    }
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_unstable_by_key(|&i| batch[i].0);
    assert!(order.windows(2).all(|pair| batch[pair[0]].0 < batch[pair[1]].0), "a page comes once in a batch");
    order
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

/// The checksum that a page says it has.
pub(crate) fn stored_checksum(page: &[u8]) -> u32 {
    page.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
