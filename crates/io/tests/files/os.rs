//! Tests that need the operating system's files.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use azekura_base::PageBuf;
use azekura_base::page::PageWord;
use azekura_io::{Fs, OpenOptions, OsFs, OverlayFs, create_dir_all_durable};
use rustix::fs::{AtFlags, StatxFlags};

#[test]
fn written_zeroes_take_space_and_a_set_length_does_not() {
    let scratch = tempfile::tempdir().unwrap();
    let blocks = |name: &str| std::fs::metadata(scratch.path().join(name)).unwrap().blocks();
    let create = OpenOptions::new().create(true);
    let (zeroes, hole) = (scratch.path().join("zeroes"), scratch.path().join("hole"));
    let (zeroes, hole) =
        (OsFs::new().open(&zeroes, create).unwrap(), OsFs::new().open(&hole, create).unwrap());
    zeroes.write_zeroes(0, 2 << 20).unwrap();
    zeroes.sync().unwrap();
    hole.set_len(2 << 20).unwrap();
    hole.sync().unwrap();
    assert!(blocks("zeroes") * 512 >= 2 << 20, "{} sectors", blocks("zeroes"));
    assert!(blocks("hole") * 512 < 2 << 20, "{} sectors", blocks("hole"));
}

#[test]
fn an_allocated_range_takes_space_reads_as_zero_and_keeps_what_was_written_before() {
    let scratch = tempfile::tempdir().unwrap();
    for direct in [false, true] {
        let path = scratch.path().join(format!("allocated-{direct}"));
        let file = OsFs::new().open(&path, OpenOptions::new().create(true).direct(direct)).unwrap();
        let mut page = PageBuf::zeroed(4096);
        page.fill(7);
        file.write_at(0, &page).unwrap();
        file.allocate(4096, 1 << 20).unwrap();
        file.allocate(0, 0).unwrap();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 4096 + (1 << 20));
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
        let mut found = PageBuf::zeroed(8192);
        assert_eq!(file.read_at(0, &mut found).unwrap(), 8192);
        assert!(found[..4096].iter().all(|&byte| byte == 7) && found[4096..].iter().all(|&byte| byte == 0));
    }
}

/// Makes the system calls with these numbers fail in this thread.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "a filter of system calls has no safe form")]
fn refuse(calls: &[i64], errno: i32) {
    let line = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let give = |result: u32| line(libc::BPF_RET | libc::BPF_K, 0, 0, result);
    let mut filter = vec![line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)]; // the call's number
    for &call in calls {
        filter.push(line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32));
        filter.push(give(libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64), 0);
        let mode = u64::from(libc::SECCOMP_MODE_FILTER);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn calls_that_a_filter_refuses_are_replaced_by_older_ones() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("f");
    let uses = |fs: &dyn Fs| {
        let file = fs.open(&path, OpenOptions::new().create(true).direct(true)).unwrap();
        file.allocate(0, 8192).unwrap();
        let mut page = PageBuf::zeroed(4096);
        page.fill(7);
        file.write_at_sync(4096, &page).unwrap();
        let words: Vec<PageWord> = (0..3 * 512).map(|_| PageWord::new(1)).collect();
        let skipped = words.as_ptr().addr().next_multiple_of(4096) - words.as_ptr().addr();
        let (first, second) = words[skipped / 8..][..2 * 512].split_at(512);
        assert_eq!(file.read_words_at(0, &[first, second]).unwrap(), 8192);
        assert!(first.iter().all(|word| word.load(Relaxed) == 0));
        assert!(second.iter().all(|word| word.load(Relaxed).to_ne_bytes() == [7; 8]));
        fs.remove_file(&path).unwrap();
    };
    let calls = [libc::SYS_pwritev2, libc::SYS_preadv, libc::SYS_fallocate];
    for errno in [libc::EPERM, libc::ENOSYS, libc::EOPNOTSUPP] {
        // The filter ends with its thread.
        let filtered = || {
            refuse(&calls, errno);
            uses(&OsFs::new());
        };
        std::thread::scope(|scope| scope.spawn(filtered).join().unwrap());
    }
}

#[test]
fn a_full_device_is_storage_full() {
    let full = OsFs::new().open(Path::new("/dev/full"), OpenOptions::new()).unwrap();
    assert_eq!(full.write_at(0, b"x").unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(full.write_zeroes(0, 9).unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
#[cfg(target_os = "linux")]
fn holes_are_skipped_up_to_the_next_data() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("f");
    let (os, end) = (Arc::new(OsFs::new()), 1 << 40);
    let file = os.open(&path, OpenOptions::new().create(true)).unwrap();
    file.write_at(0, b"x").unwrap();
    file.set_len(end).unwrap();
    let overlay = OverlayFs::new(os).open(&path, OpenOptions::new()).unwrap();
    for file in [&overlay, &file] {
        assert_eq!(file.next_data(0).unwrap(), 0);
        assert_eq!(file.next_data(2 << 20).unwrap(), end);
        assert_eq!(file.next_data(end + 1).unwrap(), end + 1);
        file.write_at(end / 2, b"y").unwrap();
        let data = file.next_data(2 << 20).unwrap();
        assert!((end / 2 - (1 << 20)..=end / 2).contains(&data), "{data}");
    }
    overlay.write_at(4 << 20, b"z").unwrap();
    assert_eq!(overlay.next_data(2 << 20).unwrap(), 4 << 20);
    overlay.set_len(end / 4).unwrap();
    assert_eq!(overlay.next_data(8 << 20).unwrap(), end / 4);
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_at_once() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let scratch = tempfile::tempdir().unwrap();
    let pipe = scratch.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let fs = OsFs::new();
    let refusals = [
        fs.open(&pipe, OpenOptions::new()).map(drop),
        fs.open(&pipe, OpenOptions::new().read_only(true)).map(drop),
        fs.lock_exclusive(&pipe).map(drop),
        fs.lock_shared(&pipe).map(drop),
    ];
    for refusal in refusals {
        assert!(refusal.unwrap_err().to_string().contains("a pipe instead of a file"));
    }
}

#[test]
fn direct_io_is_had_or_given_up_without_an_error() {
    // If direct I/O is refused (procfs), the file still opens. If it is available, the alignment is above 1.
    let refused = OsFs::new()
        .open(Path::new("/proc/self/stat"), OpenOptions::new().direct(true).read_only(true))
        .unwrap();
    assert!(!refused.is_direct());
    assert_eq!(refused.alignment(), 1);
    let mut bytes = [0; 5];
    assert_eq!(refused.read_at(0, &mut bytes).unwrap(), 5);

    let scratch = tempfile::tempdir().unwrap();
    let options = OpenOptions::new().create_new(true).direct(true);
    let file = OsFs::new().open(&scratch.path().join("f"), options).unwrap();
    assert_eq!(file.is_direct(), file.alignment() > 1);
    let path = scratch.path().join("f");
    let stat = rustix::fs::statx(rustix::fs::CWD, &path, AtFlags::empty(), StatxFlags::DIOALIGN).unwrap();
    if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
        assert_eq!(file.is_direct(), stat.stx_dio_offset_align > 0, "the kernel says whether it can be had");
    }
    file.write_at_sync(0, &PageBuf::zeroed(8192)).unwrap();
    assert_eq!(file.len().unwrap(), 8192);
}

#[test]
fn a_relative_directory_is_made_durable() {
    // The parent is the working directory, which the path does not name.
    let name = format!("target-of-a-test-{}", std::process::id());
    create_dir_all_durable(&OsFs::new(), Path::new(&name)).unwrap();
    std::fs::remove_dir(&name).unwrap();
}
