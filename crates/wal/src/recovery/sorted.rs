//! Recovery by sorting, the paper's naive method (section 4): reads all records, sorts them by LSN, then
//! passes them to the caller. A baseline for measurements; the store never uses it.

use std::path::Path;
use std::sync::Arc;

use azekura_base::Lsn;
use azekura_io::Fs;

use crate::error::ReplayError;

use super::scan::StreamScan;
use super::survey::Survey;
use super::{Each, LogRange, Replayed, read_error};

/// The place of a record's body, or the end of a gap.
struct Found {
    lsn: u64,
    what: What,
}

enum What {
    Body { payload: Arc<Vec<u8>>, at: usize, len: usize },
    GapTo(u64),
}

/// Passes every record of one range to `each`, in order of LSNs up to the first missing one, as
/// [`replay`](super::replay) does. But reads all records first, in `O(n log n)` time and with memory for the
/// whole log, and does not check the end of the log.
///
/// # Errors
///
/// [`ReplayError::Apply`], [`ReplayError::Io`].
pub fn replay_sorted<E>(
    fs: &dyn Fs,
    dir: &Path,
    database_id: u64,
    range: &LogRange,
    each: &mut Each<'_, E>,
) -> Result<Replayed, ReplayError<E>> {
    let survey = Survey::of(fs, dir, database_id).map_err(read_error)?;
    let mut records = Vec::new();
    for (stream, group) in survey.streams(range.incarnation) {
        let segments = group.segments_from(range.first_lsn.0);
        let mut scan = StreamScan::new(fs, database_id, stream, range.incarnation, segments);
        while let Some(chunk) = scan.next_chunk().map_err(read_error)? {
            for block in chunk.blocks {
                records.extend(
                    block.gaps.iter().map(|gap| Found { lsn: gap.first, what: What::GapTo(gap.last) }),
                );
                let end = block.bytes.end;
                let (mut input, mut cursor) = (&chunk.payload[block.bytes], block.cursor);
                while let Some((lsn, body)) = cursor.take(&mut input) {
                    let (payload, len) = (Arc::clone(&chunk.payload), body.len());
                    records
                        .push(Found { lsn, what: What::Body { payload, at: end - input.len() - len, len } });
                }
            }
        }
    }
    records.sort_unstable_by_key(|found| found.lsn);
    let mut next = range.first_lsn.0;
    let mut replayed =
        Replayed { last_lsn: Lsn(0), max_lsn_seen: Lsn(survey.max_lsn()), records: 0, bytes: 0 };
    for found in records.iter().skip_while(|found| found.lsn < range.first_lsn.0) {
        if found.lsn != next || range.last_lsn.is_some_and(|last| next > last.0) {
            break;
        }
        let (payload, at, len) = match &found.what {
            What::Body { payload, at, len } => (payload, *at, *len),
            What::GapTo(last) => {
                next = last + 1;
                continue;
            }
        };
        each(Lsn(next), &payload[at..at + len])
            .map_err(|source| ReplayError::Apply { lsn: Lsn(next), source })?;
        replayed.records += 1;
        replayed.bytes += len as u64;
        next += 1;
    }
    replayed.last_lsn = Lsn(next - 1);
    Ok(replayed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::convert::Infallible;

    use azekura_io::MemFs;

    use super::super::replay;
    use super::*;
    use crate::{LogBufferId, LogIdentity, Order, Wal, WalOptions};

    #[test]
    fn it_gives_what_the_merge_gives() {
        let fs = Arc::new(MemFs::new());
        let dir = Path::new("/wal");
        let identity = LogIdentity { database_id: 3, incarnation: 1, first_lsn: Lsn(1) };
        let options = WalOptions { log_buffers: 3, streams: 2, background: false, ..WalOptions::default() };
        let wal = Wal::create(Arc::clone(&fs) as Arc<dyn Fs>, dir, identity, options).expect("creates");
        for i in 0..1000_u32 {
            let log_buffer = LogBufferId::from_index(i as usize % 3);
            let order = if i % 11 == 0 { Order::Newest } else { Order::After(Lsn(0)) };
            let body = &i.to_le_bytes()[..1 + i as usize % 4];
            wal.append_in_order(log_buffer, body, order).expect("appends");
            if i % 7 == 0 {
                wal.flush(log_buffer).expect("flushes");
            }
        }
        assert!(wal.stats().gap_lsns > 50);
        wal.close().expect("closes");
        let range = LogRange::open(1, Lsn(1));
        let mut seen = Vec::new();
        let mut keep = |lsn: Lsn, body: &[u8]| -> Result<(), Infallible> {
            seen.push((lsn, body.to_vec()));
            Ok(())
        };
        let merged = replay(&*fs, dir, 3, std::slice::from_ref(&range), Lsn(1), &mut keep).expect("merges");
        let mut sorted = Vec::new();
        let mut keep = |lsn: Lsn, body: &[u8]| -> Result<(), Infallible> {
            sorted.push((lsn, body.to_vec()));
            Ok(())
        };
        let by_sorting = replay_sorted(&*fs, dir, 3, &range, &mut keep).expect("sorts");
        assert_eq!((merged.records, seen.len()), (1000, 1000));
        assert!(merged.last_lsn > Lsn(1000));
        assert_eq!(merged, by_sorting);
        assert_eq!(seen, sorted);
    }
}
