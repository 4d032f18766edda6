//! Entry: a small real log with changed bytes. A replay hands over records as they were written, up to a cut, or says
//! what is wrong; with checksums made good again it may hand over anything, but in order and without a panic.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use azekura_base::checksum::crc32c;
use azekura_base::{DurableLog, Lsn};
use azekura_io::{Fs, MemFs, OpenOptions};
use azekura_wal::chunk::{HEADER_BYTES, Header, UNIT_BYTES};
use azekura_wal::recovery::replay;
use azekura_wal::{LogIdentity, LogRange, StreamCount, Wal, WalOptions, WorkerId};

const DATABASE: u64 = 7;
const RECORDS: u64 = 40;
const DIR: &str = "/db/wal";

/// The first byte's lowest bit: make checksums good again. Then patches: file, offset (3 bytes), length, bytes.
pub(crate) fn log_scan(data: &[u8]) {
    let (&mode, mut patches) = data.split_first().unwrap_or((&0, &[]));
    let mut files = sound_log().clone();
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
    let fs = MemFs::new();
    for (path, bytes) in &files {
        write(&fs, path, bytes);
    }
    let first = u64::from(mode >> 1) % RECORDS + 1;
    for (last_lsn, from) in [(None, 1), (None, first), (Some(Lsn(RECORDS)), 1), (Some(Lsn(first)), 1)] {
        examine(&fs, last_lsn, from, is_resealed);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let at = |mode, file, offset: u32, bytes: &[u8]| {
        let [a, b, c, _] = offset.to_le_bytes();
        [&[mode, file, a, b, c, bytes.len() as u8], bytes].concat()
    };
    let fields = [4, 24, 28, 32, 40, 48, 56, 60, 64, 72, 80, 88, 96, 128, 130, 140];
    let fields =
        fields.into_iter().flat_map(|field| (0..2).map(move |mode| at(mode, 0, 8192 + field, &[9, 0])));
    fields.chain([vec![0], vec![1], at(0, 1, 0, &[0; 128]), at(1, 2, 4096 + 56, &[255; 4])]).collect()
}

fn examine(fs: &MemFs, last_lsn: Option<Lsn>, from: u64, is_resealed: bool) {
    let range = LogRange { last_lsn, ..LogRange::open(1, Lsn(1)) };
    let mut next = from;
    let found = replay(fs, Path::new(DIR), DATABASE, &[range], Lsn(from), &mut |lsn, bytes| {
        assert_eq!(lsn, Lsn(next), "out of order");
        assert!(is_resealed || bytes == body(next), "record {next} is not what was written");
        next += 1;
        Ok::<(), std::convert::Infallible>(())
    });
    match found {
        Ok(found) => {
            assert_eq!(found.records, next - from);
            assert!(last_lsn.is_none_or(|last| found.last_lsn == last), "{found:?}");
            assert!(last_lsn.is_some() || found.last_lsn.0 + 1 == next || next == from, "{found:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn body(lsn: u64) -> Vec<u8> {
    vec![lsn as u8; 20 + lsn as usize]
}

/// Makes the checksum of every header good, and those of the payloads that lie in the file. Headers lie at multiples of
/// a unit; what is none stays none (its magic is wrong).
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
        assert!(Header::decode(&rest[..HEADER_BYTES]).is_some() || rest[12..16] != [1, 0, 0, 0]);
    }
}

/// The files of a log of `RECORDS` records in two streams of two segments, which was not closed.
fn sound_log() -> &'static Vec<(PathBuf, Vec<u8>)> {
    static LOG: OnceLock<Vec<(PathBuf, Vec<u8>)>> = OnceLock::new();
    LOG.get_or_init(|| {
        let fs = MemFs::new();
        let options = WalOptions {
            workers: 2,
            streams: StreamCount::Fixed(2),
            segment_bytes: 64 << 10,
            buffer_bytes: 4 << 10,
            background: false,
            ..WalOptions::default()
        };
        let identity = LogIdentity { database_id: DATABASE, incarnation: 1, first_lsn: Lsn(1) };
        let wal = Wal::create(Arc::new(fs.clone()), Path::new(DIR), identity, options).expect("creates");
        for lsn in 1..=RECORDS {
            wal.append(WorkerId::from_index(lsn as usize), &body(lsn)).expect("appends");
            wal.make_durable(Lsn(lsn)).expect("durable");
        }
        files(&fs, Path::new(DIR))
    })
}

fn files(fs: &MemFs, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for name in fs.list_dir(dir).expect("a directory") {
        let path = dir.join(name);
        match fs.open(&path, OpenOptions::new()) {
            Ok(file) => {
                let mut bytes = vec![0; file.len().expect("length") as usize];
                file.read_at(0, &mut bytes).expect("reads");
                found.push((path, bytes));
            }
            Err(_) => found.extend(files(fs, &path)),
        }
    }
    found
}

fn write(fs: &MemFs, path: &Path, bytes: &[u8]) {
    fs.create_dir_all(path.parent().expect("in a directory")).expect("makes");
    fs.open(path, OpenOptions::new().create(true)).expect("opens").write_at(0, bytes).expect("writes");
}
