//! One test suite for all file systems: the guarantees on which a caller may rely with any of them.
//!
//! On direct files, offsets and lengths are multiples of 4 KiB.
#![expect(clippy::unwrap_used, reason = "in a test, an unexpected error is a failure")]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use azekura_base::PageBuf;
use azekura_base::page::PageWord;
use azekura_io::{
    DeviceFs, DeviceModel, FaultFs, File, Fs, MemFs, OpenOptions, OsFs, create_dir_all_durable,
};
use rustix::io::Errno;

const PAGE: u64 = 4096;

/// A file system, the directory for the test's files, and a flag for direct I/O.
struct Ground {
    fs: Arc<dyn Fs>,
    root: PathBuf,
    direct: bool,
    _scratch: Option<tempfile::TempDir>,
}

impl Ground {
    fn os(direct: bool) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().to_owned();
        Self { fs: Arc::new(OsFs::new()), root, direct, _scratch: Some(scratch) }
    }

    fn within(direct: bool) -> Self {
        let ground = Self::os(direct);
        Self { fs: ground.fs.within(&ground.root).unwrap().expect("it keeps directories open"), ..ground }
    }

    fn memory(fs: impl Fs + 'static, direct: bool) -> Self {
        let root = PathBuf::from("/play");
        fs.create_dir_all(&root).unwrap();
        Self { fs: Arc::new(fs), root, direct, _scratch: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn options(&self) -> OpenOptions {
        OpenOptions::new().direct(self.direct)
    }

    fn create(&self, name: &str) -> Arc<dyn File> {
        self.fs.open(&self.path(name), self.options().create(true)).unwrap()
    }

    fn exists(&self, name: &str) -> bool {
        self.fs.exists(&self.path(name))
    }
}

/// Returns `pages` aligned pages filled with `byte`.
fn pages(pages: usize, byte: u8) -> PageBuf {
    let mut buf = PageBuf::zeroed(pages * PAGE as usize);
    buf.fill(byte);
    buf
}

fn read(file: &dyn File, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = PageBuf::zeroed(len);
    let count = file.read_at(offset, &mut buf).unwrap();
    buf[..count].to_vec()
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        suite!(@on os_buffered, Ground::os(false), $($name),*);
        suite!(@on os_direct, Ground::os(true), $($name),*);
        suite!(@on within_buffered, Ground::within(false), $($name),*);
        suite!(@on within_direct, Ground::within(true), $($name),*);
        suite!(@on memory, Ground::memory(MemFs::new(), true), $($name),*);
        suite!(@on fault_buffered, Ground::memory(FaultFs::with_alignment(512), false), $($name),*);
        suite!(
            @on device,
            Ground::memory(DeviceFs::new(Arc::new(MemFs::new()), DeviceModel::plp()), false),
            $($name),*
        );
        suite!(@on fault_direct, Ground::memory(FaultFs::with_alignment(512), true), $($name),*);
    };
    (@on $module:ident, $ground:expr, $($name:ident),*) => {
        mod $module {
            use super::*;
            $(#[test] fn $name() { super::$name(&$ground); })*
        }
    };
}

suite!(
    what_was_written_is_read_back,
    a_read_stops_where_the_file_ends,
    words_are_filled_one_run_after_the_other,
    a_write_beyond_the_end_leaves_zeroes,
    a_synced_write_is_read_back,
    set_len_cuts_off_and_extends_with_zeroes,
    written_zeroes_replace_what_was_there,
    what_was_discarded_reads_as_zero_or_discarding_is_unsupported,
    an_unaligned_access_is_refused_exactly_where_alignment_says_so,
    a_missing_file_is_not_found,
    create_keeps_and_create_new_refuses_what_is_there,
    a_read_only_file_refuses_every_change,
    a_directory_is_no_file,
    an_offset_that_no_file_has_is_an_error,
    names_are_listed_sorted,
    rename_replaces_and_open_handles_stay_with_their_file,
    a_removed_file_lives_on_in_its_handles,
    a_lock_excludes_every_other_opener_until_dropped,
    directories_are_made_with_those_above_them,
    threads_write_apart_in_one_file,
);

fn what_was_written_is_read_back(ground: &Ground) {
    let file = ground.create("f");
    assert!(file.is_empty().unwrap());
    file.write_at(0, &pages(3, 1)).unwrap();
    file.write_at(PAGE, &pages(1, 2)).unwrap();
    file.sync().unwrap();
    assert_eq!(file.len().unwrap(), 3 * PAGE);
    let again = ground.fs.open(&ground.path("f"), ground.options()).unwrap();
    let expected = [&pages(1, 1)[..], &pages(1, 2), &pages(1, 1)].concat();
    assert_eq!(read(&*again, 0, 3 * PAGE as usize), expected);
}

fn words_are_filled_one_run_after_the_other(ground: &Ground) {
    let file = ground.create("words");
    let bytes =
        PageBuf::zeroed(8192).iter().enumerate().map(|(n, _)| (n / 8 % 251) as u8).collect::<Vec<_>>();
    let mut written = PageBuf::zeroed(8192);
    written.copy_from_slice(&bytes);
    file.write_at(0, &written).unwrap();
    // Words with the alignment that a direct read needs.
    let memory: Vec<PageWord> = (0..4 * 512).map(|_| PageWord::new(0)).collect();
    let skipped = memory.as_ptr().addr().next_multiple_of(4096) - memory.as_ptr().addr();
    let runs: Vec<&[PageWord]> = memory[skipped / 8..][..3 * 512].chunks(512).collect();
    let found =
        |run: &[PageWord]| run.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect::<Vec<_>>();
    assert_eq!(file.read_words_at(4096, &runs[..1]).unwrap(), 4096);
    assert_eq!(found(runs[0]), bytes[4096..]);
    assert_eq!(file.read_words_at(0, &[runs[2], runs[1]]).unwrap(), 8192);
    assert_eq!([found(runs[2]), found(runs[1])].concat(), bytes);
    assert_eq!(file.read_words_at(4096, &runs).unwrap(), 4096, "as far as the file goes");
    assert_eq!(file.read_words_at(8192, &runs).unwrap(), 0);
    if file.is_direct() {
        assert_eq!(errno(file.read_words_at(0, &[&runs[0][1..]])), errno(file.read_at(0, &mut [0; 9])));
    }
}

fn a_read_stops_where_the_file_ends(ground: &Ground) {
    let file = ground.create("f");
    file.write_at(0, &pages(2, 7)).unwrap();
    assert_eq!(read(&*file, PAGE, 4 * PAGE as usize), &pages(1, 7)[..]);
    assert_eq!(read(&*file, 2 * PAGE, PAGE as usize), b"");
    assert_eq!(read(&*file, 9 * PAGE, PAGE as usize), b"");
    file.set_len(PAGE + 100).unwrap(); // a direct read then ends within a block
    assert_eq!(read(&*file, 0, 3 * PAGE as usize).len() as u64, PAGE + 100);
}

fn what_was_discarded_reads_as_zero_or_discarding_is_unsupported(ground: &Ground) {
    let file = ground.create("f");
    file.write_at(0, &pages(20, 7)).unwrap();
    match file.discard(2 * PAGE, 10 * PAGE) {
        Ok(()) => {
            assert_eq!(file.len().unwrap(), 20 * PAGE);
            let expected = [&pages(2, 7)[..], &pages(10, 0), &pages(8, 7)].concat();
            assert_eq!(read(&*file, 0, 20 * PAGE as usize), expected);
            file.discard(0, 0).unwrap();
            file.write_at(3 * PAGE, &pages(1, 9)).unwrap();
            assert_eq!(read(&*file, 3 * PAGE, PAGE as usize), &pages(1, 9)[..]);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(read(&*file, 2 * PAGE, PAGE as usize), &pages(1, 7)[..]);
        }
    }
}

fn a_write_beyond_the_end_leaves_zeroes(ground: &Ground) {
    let file = ground.create("f");
    file.write_at(2 * PAGE, &pages(1, 7)).unwrap();
    assert_eq!(file.len().unwrap(), 3 * PAGE);
    assert_eq!(read(&*file, 0, 2 * PAGE as usize), &pages(2, 0)[..]);
}

fn a_synced_write_is_read_back(ground: &Ground) {
    let file = ground.create("f");
    file.write_at_sync(PAGE, &pages(2, 9)).unwrap();
    file.write_at_sync(2 * PAGE, &pages(1, 8)).unwrap();
    file.write_at_sync(0, &[]).unwrap();
    assert_eq!(file.len().unwrap(), 3 * PAGE);
    let expected = [&pages(1, 0)[..], &pages(1, 9), &pages(1, 8)].concat();
    assert_eq!(read(&*file, 0, 3 * PAGE as usize), expected);
}

fn set_len_cuts_off_and_extends_with_zeroes(ground: &Ground) {
    let file = ground.create("f");
    file.write_at(0, &pages(4, 5)).unwrap();
    file.set_len(PAGE + 7).unwrap();
    assert_eq!(file.len().unwrap(), PAGE + 7);
    file.set_len(3 * PAGE).unwrap();
    file.sync().unwrap();
    let bytes = read(&*file, 0, 4 * PAGE as usize);
    assert_eq!(bytes.len() as u64, 3 * PAGE);
    assert!(bytes[..PAGE as usize + 7].iter().all(|&b| b == 5));
    assert!(bytes[PAGE as usize + 7..].iter().all(|&b| b == 0));
}

fn written_zeroes_replace_what_was_there(ground: &Ground) {
    let file = ground.create("f");
    file.write_at(0, &pages(4, 5)).unwrap();
    let far = (3 << 20) + PAGE; // crosses blocks of zeroes, and ends within one
    file.write_zeroes(PAGE, far - PAGE).unwrap();
    file.sync().unwrap();
    assert_eq!(file.len().unwrap(), far);
    let bytes = read(&*file, 0, far as usize);
    assert!(bytes[..PAGE as usize].iter().all(|&b| b == 5));
    assert!(bytes[PAGE as usize..].iter().all(|&b| b == 0));
}

fn an_unaligned_access_is_refused_exactly_where_alignment_says_so(ground: &Ground) {
    let file = ground.create("f");
    file.write_at(0, &pages(3, 5)).unwrap();
    let alignment = file.alignment();
    assert!(alignment.is_power_of_two());
    assert_eq!(file.is_direct(), alignment > 1);
    let (half, mut buf) = (alignment / 2, pages(2, 6));
    if alignment == 1 {
        file.write_at(3, &buf[5..8]).unwrap();
        assert_eq!(file.read_at(3, &mut buf[7..10]).unwrap(), 3);
        assert_eq!(buf[7..10], [6; 3]);
        return;
    }
    let einval = Some(Errno::INVAL.raw_os_error());
    assert_eq!(errno(file.write_at(half as u64, &buf[..alignment])), einval, "offset");
    assert_eq!(errno(file.write_at(0, &buf[..half])), einval, "length");
    assert_eq!(errno(file.write_at_sync(0, &buf[half..half + alignment])), einval, "memory");
    assert_eq!(errno(file.read_at(0, &mut buf[half..half + alignment])), einval, "memory of a read");
    assert_eq!(errno(file.write_zeroes(0, half as u64)), einval, "length of zeroes");
    assert_eq!(read(&*file, 0, 3 * PAGE as usize), &pages(3, 5)[..], "nothing was written");
    file.write_at(alignment as u64, &buf[..alignment]).unwrap();
}

fn a_missing_file_is_not_found(ground: &Ground) {
    let not_found = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound);
    };
    let fs = &ground.fs;
    assert!(!ground.exists("no"));
    not_found(fs.open(&ground.path("no"), ground.options()).map(drop));
    not_found(fs.open(&ground.path("no/f"), ground.options().create(true)).map(drop));
    not_found(fs.rename(&ground.path("no"), &ground.path("f")));
    not_found(fs.remove_file(&ground.path("no")));
    not_found(fs.list_dir(&ground.path("no")).map(drop));
    not_found(fs.sync_dir(&ground.path("no")));
}

