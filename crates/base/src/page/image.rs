//! Fields of the header in a page image outside of the pool (in flight to or from disk).

use crate::{Lsn, PageId, checksum};

/// Writes the checksum into the first four bytes.
pub fn seal(page: &mut [u8]) {
    let crc = checksum::crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns `true` if the checksum is correct and the page has the id `page_id`. A page of zeros is not
/// intact.
#[must_use]
pub fn is_intact(page: &[u8], page_id: PageId) -> bool {
    let crc = page.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    crc == checksum::crc32c(&page[4..]) && id(page) == page_id
}

/// Returns `true` if all bytes are zero, as in a page that was never written.
#[must_use]
pub fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|&b| b == 0)
}

/// Returns the page id in the header.
#[must_use]
pub fn id(page: &[u8]) -> PageId {
    PageId(word(page, 8))
}

/// Returns the page LSN in the header.
#[must_use]
pub fn lsn(page: &[u8]) -> Lsn {
    Lsn(word(page, 16))
}

fn word(page: &[u8], at: usize) -> u64 {
    page[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
