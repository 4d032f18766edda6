//! Shared by the tests: a page store without a lock.

use azekura_base::{PageBuf, PageId};
use azekura_buffer::{PageStore, StoreError};

/// A store in which every page is zero. ([`MemStore`](azekura_buffer::MemStore) is a map under a lock.)
#[derive(Debug)]
pub(crate) struct Zeroes;

impl PageStore for Zeroes {
    fn read_page(&self, _id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        out.fill(0);
        Ok(())
    }
    fn write_pages(&self, _batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        Ok(())
    }
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
