//! Helpers of the tests: small logs, bodies that identify their records, and replays.
#![allow(dead_code, reason = "each test file uses only some of the helpers")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use azekura_base::Lsn;
use azekura_io::Fs;
use azekura_wal::recovery::replay;
use azekura_wal::{
    LogBufferId, LogIdentity, LogProtocol, LogRange, ReplayError, Replayed, Wal, WalError, WalOptions,
};

pub(crate) const DATABASE: u64 = 0xA2E_CADA;

pub(crate) fn dir() -> &'static Path {
    Path::new("/db/wal")
}

/// Returns all protocols, with epochs that are short enough for a test.
pub(crate) fn protocols() -> [LogProtocol; 3] {
    let epoch = LogProtocol::Epoch { interval: Duration::from_micros(500) };
    [LogProtocol::PWal, LogProtocol::Serial, epoch]
}

/// Returns options with segments of 64 KiB, buffers of 4 KiB, and no background jobs.
pub(crate) fn small(log_buffers: usize, streams: usize) -> WalOptions {
    WalOptions {
        log_buffers,
        streams,
        segment_bytes: 64 << 10,
        buffer_bytes: 4 << 10,
        background: false,
        ..WalOptions::default()
    }
}

pub(crate) fn identity(incarnation: u32, first_lsn: u64) -> LogIdentity {
    LogIdentity { database_id: DATABASE, incarnation, first_lsn: Lsn(first_lsn) }
}

pub(crate) fn create(fs: &(impl Fs + Clone + 'static), options: WalOptions) -> Arc<Wal> {
    try_create(fs, identity(1, 1), options).expect("creates")
}

pub(crate) fn try_create(
    fs: &(impl Fs + Clone + 'static),
    identity: LogIdentity,
    options: WalOptions,
) -> Result<Arc<Wal>, WalError> {
    Wal::create(Arc::new(fs.clone()), dir(), identity, options)
}

pub(crate) fn log_buffer(index: usize) -> LogBufferId {
    LogBufferId::from_index(index)
}

/// Returns a body of `len` bytes. A body of at least 12 bytes is unique for `(tag, n)`.
pub(crate) fn body(tag: u32, n: u64, len: usize) -> Vec<u8> {
    let mut body: Vec<u8> = tag.to_le_bytes().into_iter().chain(n.to_le_bytes()).collect();
    body.resize(len, (n % 251) as u8);
    body
}

pub(crate) fn open_range(incarnation: u32, first_lsn: u64) -> LogRange {
    LogRange::open(incarnation, Lsn(first_lsn))
}

pub(crate) fn closed_range(incarnation: u32, first_lsn: u64, last_lsn: u64) -> LogRange {
    LogRange { last_lsn: Some(Lsn(last_lsn)), ..LogRange::open(incarnation, Lsn(first_lsn)) }
}

pub(crate) type Records = BTreeMap<u64, Vec<u8>>;

pub(crate) fn try_read(
    fs: &dyn Fs,
    ranges: &[LogRange],
    from: u64,
) -> Result<(Replayed, Records), ReplayError<Infallible>> {
    let mut records = Records::new();
    let mut last = 0;
    let found = replay(fs, dir(), DATABASE, ranges, Lsn(from), &mut |lsn, body| {
        assert!(lsn.0 > last, "{lsn} after {last}");
        last = lsn.0;
        records.insert(lsn.0, body.to_vec());
        Ok(())
    })?;
    assert_eq!(found.records, records.len() as u64);
    assert_eq!(found.bytes, records.values().map(|b| b.len() as u64).sum::<u64>());
    Ok((found, records))
}

/// Replays everything from `from` on.
pub(crate) fn read(fs: &dyn Fs, ranges: &[LogRange], from: u64) -> (Replayed, Records) {
    try_read(fs, ranges, from).unwrap_or_else(|error| panic!("{error}: {error:?}"))
}
