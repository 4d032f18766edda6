//! A region behaves as ordinary memory with each available mechanism and each policy.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_far::{FarError, FarMemory, FarMemoryBuilder, Mechanism, Policy, Server};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::thread;
use std::time::Duration;

const PAGE: usize = 16 << 10;
const PAGES: usize = 96;

fn setting(server: &Server) -> FarMemoryBuilder {
    FarMemory::builder()
        .bytes(PAGES * PAGE)
        .local(24 * PAGE)
        .page(PAGE)
        .servers([server.address().to_string()])
        // No server fails here, and a busy machine may be slow.
        .stall(Duration::from_secs(60))
}

fn server() -> Server {
    Server::builder().capacity(64 << 20).listen("127.0.0.1:0").unwrap()
}

/// Runs `test` with each mechanism. Reports unavailable mechanisms without failing.
fn with_each_mechanism(test: impl Fn(Mechanism)) {
    for mechanism in Mechanism::LADDER {
        let server = server();
        match setting(&server).mechanism(mechanism).build() {
            Ok(_) => test(mechanism),
            Err(FarError::Mechanism { source, .. }) if mechanism != Mechanism::Sigsegv => {
                println!("skipped: {mechanism} is not to be had here: {source}");
            }
            Err(error) => panic!("{mechanism}: {error}"),
        }
    }
}

/// Random reads, writes and sweeps, compared with a plain array.
fn work(memory: &mut [u8], seed: u64, rounds: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut plain = vec![0_u8; memory.len()];
    for round in 0..rounds {
        match rng.random_range(0..10) {
            0 => {
                let (at, value) = (rng.random_range(0..PAGES) * PAGE, rng.random::<u8>());
                memory[at..at + PAGE].fill(value);
                plain[at..at + PAGE].fill(value);
            }
            1 => {
                let first = rng.random_range(0..memory.len() - 8 * PAGE);
                assert!(
                    memory[first..first + 8 * PAGE] == plain[first..first + 8 * PAGE],
                    "seed {seed}, round {round}"
                );
            }
            2..6 => {
                let at = rng.random_range(0..memory.len());
                assert_eq!(memory[at], plain[at], "seed {seed}, round {round}, byte {at}");
            }
            _ => {
                let (at, value) = (rng.random_range(0..memory.len()), rng.random::<u8>());
                memory[at] = value;
                plain[at] = value;
            }
        }
    }
    assert!(*memory == plain[..], "seed {seed}: the whole at the end");
}

#[test]
fn written_pages_are_read_back_by_every_mechanism() {
    with_each_mechanism(|mechanism| {
        let server = server();
        let mut memory = setting(&server).mechanism(mechanism).build().unwrap();
        assert_eq!(memory.mechanism(), mechanism);
        work(&mut memory, 1, 2000);
        let stats = memory.stats();
        assert!(stats.swap_outs > 100 && stats.swap_ins > 100, "{mechanism}: {stats}");
    });
}

#[test]
fn if_all_pages_may_be_local_none_is_paged_out() {
    with_each_mechanism(|mechanism| {
        for policy in Policy::ALL {
            let server = server();
            let all = setting(&server).local(PAGES * PAGE).mechanism(mechanism).policy(policy);
            let mut memory = all.build().unwrap();
            work(&mut memory, 7, 50);
            memory.fill(1);
            let stats = memory.stats();
            let left = stats.swap_outs + stats.clean_drops + stats.zero_drops + stats.swap_ins;
            assert_eq!((left, stats.zero_fills), (0, PAGES as u64), "{mechanism}, {policy}: {stats}");
        }
    });
}

#[test]
fn written_pages_are_read_back_under_every_policy() {
    with_each_mechanism(|mechanism| {
        for (seed, policy) in (2..).zip(Policy::PAPER) {
            let server = server();
            let mut memory = setting(&server).mechanism(mechanism).policy(policy).build().unwrap();
            work(&mut memory, seed, 400);
            drop(memory);
            assert_eq!(server.stats().sessions_ever, 1);
        }
    });
}

