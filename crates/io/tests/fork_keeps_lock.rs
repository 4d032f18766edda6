//! A forked child shares the parent's open file and its lock: dropping the copy must not release the lock.
#![allow(unsafe_code, reason = "fork has no safe form")]

use azekura_io::{Fs, OsFs};

#[test]
fn a_forked_child_that_drops_the_lock_leaves_it_with_the_parent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    let held = OsFs::new().lock_exclusive(&path).unwrap().expect("free");
    // SAFETY: the child only drops the lock, a system call or two, and ends at once.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork"),
        0 => {
            drop(held);
            // SAFETY: ends this process without running any code of the test.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `child` is a child of this process, and `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            assert!(OsFs::new().lock_exclusive(&path).unwrap().is_none(), "the parent still has it");
            drop(held);
            assert!(OsFs::new().lock_exclusive(&path).unwrap().is_some());
        }
    }
}