fn create_keeps_and_create_new_refuses_what_is_there(ground: &Ground) {
    let new = ground.options().create_new(true);
    let file = ground.fs.open(&ground.path("f"), new).unwrap();
    file.write_at(0, &pages(1, 3)).unwrap();
    assert_eq!(ground.fs.open(&ground.path("f"), new).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(ground.create("f").len().unwrap(), PAGE);
    assert!(ground.exists("f"));
}

fn a_read_only_file_refuses_every_change(ground: &Ground) {
    ground.create("f").write_at(0, &pages(1, 3)).unwrap();
    let read_only = ground.options().read_only(true);
    let file = ground.fs.open(&ground.path("f"), read_only).unwrap();
    assert_eq!(read(&*file, 0, PAGE as usize), &pages(1, 3)[..]);
    let ebadf = Some(Errno::BADF.raw_os_error());
    assert_eq!(errno(file.write_at(0, &pages(1, 4))), ebadf);
    assert_eq!(errno(file.write_at_sync(0, &pages(1, 4))), ebadf);
    assert_eq!(errno(file.write_zeroes(0, PAGE)), ebadf);
    assert_eq!(errno(file.set_len(0)), ebadf);
    assert_eq!(read(&*file, 0, PAGE as usize), &pages(1, 3)[..]);
    let contradiction = ground.fs.open(&ground.path("g"), read_only.create(true));
    assert_eq!(contradiction.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(!ground.exists("g"));
}

fn a_directory_is_no_file(ground: &Ground) {
    let dir = ground.path("d");
    ground.fs.create_dir_all(&dir).unwrap();
    ground.create("f");
    for options in [ground.options(), ground.options().create(true), ground.options().read_only(true)] {
        assert_eq!(ground.fs.open(&dir, options).unwrap_err().kind(), ErrorKind::IsADirectory);
    }
    assert!(ground.fs.remove_file(&dir).is_err());
    assert!(ground.fs.create_dir_all(&ground.path("f/d")).is_err());
    assert_eq!(ground.fs.sync_dir(&ground.path("f")).unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(ground.fs.list_dir(&ground.path("f")).unwrap_err().kind(), ErrorKind::NotADirectory);
    assert!(ground.exists("d") && ground.exists("f"));
}

fn an_offset_that_no_file_has_is_an_error(ground: &Ground) {
    let file = ground.create("f");
    let end = u64::MAX - (PAGE - 1);
    let efbig = Some(Errno::FBIG.raw_os_error());
    assert_eq!(errno(file.write_at(end, &pages(1, 1))), efbig);
    assert_eq!(errno(file.write_at_sync(end, &pages(1, 1))), efbig);
    assert_eq!(errno(file.write_zeroes(PAGE, end)), efbig);
    assert_eq!(errno(file.set_len(u64::MAX)), efbig);
    assert_eq!(file.len().unwrap(), 0);
}

fn names_are_listed_sorted(ground: &Ground) {
    for name in ["b", "a", "c10", "c2"] {
        ground.create(name);
    }
    ground.fs.create_dir_all(&ground.path("dir/below")).unwrap();
    assert_eq!(ground.fs.list_dir(&ground.root).unwrap(), ["a", "b", "c10", "c2", "dir"]);
    assert_eq!(ground.fs.list_dir(&ground.path("dir")).unwrap(), ["below"]);
    assert!(ground.fs.list_dir(&ground.path("dir/below")).unwrap().is_empty());
}

fn rename_replaces_and_open_handles_stay_with_their_file(ground: &Ground) {
    let (new, old) = (ground.create("new"), ground.create("name"));
    new.write_at(0, &pages(1, 1)).unwrap();
    old.write_at(0, &pages(1, 2)).unwrap();
    ground.fs.rename(&ground.path("new"), &ground.path("name")).unwrap();
    ground.fs.sync_dir(&ground.root).unwrap();
    assert!(!ground.exists("new"));
    assert_eq!(read(&*ground.create("name"), 0, PAGE as usize), &pages(1, 1)[..]);
    assert_eq!(read(&*old, 0, PAGE as usize), &pages(1, 2)[..]);
    new.write_at(0, &pages(1, 3)).unwrap();
    assert_eq!(read(&*ground.create("name"), 0, PAGE as usize), &pages(1, 3)[..]);
    ground.fs.rename(&ground.path("name"), &ground.path("name")).unwrap();
    assert!(ground.exists("name"));

    ground.fs.create_dir_all(&ground.path("d/e")).unwrap();
    ground.fs.rename(&ground.path("name"), &ground.path("d/e/name")).unwrap();
    ground.fs.rename(&ground.path("d"), &ground.path("D")).unwrap();
    assert!(ground.exists("D/e/name") && !ground.exists("d") && !ground.exists("name"));
    assert!(ground.fs.rename(&ground.path("D"), &ground.path("D/e/inside")).is_err());
    ground.create("f");
    assert!(ground.fs.rename(&ground.path("f"), &ground.path("D")).is_err());
    assert!(ground.fs.rename(&ground.path("D"), &ground.path("f")).is_err());
}

fn a_removed_file_lives_on_in_its_handles(ground: &Ground) {
    let file = ground.create("f");
    file.write_at(0, &pages(1, 1)).unwrap();
    ground.fs.remove_file(&ground.path("f")).unwrap();
    assert!(!ground.exists("f"));
    file.write_at(PAGE, &pages(1, 2)).unwrap();
    assert_eq!(read(&*file, 0, 2 * PAGE as usize).len() as u64, 2 * PAGE);
    assert_eq!(ground.create("f").len().unwrap(), 0, "a new file");
}

fn a_lock_excludes_every_other_opener_until_dropped(ground: &Ground) {
    let path = ground.path("LOCK");
    let held = ground.fs.lock_exclusive(&path).unwrap().expect("nobody else has it");
    assert!(ground.exists("LOCK"));
    assert!(ground.fs.lock_exclusive(&path).unwrap().is_none());
    let other = ground.fs.lock_exclusive(&ground.path("OTHER")).unwrap();
    assert!(other.is_some());
    drop(held);
    let again = ground.fs.lock_exclusive(&path).unwrap();
    assert!(again.is_some());
    assert!(ground.fs.lock_exclusive(&path).unwrap().is_none());
    assert!(ground.fs.lock_shared(&path).unwrap().is_none(), "one holder has it for itself");
    drop(again);
    let readers = [(); 2].map(|()| ground.fs.lock_shared(&path).unwrap().expect("readers share it"));
    for reader in readers {
        assert!(ground.fs.lock_exclusive(&path).unwrap().is_none(), "a reader has it");
        drop(reader);
    }
    assert!(ground.fs.lock_exclusive(&path).unwrap().is_some());
    assert!(ground.fs.lock_shared(&ground.path("NONE")).is_err(), "a reader makes no file");
    assert!(!ground.exists("NONE"));
}

fn directories_are_made_with_those_above_them(ground: &Ground) {
    let deep = ground.path("a/b/c");
    create_dir_all_durable(&*ground.fs, &deep).unwrap();
    create_dir_all_durable(&*ground.fs, &deep).unwrap();
    ground.fs.create_dir_all(&deep).unwrap();
    ground.fs.sync_dir(&deep).unwrap();
    assert_eq!(ground.fs.list_dir(&ground.path("a")).unwrap(), ["b"]);
    assert!(ground.fs.exists(Path::new("/")));
}

fn threads_write_apart_in_one_file(ground: &Ground) {
    let file = ground.create("f");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let file = &file;
            scope.spawn(move || {
                for i in 0..16 {
                    let at = (i * 4 + thread) * PAGE;
                    let page = pages(1, (thread + 1) as u8);
                    if i % 4 == 0 { file.write_at_sync(at, &page) } else { file.write_at(at, &page) }
                        .unwrap();
                    assert_eq!(read(&**file, at, PAGE as usize), &page[..]);
                }
                file.sync().unwrap();
            });
        }
    });
    for page in 0..64 {
        assert_eq!(read(&*file, page * PAGE, PAGE as usize), &pages(1, (page % 4 + 1) as u8)[..]);
    }
}
