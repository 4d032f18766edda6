//! The second tier of the page cache: clean pages that are evicted from the cache are sent to memory servers.
//! Later reads request a page from its server before the disk.
//!
//! The tier is a page store ([`FarTier`]) between the pool and the page file, invisible to both. Regardless
//! of the servers, a read returns the same bytes as a read of the disk:
//!
//! - **TIER-1** Before a page is written to disk, the tier discards its far image. From then on the tier
//!   rejects older images of the page (CACHE-1 of `azekura_far::cache`; the pool takes the stamp while the
//!   page is still mapped).
//! - **TIER-2** The list of far pages belongs to one opening of the store: after a crash or a close no far
//!   page is used. So recovery reads only pages from disk, or far images of pages that the same opening
//!   evicted.
//! - **TIER-3** A 128-bit digest over the whole image, including page number and page LSN, verifies that an
//!   image that is read is the last one sent. If a server is lost, stalls, is full or returns wrong bytes,
//!   the read is a miss, never an error.

use std::sync::Arc;

use azekura_base::page::image;
use azekura_base::{PageBuf, PageId};
use azekura_buffer::{PageFile, PageStore, StoreError};
use azekura_far::{FarCache, FarCacheStats};
use azekura_trace::{Site, WaitKind};

/// Returns the page store, and its far tier if the settings have a far cache.
pub(crate) fn page_store(
    disk: PageFile,
    far: Option<FarCache>,
) -> (Arc<dyn PageStore>, Option<Arc<FarTier>>) {
    match far {
        Some(far) => {
            let tier = Arc::new(FarTier { disk, far });
            (Arc::clone(&tier) as _, Some(tier))
        }
        None => (Arc::new(disk), None),
    }
}

static FAR_READ: Site = Site::new("page from a memory server");

/// The page store with memory servers as its second tier: see the [module](self).
#[derive(Debug)]
pub(crate) struct FarTier {
    disk: PageFile,
    far: FarCache,
}

impl FarTier {
    pub(crate) fn stats(&self) -> FarCacheStats {
        self.far.stats()
    }

    fn is_far(&self, id: PageId, out: &mut [u8]) -> bool {
        let Some(asked) = self.far.ask(id.0) else { return false };
        let _waiting = azekura_trace::wait(&FAR_READ, id.0 as usize, WaitKind::Network);
        self.far.take(asked, out) && image::id(out) == id
    }
}

