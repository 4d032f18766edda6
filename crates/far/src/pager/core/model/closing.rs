//! Replies and losses of servers after the region was closed.

use super::{Care, STEPS, World};
use crate::client::Sink;

#[test]
fn replies_to_a_closed_region_are_ignored() {
    for seed in 0..200 {
        let mut world = World::new(seed, Care::Copies);
        (0..STEPS / 4).for_each(|_| world.step());
        world.pager.close();
        for (index, store) in world.stores.iter().enumerate() {
            if seed % 2 == 0 {
                while store.has_orders() {
                    for (part, refused) in store.answer(true, usize::MAX) {
                        world.pager.finished(index, part, refused);
                    }
                }
            }
            world.pager.lost(index, "the region was closed".into(), store.lose());
        }
    }
}
