//! Models of one frame: pin against evict, with a helper; optimistic readers; dirty against evict; recovery
//! LSNs against the checkpoint's scan (G2, G3, G5, G10; FRAME-3, -4, -7; RECOVERY-1, -2).
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a failed step ends the model")]

mod loom_common;

use azekura_base::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use azekura_base::sync::{Arc, thread};
use azekura_buffer::model::{ModelFrame, step};
use loom_common::model;

/// The first page in the frame, and the next one. A page's content is its number, multiplied by ten for each
/// change.
const OLD: u64 = 1;
const NEW: u64 = 2;

struct World {
    frame: ModelFrame,
    /// Content of the frame's buffer: relaxed, like the words of a page.
    content: AtomicU64,
    disk: AtomicU64,
    /// The log's next LSN. Relaxed: RECOVERY-1 must not depend on orderings of the log.
    counter: AtomicU64,
}

fn world() -> Arc<World> {
    Arc::new(World {
        frame: ModelFrame::holding(OLD),
        content: AtomicU64::new(OLD),
        disk: AtomicU64::new(OLD),
        counter: AtomicU64::new(1),
    })
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || run(&world))
}

impl World {
    /// Ends an eviction: the owner of the frame assigns it to the next page.
    fn refill_if_ours(&self) {
        if self.frame.finish_eviction() {
            fence(Release); // Release: as before a buffer is filled (FRAME-7)
            self.content.store(NEW, Relaxed);
            step();
            self.frame.publish(NEW);
            self.frame.unpin();
        }
    }

    fn evict(&self) {
        if self.frame.try_evict() {
            self.refill_if_ours();
        }
    }

    fn fix_old(&self) {
        if self.frame.try_pin(OLD) {
            assert_eq!(self.content.load(Relaxed), OLD, "a pinned page stays");
            step();
            assert_eq!(self.content.load(Relaxed), OLD, "a pinned page stays");
            self.frame.unpin();
        } else if self.frame.join_leaving(OLD) {
            self.refill_if_ours();
        }
    }

    /// Latches the page exclusively, draws an LSN, and changes the page.
    fn change(&self) {
        if !self.frame.try_pin(OLD) {
            return;
        }
        self.frame.latch().lock_exclusive();
        self.frame.set_dirty(self.counter.load(Relaxed));
        step();
        self.counter.fetch_add(1, Relaxed);
        step();
        self.content.store(self.content.load(Relaxed) * 10, Relaxed);
        self.frame.latch().unlock_exclusive();
        self.frame.unpin();
    }

    /// Writes the page once, as `write_back` does.
    fn write(&self, reaches_disk: bool) {
        if !self.frame.claim_writing() {
            return;
        }
        if self.frame.latch().try_lock_shared() {
            let version = self.frame.latch().optimistic().expect("latched shared");
            let next_lsn = self.counter.load(Relaxed);
            step();
            let image = self.content.load(Relaxed);
            self.frame.latch().unlock_shared();
            if reaches_disk {
                self.disk.store(image, Relaxed);
                self.frame.image_written(next_lsn);
                if self.frame.latch().try_lock_shared() {
                    if self.frame.latch().validate(version) {
                        self.frame.now_clean();
                    }
                    self.frame.latch().unlock_shared();
                }
            }
        }
        self.frame.release_writing();
        self.frame.unpin();
    }
}

#[test]
fn g5_a_pin_is_on_the_page_it_asked_for_or_helps_it_out() {
    model("pin, evict", 4, 100, || {
        let world = world();
        let evictor = spawn(&world, World::evict);
        world.fix_old();
        evictor.join().unwrap();
    });
}

#[test]
fn g10_an_evictor_and_two_helpers_hand_the_frame_to_one_of_them() {
    model("evictor, two helpers", 2, 1000, || {
        let world = world();
        let others = [spawn(&world, World::evict), spawn(&world, World::fix_old)];
        world.fix_old();
        for other in others {
            other.join().unwrap();
        }
        // No evicting thread is left, and the frame was not assigned twice.
        assert!(world.frame.try_evict() && world.frame.finish_eviction());
    });
}

