//! The memory of the library itself.

use crate::pool::{Class, Pool, UNIT};
use std::thread;

static POOL: Pool<64> = Pool::new();

fn bytes_of(class: Class) -> usize {
    class.units * UNIT
}

#[test]
fn a_class_has_room_for_its_blocks_and_wastes_at_most_a_quarter_of_large_ones() {
    let mut before = None;
    for bytes in 1..=1280 << 10 {
        let class = Class::of(bytes, 8).unwrap();
        assert!(bytes <= bytes_of(class), "{bytes}: {class:?}");
        assert!(bytes < 512 || bytes_of(class) - bytes <= bytes / 4 + 64, "{bytes}: {class:?}");
        assert!(before.is_none_or(|before: Class| bytes_of(before) <= bytes_of(class)), "{bytes}: {class:?}");
        before = Some(class);
    }
    assert_eq!(Class::of((1280 << 10) + 1, 8), None);
    assert_eq!(Class::of(8, 8192), None);
}

#[test]
fn blocks_are_aligned_belong_to_the_pool_and_are_reused() {
    for align in [1, 16, 64, 128, 1024, 4096] {
        let class = Class::of(100, align).unwrap();
        let block = POOL.take(class);
        assert!((block as usize).is_multiple_of(align) && POOL.owns(block as usize), "{align}");
        assert!(!POOL.owns(0) && !POOL.owns(std::ptr::from_ref(&class) as usize));
        // SAFETY: from `take` with this class.
        unsafe { POOL.give(class, block) };
    }
    static ALONE: Pool<1> = Pool::new();
    let class = Class::of(1 << 20, 16).unwrap();
    let blocks: Vec<*mut u8> = (0..4).map(|_| ALONE.take(class)).collect();
    assert_eq!(blocks.iter().map(|block| block.is_null()).collect::<Vec<_>>(), [false, false, false, true]);
    // SAFETY: from `take` with this class.
    unsafe { ALONE.give(class, blocks[1]) };
    assert_eq!(ALONE.take(class), blocks[1]);
}

/// Threads take blocks, fill them, and free those that other threads have taken. If two blocks overlapped, or
/// one block were given twice, its bytes would change.
#[test]
fn pool_2_threads_never_share_a_block() {
    struct Block(Class, *mut u8, u8);
    // SAFETY: one thread at a time has the block.
    unsafe impl Send for Block {}
    const THREADS: u8 = 4;
    const ROUNDS: usize = 20_000;
    let shared = std::sync::Mutex::new(Vec::<Block>::new());
    let work = |thread: u8, shared: &std::sync::Mutex<Vec<Block>>| {
        let mut random = u64::from(thread) + 1;
        for round in 0..ROUNDS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = 1 + (random >> 33) as usize % 700;
            let class = Class::of(bytes, 8).unwrap();
            let fill = (round as u8).wrapping_mul(THREADS).wrapping_add(thread);
            let block = POOL.take(class);
            assert!(!block.is_null());
            // SAFETY: a block of at least this many bytes, of this thread.
            unsafe { block.write_bytes(fill, bytes_of(class)) };
            let other = {
                let mut shared = shared.lock().unwrap();
                shared.push(Block(class, block, fill));
                let last = shared.len() - 1;
                if last < 50 { None } else { Some(shared.swap_remove((random >> 20) as usize % last)) }
            };
            if let Some(Block(class, block, fill)) = other {
                // SAFETY: from `take` with this class, and now of this thread.
                unsafe {
                    let bytes = std::slice::from_raw_parts(block, bytes_of(class));
                    assert!(bytes.iter().all(|&byte| byte == fill));
                    POOL.give(class, block);
                }
            }
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (work, shared) = (&work, &shared);
            scope.spawn(move || work(thread, shared));
        }
    });
}
