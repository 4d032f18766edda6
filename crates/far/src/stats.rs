//! Statistics of a region.

use std::fmt;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the region was created. Times are in nanoseconds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct FarStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl FarStats {
            /// Returns names and values, in a fixed order.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

stats! {
    /// Bytes of the region.
    region_bytes,
    /// Bytes of the region that may be local at once.
    local_bytes,
    /// Bytes of a page.
    page_bytes,
    /// Largest number of bytes of local and leaving pages at any time.
    peak_local_bytes,
    /// Largest size of the memory in use that left far memory permanently, because of a call that only the
    /// kernel can execute.
    unmanaged_bytes,
    /// Page faults that the pager handled.
    faults,
    /// Pages that were paged in because they were touched (the paper's swaps).
    swap_ins,
    /// Pages that were sent because they had changed.
    swap_outs,
    /// Pages that were paged out without a transfer because they were unchanged.
    clean_drops,
    /// Pages that were paged out without a transfer because they were all zeros.
    zero_drops,
    /// Pages that were paged out into the compressed tier.
    compressed_outs,
    /// Pages that were paged in from the compressed tier.
    compressed_ins,
    /// Current size of the compressed tier in bytes.
    compressed_bytes,
    /// Pages that were touched for the first time, or were all zeros. As long as all pages fit into local
    /// memory, a touched span of pages counts once.
    zero_fills,
    /// Pages that were fetched before they were touched.
    prefetches,
    /// Prefetched pages that were touched later.
    prefetch_hits,
    /// Prefetched pages that were never touched.
    prefetch_wasted,
    /// Messages that requested pages from replicas. One message requests a sequence of consecutive pages.
    fetch_requests,
    /// Messages that sent pages to replicas.
    store_requests,
    /// Pseudo reference bits that were cleared.
    bits_cleared,
    /// Pseudo reference and modified bits that were set by a fault.
    bits_set,
    /// Servers that were lost.
    replicas_lost,
    /// Connections that broke and were reopened while the server still had all pages.
    replicas_resumed,
    /// Servers that were reconnected with an empty session, after they had lost their pages.
    replicas_regained,
    /// Pages that were copied to another replica after a loss.
    recopied,
    /// Current number of paged-out pages with fewer copies than configured.
    thin_pages,
    /// Time spent in clearing reference bits.
    clear_ns,
    /// Time spent in faults that only set a bit.
    set_ns,
    /// Total time from a fault on a paged-out page until the page was resident.
    swap_ns,
}

/// Additional local memory that would have avoided misses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoreMemory {
    /// Memory that would have avoided half of the misses. `None` if this is more than eight times the local
    /// limit, or if there was no miss.
    pub half: Option<u64>,
    /// Memory that would have avoided nine tenths of the misses; `None` as in [`half`](Self::half).
    pub most: Option<u64>,
}

impl FarStats {
    /// Returns the statistics as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let fields: Vec<String> =
            self.fields().iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }
}

impl fmt::Display for FarStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} faults, {} pages in ({} ahead of need, {} of them used), {} out, {} clean and {} zero \
             dropped, {:.3} s waited",
            self.faults,
            self.swap_ins + self.prefetches,
            self.prefetches,
            self.prefetch_hits,
            self.swap_outs,
            self.clean_drops,
            self.zero_drops,
            std::time::Duration::from_nanos(self.swap_ns).as_secs_f64(),
        )
    }
}