#[test]
fn frame_7_an_optimistic_reader_of_the_old_page_never_validates_the_new_one() {
    model("peek, evict", 4, 100, || {
        let world = world();
        let evictor = spawn(&world, World::evict);
        if let Some(version) = world.frame.look(OLD) {
            step();
            let content = world.content.load(Relaxed);
            step();
            if world.frame.latch().validate(version) {
                assert_eq!(content, OLD);
            }
        }
        evictor.join().unwrap();
    });
}

#[test]
fn frame_7_a_page_that_validates_is_not_yet_changed_elsewhere() {
    model("peek, evict, change elsewhere", 4, 100, || {
        let world = world();
        let evictor = spawn(&world, |world| {
            if world.frame.try_evict() && world.frame.finish_eviction() {
                // Another frame holds the page now, and a thread has changed it there.
                world.disk.store(OLD * 10, Release);
                step();
            }
        });
        if let Some(version) = world.frame.look(OLD) {
            step();
            let changed_elsewhere = world.disk.load(Acquire) != OLD;
            step();
            assert!(!(changed_elsewhere && world.frame.latch().validate(version)), "stale, and believed");
        }
        evictor.join().unwrap();
    });
}

#[test]
fn g3_a_change_is_on_disk_before_its_page_leaves() {
    model("change, write, evict", 3, 1000, || {
        let world = world();
        let others = [spawn(&world, World::change), spawn(&world, |world| world.write(true))];
        step();
        if world.frame.try_evict() {
            assert_eq!(
                world.disk.load(Relaxed),
                world.content.load(Relaxed),
                "evicted with an unwritten change"
            );
            world.frame.finish_eviction();
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn g3_two_changes_and_a_writer_leave_the_last_image_on_disk_or_the_page_dirty() {
    model("two changes, write, evict", 2, 500, || {
        let world = world();
        let changer = spawn(&world, |world| {
            world.change();
            world.change();
        });
        let writer = spawn(&world, |world| world.write(true));
        world.write(true);
        changer.join().unwrap();
        writer.join().unwrap();
        if world.frame.try_evict() {
            assert_eq!(
                world.disk.load(Relaxed),
                world.content.load(Relaxed),
                "a newer image was overwritten"
            );
        }
    });
}

/// Takes a checkpoint, and asserts that its redo point covers the one change (LSN 1) that is not on disk.
fn checkpoint(world: &World) {
    step();
    let counter = world.counter.load(Relaxed);
    let redo = world.frame.checkpoint_look().map_or(counter, |lsn| lsn.min(counter));
    // Data written before the end of the scan are synced before the checkpoint is valid.
    let is_written = world.disk.load(Relaxed) != OLD;
    assert!(counter == 1 || redo <= 1 || is_written, "redo from {redo} misses the change");
}

#[test]
fn recovery_1_a_page_turning_dirty_is_seen_by_a_checkpoint_that_saw_its_lsn_drawn() {
    model("change, checkpoint", 4, 50, || {
        let world = world();
        let changer = spawn(&world, World::change);
        checkpoint(&world);
        changer.join().unwrap();
    });
}

#[test]
fn recovery_2_an_image_on_its_way_is_seen_by_a_checkpoint_whether_it_arrives_or_not() {
    for reaches_disk in [true, false] {
        model("write, checkpoint", 4, 100, move || {
            let world = world();
            world.change();
            let writer = spawn(&world, move |world| world.write(reaches_disk));
            checkpoint(&world);
            writer.join().unwrap();
        });
    }
}

#[test]
fn recovery_2_a_failed_write_and_one_more_are_seen() {
    model("failed write, write, checkpoint", 3, 100, || {
        let world = world();
        world.change();
        let writer = spawn(&world, |world| {
            world.write(false);
            world.write(true);
        });
        checkpoint(&world);
        writer.join().unwrap();
    });
}
