//! The replacement policies that the paper compares, in sequential form: the caller holds a lock.

pub mod gclock;
mod ghost;
mod list;
pub mod lru;
pub mod s3_fifo;
pub mod two_q;

pub use gclock::Gclock;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use two_q::TwoQ;

/// A replacement policy. Frames are numbers from 0; the policy keeps the list of free ones.
pub trait Policy: Send {
    /// Name in tables.
    const NAME: &'static str;

    /// Returns a policy for this number of frames, all free.
    fn new(frames: usize) -> Self;

    /// Records a use of the page in this frame.
    fn hit(&mut self, frame: u32);

    /// Returns a frame for a page that has none: a free one, or one with an evicted page. Evicts only pages
    /// in frames for which `may_leave` returns `true`. Returns `None` if there is none.
    fn admit(&mut self, page: u64, may_leave: &dyn Fn(u32) -> bool) -> Option<u32>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::nb_gclock::zipf::{References, Skew};
    use std::collections::HashMap;

    /// A policy in its simplest form, over pages instead of frames; every operation takes linear time.
    trait Reference {
        fn new(frames: usize) -> Self;
        /// Fixes a page; returns `true` if it was resident.
        fn fix(&mut self, page: u64) -> bool;
    }

    struct PlainLru(usize, Vec<u64>);
    impl Reference for PlainLru {
        fn new(frames: usize) -> Self {
            Self(frames, Vec::new())
        }
        fn fix(&mut self, page: u64) -> bool {
            let was_there = self.1.iter().position(|&p| p == page).map(|at| self.1.remove(at)).is_some();
            self.1.insert(0, page);
            self.1.truncate(self.0);
            was_there
        }
    }

    struct PlainGclock(usize, Vec<(u64, u64)>);
    impl Reference for PlainGclock {
        fn new(frames: usize) -> Self {
            Self(frames, Vec::new())
        }
        /// The clock hand points to the front of the queue.
        fn fix(&mut self, page: u64) -> bool {
            if let Some((_, count)) = self.1.iter_mut().find(|(p, _)| *p == page) {
                *count += 1;
                return true;
            }
            while self.1.len() == self.0 {
                let (front, count) = self.1.remove(0);
                if count > 1 {
                    self.1.push((front, count - 1));
                }
            }
            self.1.push((page, 1));
            false
        }
    }

    /// 2Q by Johnson and Shasha, VLDB 1994, figure "full version".
    struct Plain2q {
        frames: usize,
        a1in: Vec<u64>,
        a1out: Vec<u64>,
        am: Vec<u64>,
    }
    impl Reference for Plain2q {
        fn new(frames: usize) -> Self {
            Self { frames, a1in: Vec::new(), a1out: Vec::new(), am: Vec::new() }
        }
        fn fix(&mut self, page: u64) -> bool {
            if let Some(at) = self.am.iter().position(|&p| p == page) {
                self.am.remove(at);
                self.am.insert(0, page);
                return true;
            }
            if self.a1in.contains(&page) {
                return true;
            }
            if self.a1in.len() + self.am.len() == self.frames {
                if self.a1in.len() > (self.frames / 5).max(1) || self.am.is_empty() {
                    let out = self.a1in.pop().expect("not empty");
                    self.a1out.insert(0, out);
                    self.a1out.truncate((self.frames * 3 / 10).max(1));
                } else {
                    self.am.pop();
                }
            }
            if let Some(at) = self.a1out.iter().position(|&p| p == page) {
                self.a1out.remove(at);
                self.am.insert(0, page);
            } else {
                self.a1in.insert(0, page);
            }
            false
        }
    }

