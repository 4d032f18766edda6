//! The page service of a PE (section 3.3.1): the layer between a node and its pages.
//!
//! In the product, leaves are in the node's store, with its page cache and log, and index pages are in
//! memory. So [`StorePages`] does nothing. A simulation implements a cache and a disk with the paper's costs
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

/// Makes pages resident, and models the time that this takes.
pub trait PageService {
    /// Waits until the page is resident.
    fn fix(&self, page: PageNo, access: Access) -> Task<'_, ()>;

    /// Models the time of acquiring a lock at this PE.
    fn lock(&self) -> Task<'_, ()>;
}

/// A page service that leaves all pages to the store.
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
