//! Fuzz target: replays a small real log with changed bytes. The replay passes the records as they were
//! written, up to a cut, or returns an error. With corrected checksums it may pass any content, but in order
//! and without a panic.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use azekura_base::checksum::crc32c;
use azekura_base::{DurableLog, Lsn};
use azekura_io::MemFs;
use azekura_wal::chunk::{HEADER_BYTES, Header, UNIT_BYTES};
use azekura_wal::recovery::replay;
use azekura_wal::{LogBufferId, LogIdentity, LogRange, Order, Wal, WalOptions};

const DATABASE: u64 = 7;
const RECORDS: usize = 40;
const DIR: &str = "/db/wal";

/// Runs one input. The lowest bit of the first byte selects whether checksums are corrected. Patches follow:
/// file, offset (3 bytes), length, bytes.
pub(crate) fn log_scan(data: &[u8]) {
    let (&mode, mut patches) = data.split_first().unwrap_or((&0, &[]));
    let mut files = sound_log().files.clone();
    while let [file, a, b, c, len, rest @ ..] = patches {
        let (count, file) = (files.len(), usize::from(*file));
        let bytes = &mut files[file % count].1;
        let at = u32::from_le_bytes([*a, *b, *c, 0]) as usize % bytes.len();
        let (new, behind) = rest.split_at(rest.len().min(usize::from(*len)).min(bytes.len() - at));
        bytes[at..at + new.len()].copy_from_slice(new);
        patches = behind;
    }
    let is_resealed = mode & 1 != 0;
    if is_resealed {
        files.iter_mut().for_each(|(_, bytes)| reseal(bytes));
    }
    let fs = MemFs::with_files(&files).expect("files of a log");
    let last = sound_log().lsns[RECORDS - 1];
    let first = u64::from(mode >> 1) % last + 1;
    for (last_lsn, from) in [(None, 1), (None, first), (Some(Lsn(last)), 1), (Some(Lsn(first)), 1)] {
        examine(&fs, last_lsn, from, is_resealed);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let at = |mode, file, offset: u32, bytes: &[u8]| {
        let [a, b, c, _] = offset.to_le_bytes();
        [&[mode, file, a, b, c, bytes.len() as u8], bytes].concat()
    };
    let fields = [4, 12, 24, 28, 32, 40, 48, 56, 60, 64, 72, 80, 88, 96, 128, 130, 140];
    let fields =
        fields.into_iter().flat_map(|field| (0..2).map(move |mode| at(mode, 0, 8192 + field, &[9, 0])));
    fields.chain([vec![0], vec![1], at(0, 1, 0, &[0; 128]), at(1, 2, 4096 + 56, &[255; 4])]).collect()
}

fn examine(fs: &MemFs, last_lsn: Option<Lsn>, from: u64, is_resealed: bool) {
    let range = LogRange { last_lsn, ..LogRange::open(1, Lsn(1)) };
    let lsns = &sound_log().lsns;
    let mut next = from;
    let mut count = 0;
    let mut expected = lsns.iter().zip(0..).skip_while(|(lsn, _)| **lsn < from);
    let found = replay(fs, Path::new(DIR), DATABASE, &[range], Lsn(from), &mut |lsn, bytes| {
        assert!(lsn >= Lsn(next), "out of order");
        let (&written, n) = expected.next().unwrap_or((&0, 0));
        assert!(
            is_resealed || (lsn.0 == written && bytes == body(n)),
            "record {lsn} is not what was written"
        );
        next = lsn.0 + 1;
        count += 1;
        Ok::<(), std::convert::Infallible>(())
    });
    match found {
        Ok(found) => {
            assert_eq!(found.records, count);
            assert!(last_lsn.is_none_or(|last| found.last_lsn >= last), "{found:?}");
            assert!(found.last_lsn.0 + 1 >= next, "{found:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn body(n: usize) -> Vec<u8> {
    vec![n as u8; 20 + n]
}

/// Corrects the checksums of all headers, and of the payloads that are inside the file. Headers are at
/// multiples of a unit; a unit with a wrong magic is no header.
fn reseal(bytes: &mut [u8]) {
    for at in (0..bytes.len()).step_by(UNIT_BYTES) {
        let rest = &mut bytes[at..];
        let Some(len) = rest[56..].first_chunk().map(|len| u32::from_le_bytes(*len) as usize) else { return };
        let Some(header) = rest.get(..HEADER_BYTES) else { return };
        if header[8..12] != *b"AzWL" {
            continue;
        }
        if let Some(payload) = rest.get(HEADER_BYTES..).and_then(|payload| payload.get(..len)) {
            let crc = crc32c(payload).to_le_bytes();
            rest[4..8].copy_from_slice(&crc);
        }
        let crc = crc32c(&rest[4..HEADER_BYTES]).to_le_bytes();
        rest[..4].copy_from_slice(&crc);
        assert!(Header::decode(&rest[..HEADER_BYTES]).is_some() || !matches!(rest[12..16], [1..=4, 0, 0, 0]));
    }
}

struct SoundLog {
    /// LSNs of the records, in order.
    lsns: Vec<u64>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// Returns a log of `RECORDS` records in two streams of two segments, which was not closed. Some LSNs are
/// gaps.
fn sound_log() -> &'static SoundLog {
    static LOG: OnceLock<SoundLog> = OnceLock::new();
    LOG.get_or_init(|| {
        let fs = MemFs::new();
        let options = WalOptions {
            log_buffers: 2,
            streams: 2,
            segment_bytes: 64 << 10,
            buffer_bytes: 4 << 10,
            background: false,
            ..WalOptions::default()
        };
        let identity = LogIdentity { database_id: DATABASE, incarnation: 1, first_lsn: Lsn(1) };
        let wal = Wal::create(Arc::new(fs.clone()), Path::new(DIR), identity, options).expect("creates");
        let mut last = Lsn(0);
        let mut append = |n: usize| {
            // Some batches have two records, so the log buffer draws two LSNs for the next batch, which has
            // one record.
            let log_buffer = LogBufferId::from_index(n / 3);
            last = wal.append_in_order(log_buffer, &body(n), Order::After(last)).expect("appends");
            if !n.is_multiple_of(3) {
                wal.make_durable(last).expect("durable");
            }
            last.0
        };
        let lsns = (0..RECORDS).map(&mut append).collect();
        wal.make_durable(last).expect("durable");
        assert!(wal.stats().gap_lsns > 0);
        SoundLog { lsns, files: fs.files(Path::new(DIR)).expect("is there") }
    })
}
