//! Existing memory of a program becomes far memory in place. Its bytes are unchanged, before and after they
//! were paged out.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_far::{FarError, FarMemory, Mechanism, Server};
use std::ptr;
use std::time::Duration;

const MB: usize = 1 << 20;

/// Maps private anonymous memory that stays mapped until the process ends.
fn mapped(bytes: usize) -> usize {
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn byte(address: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address)
}

#[test]
fn adopted_memory_keeps_its_bytes_and_its_neighbors_theirs() {
    for mechanism in Mechanism::LADDER {
        let (start, bytes) = (mapped(9 * MB) + 4096, 8 * MB);
        // Few bytes are set; most of the memory was never touched.
        let set = [0, 5000, MB, 3 * MB + 77, bytes - 1];
        for (index, offset) in set.into_iter().enumerate() {
            // SAFETY: mapped above.
            unsafe { *byte(start + offset) = index as u8 + 1 };
        }
        let server = Server::builder().capacity(64 << 20).listen("127.0.0.1:0").unwrap();
        // SAFETY: mapped above, used by this thread only, and not used after the far memory is dropped.
        let setting = unsafe { FarMemory::builder().bytes(MB).adopt(start..start + bytes) };
        let made = setting
            .local(2 * MB)
            .page(64 << 10)
            .mechanism(mechanism)
            .servers([server.address().to_string()])
            // No server fails here, and a busy machine may be slow.
            .stall(Duration::from_secs(60))
            .build();
        let far = match made {
            Ok(far) => far,
            Err(FarError::Mechanism { source, .. }) => {
                println!("skipped: {mechanism} is not to be had here: {source}");
                continue;
            }
            Err(error) => panic!("{mechanism}: {error}"),
        };
        let is_far = mechanism != Mechanism::Sigsegv;
        assert_eq!(
            far.adopted().iter().map(|range| range.len()).sum::<usize>() > 7 * MB,
            is_far,
            "{mechanism}"
        );
        for round in 0..2 {
            for offset in (0..bytes).step_by(1237).chain([bytes - 1]) {
                let known = set.iter().position(|&at| at == offset).map_or(0, |index| index as u8 + 1);
                let expected = if round == 0 { known } else { (offset % 251) as u8 };
                // SAFETY: mapped above. Loads and stores work on far memory, too.
                unsafe {
                    assert_eq!(
                        *byte(start + offset),
                        expected,
                        "{mechanism}: round {round}, offset {offset}"
                    );
                    *byte(start + offset) = (offset % 251) as u8;
                }
            }
            for (index, offset) in set.into_iter().enumerate() {
                let was_written = offset % 1237 == 0 || offset == bytes - 1;
                let expected = if was_written { (offset % 251) as u8 } else { index as u8 + 1 };
                // SAFETY: mapped above.
                assert_eq!(unsafe { *byte(start + offset) }, expected, "{mechanism}: offset {offset}");
            }
        }
        assert_eq!(server.stats().puts > 20, is_far, "{mechanism}: {:?}", server.stats());
        drop(far);
    }
}
