//! The file `runs`: the gaps of a store that CONTROL has no space for (TIMELINE-2).
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | `AZKRUNS` and a line feed |
//! | 8..12 | version, 1 |
//! | 12..16 | CRC over bytes 16.. |
//! | 16.. | for each gap, oldest first: the last LSN below it, the first LSN above it (8 each) |
//!
//! The file also has gaps that CONTROL has. The oldest gap in CONTROL connects the two lists: the gaps before
//! it in the file are those of this store, because both ends of a gap identify the run that follows. A file
//! without that gap, or with a wrong checksum, has no gaps of the store.

use std::io::ErrorKind;
use std::path::Path;

use azekura_base::Lsn;
use azekura_base::bytes::{u32_at, u64_at};
use azekura_base::checksum::crc32c;
use azekura_io::{Fs, OpenOptions, replace_file};

use crate::Error;
use crate::control::{LsnGap, MANY_GAPS};

const RUNS_NAME: &str = "runs";
const MAGIC: [u8; 8] = *b"AZKRUNS\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
const GAP_BYTES: usize = 16;
/// Largest number of gaps in the file, 1 MiB: those of 45 days with one opening per minute. The oldest gap is
/// dropped first.
const MOST_RUNS: usize = 1 << 16;

/// Moves the older half of the gaps in CONTROL to the file, if there are many. After an error, `gaps` is
/// unchanged, and the next opening tries again.
pub(crate) fn move_old_gaps(fs: &dyn Fs, dir: &Path, gaps: &mut Vec<LsnGap>) {
    if gaps.len() < MANY_GAPS {
        return;
    }
    let moved = gaps.len() / 2;
    match write(fs, dir, &gaps[..=moved]) {
        Ok(()) => drop(gaps.drain(..moved)),
        Err(error) => {
            let error = error.full_message();
            tracing::warn!(path = %dir.display(), %error, "cannot write the list of the runs of the store");
        }
    }
}

/// Writes the gaps, and those before them in the existing file.
fn write(fs: &dyn Fs, dir: &Path, gaps: &[LsnGap]) -> Result<(), Error> {
    let mut all = before(fs, dir, gaps[0])?;
    all.extend(gaps);
    let surplus = all.len().saturating_sub(MOST_RUNS);
    let numbers = all[surplus..].iter().flat_map(|gap| [gap.after.0, gap.before.0]);
    let body: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(crc32c(&body).to_le_bytes());
    bytes.extend(body);
    replace_file(fs, dir, RUNS_NAME, &bytes).map_err(|e| Error::io("write", &dir.join(RUNS_NAME), e))
}

/// Returns the gaps of the file before `gap`, oldest first; none if the file is missing, damaged, or without
/// `gap`.
pub(super) fn before(fs: &dyn Fs, dir: &Path, gap: LsnGap) -> Result<Vec<LsnGap>, Error> {
    let path = dir.join(RUNS_NAME);
    let io = |source| Error::io("read", &path, source);
    let file = match fs.open(&path, OpenOptions::new().read_only(true)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.map_err(io)?,
    };
    // The limit keeps a file that something else has extended from filling the memory.
    let len = file.len().map_err(io)?.min((HEAD_BYTES + MOST_RUNS * GAP_BYTES) as u64);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let read = file.read_at(0, &mut bytes).map_err(io)?;
    bytes.truncate(read);
    let is_sound = bytes.len() >= HEAD_BYTES
        && bytes[..8] == MAGIC
        && u32_at(&bytes, 8) == VERSION
        && u32_at(&bytes, 12) == crc32c(&bytes[HEAD_BYTES..]);
    if !is_sound {
        return Ok(Vec::new());
    }
    let gaps = bytes[HEAD_BYTES..].chunks_exact(GAP_BYTES);
    let mut gaps: Vec<_> =
        gaps.map(|gap| LsnGap { after: Lsn(u64_at(gap, 0)), before: Lsn(u64_at(gap, 8)) }).collect();
    let known = gaps.iter().position(|found| *found == gap).unwrap_or(0);
    gaps.truncate(known);
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use azekura_io::MemFs;

    use super::*;

    fn gap(n: u64) -> LsnGap {
        LsnGap { after: Lsn(1000 * n + 1), before: Lsn(1000 * n + 500) }
    }

    /// Returns the gaps before `of` in the file, as their numbers.
    fn numbers(fs: &MemFs, of: u64) -> Vec<u64> {
        let gaps = before(fs, Path::new("db"), gap(of)).expect("reads");
        gaps.iter().map(|gap| gap.after.0 / 1000).collect()
    }

    #[test]
    fn the_file_has_the_gaps_before_those_in_control() {
        let (fs, dir) = (MemFs::new(), Path::new("db"));
        fs.create_dir_all(dir).expect("creates");
        let mut gaps: Vec<_> = (0..MANY_GAPS as u64 - 1).map(gap).collect();
        move_old_gaps(&fs, dir, &mut gaps);
        assert_eq!((gaps.len(), fs.exists(&dir.join(RUNS_NAME))), (MANY_GAPS - 1, false));
        for n in gaps.len() as u64..1_600 {
            let kept = gaps.clone();
            move_old_gaps(&fs, dir, &mut gaps);
            // A crash before CONTROL was written.
            let mut again = kept.clone();
            move_old_gaps(&fs, dir, &mut again);
            assert_eq!(again, gaps);
            gaps.push(gap(n));
            let first = gaps[0].after.0 / 1000;
            assert!(numbers(&fs, first).into_iter().eq(0..first), "{n}");
            let kept_first = kept[0].after.0 / 1000;
            assert!(numbers(&fs, kept_first).into_iter().eq(0..kept_first), "{n}");
        }
        assert!(gaps.len() < MANY_GAPS && gaps[0].after > gap(1_000).after);
        let first = gaps[0].after.0 / 1000;
        assert!(numbers(&fs, 1_900).is_empty(), "of another store");
        // A damaged file has no gaps, and is written anew.
        let file = fs.open(&dir.join(RUNS_NAME), OpenOptions::new()).expect("opens");
        for at in [0, 8, 12, 16, 900] {
            let mut byte = [0];
            file.read_at(at, &mut byte).expect("reads");
            file.write_at(at, &[!byte[0]]).expect("writes");
            assert!(numbers(&fs, first).is_empty(), "byte {at}");
            file.write_at(at, &byte).expect("writes");
        }
        file.set_len(4 << 20).expect("extends");
        assert!(numbers(&fs, first).is_empty());
        gaps.extend((1_600..2_000).map(gap));
        move_old_gaps(&fs, dir, &mut gaps);
        assert!(numbers(&fs, gaps[0].after.0 / 1000).into_iter().eq(first..gaps[0].after.0 / 1000));
    }
}
