//! Reads into several runs of words, while other threads may read these words.
#![allow(unsafe_code, reason = "no safe call reads a file into memory that other threads may read meanwhile")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use azekura_base::page::PageWord;
use rustix::io::Errno;

use crate::error::is_unavailable;

/// Largest number of runs in one call. (POSIX guarantees 16; Linux and the BSDs accept 1024.)
const MOST_RUNS: usize = 1024;

/// Fills `out` from `offset` on, up to the end of the file; returns the number of bytes. A read of a direct
/// file stops within a block of `alignment` only at the end of the file.
pub(super) fn read(file: &File, offset: u64, out: &[&[PageWord]], alignment: usize) -> io::Result<usize> {
    let (wanted, mut done) = (out.iter().map(|words| size_of_val(*words)).sum(), 0);
    while done < wanted {
        let at = offset + done as u64;
        // A page miss reads one run, which needs no allocated list.
        let once = match out {
            [words] => read_once(file, at, &[without(words, done)]),
            _ => read_once(file, at, &rest(out, done)),
        };
        match once {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if !done.is_multiple_of(alignment) {
            break;
        }
    }
    Ok(done)
}

/// Returns the runs without their first `done` bytes.
fn rest(out: &[&[PageWord]], mut done: usize) -> Vec<libc::iovec> {
    let mut runs = Vec::with_capacity(out.len().min(MOST_RUNS));
    for words in out {
        let len = size_of_val(*words);
        let skipped = done.min(len);
        done -= skipped;
        if skipped < len && runs.len() < MOST_RUNS {
            runs.push(without(words, skipped));
        }
    }
    runs
}

/// Returns a run without its first `skipped` bytes. The run has at least that many.
fn without(words: &[PageWord], skipped: usize) -> libc::iovec {
    let start = words.as_ptr().cast::<u8>().wrapping_add(skipped).cast_mut();
    libc::iovec { iov_base: start.cast(), iov_len: size_of_val(words) - skipped }
}

/// Reads into the runs with one call; into the first one if no call that takes several is available.
fn read_once(file: &File, offset: u64, runs: &[libc::iovec]) -> io::Result<usize> {
    let offset = offset.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: each run is inside words that `read` borrows. The words are atomics, so they may be written
    // through a shared borrow. A thread that reads them at the same time loads whole words in an unspecified
    // order, as with relaxed stores of another thread. Any bytes are a valid value. The number of runs fits
    // an `i32`.
    let read = unsafe { libc::preadv(file.as_raw_fd(), runs.as_ptr(), runs.len() as i32, offset) };
    let done = usize::try_from(read).map_err(|_| io::Error::last_os_error());
    match (done, runs) {
        (Err(error), [first, ..]) if Errno::from_io_error(&error).is_some_and(is_unavailable) => {
            // SAFETY: as above, for the first run.
            let read = unsafe { libc::pread(file.as_raw_fd(), first.iov_base, first.iov_len, offset) };
            usize::try_from(read).map_err(|_| io::Error::last_os_error())
        }
        (done, _) => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering::Relaxed;

    fn words(count: usize) -> Vec<PageWord> {
        (0..count).map(|_| PageWord::new(7)).collect()
    }

    #[test]
    fn bytes_go_to_the_runs_one_after_the_other_as_far_as_the_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..100u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let (first, second) = (words(4), words(10));
        assert_eq!(read(&file, 4, &[&first, &[], &second], 1).unwrap(), 96);
        let found: Vec<u8> =
            first.iter().chain(&second).flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        assert_eq!(found[..96], bytes[4..]);
        assert_eq!(second[8].load(Relaxed), 7, "beyond the end nothing is written");
        assert_eq!(read(&file, 60, &[&second], 1).unwrap(), 40, "one run");
        assert_eq!(second[0].load(Relaxed).to_ne_bytes(), bytes[60..68]);
        assert_eq!(read(&file, 1000, &[&first], 1).unwrap(), 0);
        assert_eq!(read(&file, 0, &[], 1).unwrap(), 0);
    }

    #[test]
    fn a_short_read_continues_within_the_run() {
        let runs = [words(2), words(3)];
        let runs: Vec<&[PageWord]> = runs.iter().map(Vec::as_slice).collect();
        let lengths = |done| rest(&runs, done).iter().map(|run| run.iov_len).collect::<Vec<_>>();
        assert_eq!(lengths(0), [16, 24]);
        assert_eq!(lengths(10), [6, 24]);
        assert_eq!(lengths(16), [24]);
        assert_eq!(lengths(39), [1]);
        assert_eq!(rest(&runs, 20)[0].iov_base.addr(), runs[1].as_ptr().addr() + 4);
        assert!(lengths(40).is_empty());
    }

    #[test]
    fn more_runs_than_one_call_takes_are_filled_by_several() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..2 * MOST_RUNS * 8).map(|n| (n / 8) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        let all = words(2 * MOST_RUNS);
        let runs: Vec<&[PageWord]> = all.chunks(1).collect();
        assert_eq!(read(&file, 0, &runs, 1).unwrap(), bytes.len());
        assert!(all.iter().enumerate().all(|(n, word)| word.load(Relaxed).to_ne_bytes() == [n as u8; 8]));
    }
}