impl PageStore for FarTier {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        if self.is_far(id, out) { Ok(()) } else { self.disk.read_page(id, out) }
    }

    /// Requests all far pages at once, and reads the other pages from disk. Adjacent pages are read by one
    /// call.
    fn read_pages(&self, first: PageId, page_size: usize, out: &mut [u8]) -> Result<(), StoreError> {
        assert!(out.len().is_multiple_of(page_size), "pages are read whole");
        let pages = out.len() / page_size;
        let asked: Vec<_> = (first.0..).take(pages).map(|id| self.far.ask(id)).collect();
        let mut from_disk = Vec::new();
        let waiting = azekura_trace::wait(&FAR_READ, first.0 as usize, WaitKind::Network);
        for (at, (asked, out)) in asked.into_iter().zip(out.chunks_exact_mut(page_size)).enumerate() {
            let came = asked.is_some_and(|asked| self.far.take(asked, out));
            if !came || image::id(out).0 != first.0 + at as u64 {
                from_disk.push(at);
            }
        }
        drop(waiting);
        for run in from_disk.chunk_by(|a, b| a + 1 == *b) {
            let (from, to) = (run[0], run[0] + run.len());
            let piece = &mut out[from * page_size..to * page_size];
            self.disk.read_pages(PageId(first.0 + from as u64), page_size, piece)?;
        }
        Ok(())
    }

    fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        // TIER-1: the far images are discarded before the first byte of a newer image is on disk.
        self.far.forget(batch.iter().map(|(id, _)| id.0));
        self.disk.write_pages(batch)
    }

    fn write_fresh(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        self.far.forget(batch.iter().map(|(id, _)| id.0)); // TIER-1
        self.disk.write_fresh(batch)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.disk.sync()
    }

    fn has_failed(&self) -> bool {
        self.disk.has_failed()
    }

    fn make_room(&self, first: PageId, count: u32) -> Result<(), StoreError> {
        self.disk.make_room(first, count)
    }

    fn release(&self, first: PageId, count: u32) -> Result<bool, StoreError> {
        self.disk.release(first, count)
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.disk.disk_bytes()
    }

    fn release_end(&self, end: PageId) -> Result<(), StoreError> {
        self.disk.release_end(end)
    }

    fn sync_for_checkpoint(&self) -> Result<u64, StoreError> {
        self.disk.sync_for_checkpoint()
    }

    fn stamp(&self, id: PageId) -> Option<u64> {
        Some(self.far.stamp(id.0))
    }

    fn evicted(&self, id: PageId, stamp: u64, image: &[u8]) {
        // A page that was never written has no header, and no content to save.
        if image::id(image) == id && !image::is_zero(image) {
            self.far.offer(id.0, stamp, image);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_base::Lsn;
    use azekura_base::PageWords;
    use azekura_base::page::{PageMut, PageType};
    use azekura_far::Server;
    use azekura_io::{Fs, MemFs};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    const PAGE: PageId = PageId(3);

    fn image_of(version: u64) -> PageBuf {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        let mut page = PageMut::new(PageWords::new(&words));
        page.format(PageType::Leaf, PAGE);
        page.set_lsn(Lsn(version));
        let mut image = PageBuf::zeroed(4096);
        page.copy_to(&mut image);
        image
    }

    fn lsn_read(tier: &FarTier) -> Lsn {
        let mut out = PageBuf::zeroed(4096);
        tier.read_page(PAGE, &mut out).unwrap();
        image::lsn(&out)
    }

    /// Evicts the image until a read finds it in the far tier.
    fn evict(tier: &FarTier, version: u64) {
        let (since, before) = (Instant::now(), tier.stats().hits);
        while tier.stats().hits == before {
            tier.evicted(PAGE, tier.stamp(PAGE).unwrap(), &image_of(version));
            assert_eq!(lsn_read(tier), Lsn(version));
            assert!(since.elapsed() < Duration::from_secs(60), "not within a minute: {:?}", tier.stats());
        }
    }

    #[test]
    fn a_page_that_was_written_is_read_from_disk_until_its_new_image_has_left_the_pool() {
        let server = Server::builder().capacity(1 << 20).listen("127.0.0.1:0").unwrap();
        let far = FarCache::builder().servers([server.address().to_string()]).bytes(1 << 20).page(4096);
        let fs: Arc<dyn Fs> = Arc::new(MemFs::default());
        PageFile::create(Arc::clone(&fs), Path::new("/"), 4096).unwrap();
        let disk = PageFile::open(fs, Path::new("/"), 4096).unwrap();
        let tier = FarTier { disk, far: far.build().unwrap() };
        tier.write_pages(&mut [(PAGE, image_of(1))]).unwrap();
        evict(&tier, 1);
        let slow = tier.stamp(PAGE).unwrap();
        tier.write_pages(&mut [(PAGE, image_of(2))]).unwrap();
        assert_eq!(lsn_read(&tier), Lsn(2), "TIER-1");
        tier.evicted(PAGE, slow, &image_of(1));
        assert_eq!(lsn_read(&tier), Lsn(2), "TIER-1: an evictor that was slow");
        let mut neighbor = PageBuf::zeroed(4096);
        neighbor[8] = 2; // the page number in the header
        tier.write_pages(&mut [(PageId(2), neighbor)]).unwrap();
        let mut two = vec![0; 2 * 4096];
        tier.read_pages(PageId(2), 4096, &mut two).unwrap();
        assert_eq!(image::lsn(&two[4096..]), Lsn(2));
        evict(&tier, 2);
    }
}