#[test]
fn pages_of_every_size_from_4_kib_to_2_mib_come_and_go() {
    with_each_mechanism(|mechanism| {
        for page in [4 << 10, 64 << 10, 2 << 20] {
            let server = Server::builder().capacity(64 << 20).listen("127.0.0.1:0").unwrap();
            let mut memory = setting(&server)
                .page(page)
                .bytes(12 * page)
                .local(8 * page)
                .mechanism(mechanism)
                .build()
                .unwrap();
            for pass in 0..3_u8 {
                for at in (0..memory.len()).step_by(1111) {
                    assert_eq!(
                        memory[at],
                        if pass == 0 { 0 } else { (at % 251) as u8 ^ (pass - 1) },
                        "{mechanism} {page} {at}"
                    );
                    memory[at] = (at % 251) as u8 ^ pass;
                }
            }
        }
    });
}

#[test]
fn f3_threads_that_touch_the_same_pages_lose_no_write() {
    with_each_mechanism(|mechanism| {
        let server = server();
        let memory = setting(&server).mechanism(mechanism).policy(Policy::UClock).build().unwrap();
        let base = memory.as_ptr() as usize;
        // Thread t owns every fourth word. All threads access all pages at random.
        thread::scope(|scope| {
            for t in 0..4_usize {
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(t as u64);
                    let words = PAGES * PAGE / 8 / 4;
                    let mut plain = vec![0_u64; words];
                    for round in 0..3000 {
                        let word = rng.random_range(0..words);
                        let at = (base + (word * 4 + t) * 8) as *mut u64;
                        // SAFETY: inside the region, and only this thread uses the word.
                        unsafe {
                            assert_eq!(
                                at.read_volatile(),
                                plain[word],
                                "{mechanism}: thread {t}, round {round}, word {word}"
                            );
                            plain[word] = rng.random();
                            at.write_volatile(plain[word]);
                        }
                    }
                });
            }
        });
        drop(memory);
    });
}

#[test]
fn f5_a_page_that_was_only_read_leaves_without_a_transfer() {
    with_each_mechanism(|mechanism| {
        let server = server();
        let mut memory = setting(&server).mechanism(mechanism).prefetch(false).build().unwrap();
        memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 253) as u8 + 1);
        let read = |memory: &FarMemory| memory.iter().map(|&b| u64::from(b)).sum::<u64>();
        let sum = read(&memory);
        let before = memory.stats();
        assert_eq!(read(&memory), sum);
        let after = memory.stats();
        assert_eq!(after.swap_outs, before.swap_outs, "{mechanism}");
        assert!(after.clean_drops > before.clean_drops + 60, "{mechanism}");
    });
}

#[test]
fn zeros_are_never_sent_and_given_back_pages_are_zeros() {
    with_each_mechanism(|mechanism| {
        let server = server();
        let mut memory = setting(&server).mechanism(mechanism).build().unwrap();
        memory.fill(0);
        assert_eq!((memory.stats().swap_outs, server.stats().puts), (0, 0), "{mechanism}");
        memory.fill(9);
        assert!(server.stats().pages > 60);
        memory.discard(PAGE + 1..memory.len());
        assert!(
            memory[..2 * PAGE].iter().all(|&b| b == 9) && memory[2 * PAGE..].iter().all(|&b| b == 0),
            "{mechanism}"
        );
    });
}