    /// S3-FIFO by Yang et al., SOSP 2023, Algorithm 1.
    struct PlainS3 {
        frames: usize,
        small: Vec<(u64, u8)>,
        main: Vec<(u64, u8)>,
        ghost: Vec<u64>,
    }
    impl PlainS3 {
        fn evict(&mut self) {
            if self.small.len() >= (self.frames / 10).max(1) || self.main.is_empty() {
                while let Some((page, uses)) = self.small.pop() {
                    if uses > 1 {
                        self.main.insert(0, (page, 0));
                        if self.main.len() > self.frames - (self.frames / 10).max(1) {
                            return self.evict_main();
                        }
                    } else {
                        self.ghost.insert(0, page);
                        self.ghost.truncate(self.frames - (self.frames / 10).max(1));
                        return;
                    }
                }
            }
            self.evict_main();
        }
        fn evict_main(&mut self) {
            while let Some((page, uses)) = self.main.pop() {
                if uses == 0 {
                    return;
                }
                self.main.insert(0, (page, uses - 1));
            }
        }
    }
    impl Reference for PlainS3 {
        fn new(frames: usize) -> Self {
            Self { frames, small: Vec::new(), main: Vec::new(), ghost: Vec::new() }
        }
        fn fix(&mut self, page: u64) -> bool {
            if let Some((_, uses)) = self.small.iter_mut().chain(&mut self.main).find(|(p, _)| *p == page) {
                *uses = (*uses + 1).min(3);
                return true;
            }
            if self.small.len() + self.main.len() == self.frames {
                self.evict();
            }
            if let Some(at) = self.ghost.iter().position(|&p| p == page) {
                self.ghost.remove(at);
                self.main.insert(0, (page, 0));
            } else {
                self.small.insert(0, (page, 0));
            }
            false
        }
    }

    fn agree<P: Policy, R: Reference>() {
        for (seed, frames) in [(1, 5), (2, 40), (3, 130)] {
            let (mut policy, mut reference) = (P::new(frames), R::new(frames));
            let (mut table, mut held) = (HashMap::new(), HashMap::new());
            let (mut hits, references) = (0, 20_000);
            for (step, page) in
                References::new(frames as u64 * 20, Skew::NAMED_80_20, seed).take(references).enumerate()
            {
                let found = table.get(&page).copied();
                match found {
                    Some(frame) => policy.hit(frame),
                    None => {
                        let frame = policy.admit(page, &|_| true).expect("nothing is pinned");
                        if let Some(old) = held.insert(frame, page) {
                            table.remove(&old);
                        }
                        table.insert(page, frame);
                    }
                }
                hits += usize::from(found.is_some());
                assert_eq!(
                    found.is_some(),
                    reference.fix(page),
                    "{}, seed {seed}, {frames} frames, step {step}, page {page}",
                    P::NAME
                );
            }
            assert!((references / 50..references).contains(&hits), "{}: {hits} hits", P::NAME);
        }
    }

    #[test]
    fn each_policy_keeps_the_pages_that_its_plain_form_keeps() {
        agree::<Lru, PlainLru>();
        agree::<Gclock, PlainGclock>();
        agree::<TwoQ, Plain2q>();
        agree::<S3Fifo, PlainS3>();
    }

    fn pinned_stay<P: Policy>() {
        let mut policy = P::new(10);
        let mut held = HashMap::new();
        for page in 0..1_000u64 {
            let frame = policy
                .admit(page, &|frame| !matches!(held.get(&frame), Some(0..3)))
                .expect("seven may leave");
            let old = held.insert(frame, page);
            assert!(!matches!(old, Some(0..3)), "{}: page {old:?} was pinned", P::NAME);
        }
        assert_eq!(policy.admit(2_000, &|_| false), None, "{}", P::NAME);
        assert!(policy.admit(2_001, &|_| true).is_some(), "{}", P::NAME);
    }

    #[test]
    fn pinned_pages_stay_and_when_all_are_pinned_nothing_leaves() {
        pinned_stay::<Lru>();
        pinned_stay::<Gclock>();
        pinned_stay::<TwoQ>();
        pinned_stay::<S3Fifo>();
    }
}
