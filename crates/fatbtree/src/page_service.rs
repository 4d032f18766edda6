//! The page service of a PE (section 3.3.1): the layer between a node and its pages.
//!
//! In the product, leaves are in the node's store, with its page cache and log, and index pages are in
//! memory; so [`StorePages`] does nothing more. A simulation uses a cache and a disk with the paper's costs
//! here.

use crate::id::PageNo;
use crate::world::Task;

/// Kind of access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The page is read.
    Read,
    /// The page is read and changed.
    Change,
    /// The page is created.
    Create,
    /// The page is read again while it is pinned, so it is resident.
    Again,
}

/// Brings pages into memory, and takes the time that it takes.
pub trait PageService {
    /// Waits until the page is there.
    fn fix(&self, page: PageNo, access: Access) -> Task<'_, ()>;

    /// Takes the time of a lock taken at this PE.
    fn lock(&self) -> Task<'_, ()>;
}

/// Leaves the pages to the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StorePages;

impl PageService for StorePages {
    fn fix(&self, _: PageNo, _: Access) -> Task<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn lock(&self) -> Task<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