/// A hole that a raw system call makes in a resident page reads as zeros, and no thread waits for it.
#[test]
fn a_freed_part_of_a_resident_page_is_zero_without_a_wait() {
    const HOLE: usize = 4096;
    let take_out = |memory: &FarMemory, at: usize| {
        // SAFETY: a range of the memory that no thread uses now.
        let done = unsafe { libc::madvise(memory.as_ptr().add(at).cast(), HOLE, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    };
    with_each_mechanism(|mechanism| {
        if mechanism == Mechanism::Sigsegv {
            return; // its pages are those of a memory file, which `madvise` does not change
        }
        let server = server();
        // With FIFO no page is paged out or armed before its turn.
        let setting = setting(&server).policy(Policy::Fifo).prefetch(false).mechanism(mechanism);
        let mut memory = setting.build().unwrap();
        memory.fill(7);
        let (touched, left) = ((PAGES - 1) * PAGE, (PAGES - 2) * PAGE);
        for page in [touched, left] {
            memory[page..page + PAGE].fill(8);
            take_out(&memory, page + HOLE);
        }
        let is_right = |memory: &FarMemory, page: usize| {
            let is = |range: std::ops::Range<usize>, value| memory[range].iter().all(|&byte| byte == value);
            is(page + HOLE..page + 2 * HOLE, 0)
                && is(page..page + HOLE, 8)
                && is(page + 2 * HOLE..page + PAGE, 8)
        };
        assert!(is_right(&memory, touched), "{mechanism}");
        let before = memory.stats().swap_outs;
        assert!(memory[..left].iter().all(|&byte| byte == 7), "{mechanism}");
        assert!(memory.stats().swap_outs >= before + 2, "{mechanism}: both have left");
        assert!(is_right(&memory, left) && is_right(&memory, touched), "{mechanism}");
    });
}

#[test]
fn impossible_settings_are_refused_with_a_remedy() {
    let server = server();
    let refused = |setting: FarMemoryBuilder| setting.build().unwrap_err().to_string();
    assert!(refused(setting(&server).page(5000)).starts_with("the page size is 5000 bytes"));
    assert!(refused(setting(&server).bytes(0)).starts_with("a region of 0 bytes"));
    assert!(refused(setting(&server).local(PAGE)).contains("eight pages"));
    assert!(refused(setting(&server).servers([""; 0])).contains("no memory server"));
    assert!(refused(setting(&server).copies(2)).contains("2 copies on 1 servers"));
    assert!(
        refused(setting(&server).servers(["127.0.0.1:1"])).starts_with("cannot connect to memory server")
    );
    assert!(
        refused(setting(&server).bytes(1 << 30))
            .contains("1073741824 bytes wanted, 67108864 are available here")
    );
}

/// Returns the flags of the mapping that contains an address, each between blanks.
fn flags_at(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let place = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    let mut lines =
        maps.lines().skip_while(|line| !place(line).is_some_and(|place| place.contains(&address)));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    format!("{flags} ")
}

/// The core file of a program would be as long as `--max-far`.
#[test]
fn core_files_exclude_far_memory_and_include_the_pages_that_left_it() {
    with_each_mechanism(|mechanism| {
        let server = server();
        let memory = setting(&server).mechanism(mechanism).build().unwrap();
        let first = memory.as_ptr() as usize;
        let is_excluded = |address: usize| flags_at(address).contains(" dd ");
        assert!(is_excluded(first), "{mechanism}: {}", flags_at(first));
        // SAFETY: this thread holds no lock, and the page stays mapped.
        unsafe { memory.unmanage(first..first + PAGE) };
        assert!(!is_excluded(first), "{mechanism}: {}", flags_at(first));
        assert!(is_excluded(first + PAGE), "{mechanism}: {}", flags_at(first + PAGE));
    });
}

/// UNMANAGED-3: OpenBLAS maps 32 MiB per thread and calls `mbind`, but uses a small part of them.
#[test]
fn unmanaged_pages_count_against_the_budget() {
    const GIVEN: usize = 32;
    with_each_mechanism(|mechanism| {
        let server = server();
        let memory = setting(&server).mechanism(mechanism).local(48 * PAGE).build().unwrap();
        let first = memory.as_ptr() as usize;
        // SAFETY: this thread holds no lock, and the pages stay mapped.
        unsafe { memory.unmanage(first..first + GIVEN * PAGE) };
        memory.count_unmanaged();
        assert!(memory.stats().unmanaged_bytes <= PAGE as u64, "{mechanism}: {}", memory.stats());
        let write = |page: usize| {
            // SAFETY: the address is inside the region, which no other thread uses.
            unsafe { memory.as_ptr().add(page * PAGE).write_volatile(7) };
        };
        (GIVEN..GIVEN + 40).for_each(write);
        assert!(memory.stats().swap_outs < 16, "{mechanism}: {}", memory.stats());
        (0..GIVEN).for_each(write);
        memory.count_unmanaged();
        let bytes = memory.stats().unmanaged_bytes;
        assert!(bytes > 0 && bytes <= (GIVEN * PAGE) as u64, "{mechanism}: {bytes}");
    });
}
