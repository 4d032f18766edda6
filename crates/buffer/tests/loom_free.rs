//! Model of the free list: a number that moves between the stacks of two stripes is neither lost nor doubled,
//! and a pop sees the stores of the thread that pushed the number (STACK-1).
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a failed step ends the model")]

mod loom_common;

use azekura_base::sync::{Arc, thread};
use azekura_buffer::model::ModelStacks;
use loom_common::model;

#[test]
fn stack_1_numbers_move_between_two_stacks() {
    model("push own, pop any", 3, 100, || {
        let stacks = Arc::new(ModelStacks::default());
        let first = stacks.pop(0).unwrap();
        let second = stacks.pop(0).unwrap();
        stacks.push(0, first);
        let theirs = {
            let stacks = Arc::clone(&stacks);
            thread::spawn(move || {
                stacks.push(1, second);
                stacks.pop(1).into_iter().for_each(|number| stacks.push(0, number));
            })
        };
        if let Some(number) = stacks.pop(1).or_else(|| stacks.pop(0)) {
            stacks.push(1, number);
        }
        theirs.join().unwrap();
        let mut all: Vec<u32> =
            [0, 1].iter().flat_map(|&s| std::iter::from_fn(|| stacks.pop(s)).collect::<Vec<_>>()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    });
}
