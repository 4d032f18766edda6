//! Tests of the page cache and the page file: threads, flushes, recovery positions and power loss.

#![cfg(not(loom))]

mod flush_pages;
mod page_file_crash;
mod pool_stress;
mod recovery_lsn;
