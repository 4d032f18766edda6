//! The state of all pages in a child process made by `fork`.
//!
//! The child has a copy of the whole state at one instant, under the pager's lock, but none of the parent's
//! threads. Its replicas are copies of the parent's replicas, with the pages that those had acknowledged by
//! then.
//!
//! | in the parent | in the child | because |
//! |---|---|---|
//! | `Resident` | `Resident`, writable, modified | write protection is not inherited |
//! | `Staged`, `Armed` | the same | frames are inherited |
//! | `Compressed` | the same | the tier is memory of the process, and the child has a copy of it |
//! | `Coming` | `Away` | the reply goes to the parent; the page's holders still have the page |
//! | `Leaving` | `Leaving`, sent again; `Staged` without a replica | the replicas may lack the page |
//!
//! - **FORK-1** The child uses no result of a request in flight. Every page that it reads from replicas was
//!   acknowledged before `fork`.

use super::{Core, State, Then};
use crate::client::{Gone, Replica};
use crate::fault::Backend;
use crate::pager::state::{Out, Replicas};
use crate::stats::FarStats;
use std::sync::Arc;

impl Core {
    /// Initializes the state in the child. `make` returns the child's copy of a replica, or the reason why
    /// there is none.
    pub(in crate::pager) fn begin_in_child(
        &mut self,
        backend: Arc<dyn Backend>,
        make: impl Fn(&dyn Replica) -> Result<Arc<dyn Replica>, String>,
    ) {
        self.backend = backend;
        self.stats = FarStats {
            region_bytes: self.stats.region_bytes,
            local_bytes: self.stats.local_bytes,
            page_bytes: self.stats.page_bytes,
            unmanaged_bytes: self.stats.unmanaged_bytes,
            ..FarStats::default()
        };
        (self.guessed, self.recopying, self.full) = (0, 0, 0);
        self.waiting.clear();
        self.staged.iter_mut().for_each(|staged| staged.misses = 0);
        self.take_replicas(make);
        for page in self.pages.written() {
            #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
            self.page_in_child(page as u32);
        }
    }

    /// Closes inherited descriptors in a child without far memory.
    pub(in crate::pager) fn abandon(&self) {
        self.replicas.iter().for_each(|replica| replica.abandon());
        self.backend.abandon();
    }

    fn take_replicas(&mut self, make: impl Fn(&dyn Replica) -> Result<Arc<dyn Replica>, String>) {
        for index in 0..self.replicas.len() {
            let bit: Replicas = 1 << index;
            let name = self.replicas[index].name().to_owned();
            let made = if self.live & bit == 0 {
                Err("its parent had lost it".into())
            } else {
                make(&*self.replicas[index])
            };
            let (replica, lost) = match made {
                Ok(replica) => (replica, None),
                Err(why) => (Arc::new(Gone(name)) as Arc<dyn Replica>, Some(why)),
            };
            // The parent's replica belongs to the parent's threads, so it is not dropped here.
            std::mem::forget(std::mem::replace(&mut self.replicas[index], replica));
            if let Some(why) = lost {
                self.live &= !bit;
                self.down |= bit;
                self.last_refusal = format!("{}: {why}", self.replicas[index].name());
                let alone = self.mark_lost(index);
                if alone > 0 {
                    let refusal = &self.last_refusal;
                    crate::say(&format!(
                        "azekura far memory: a child process cannot have {alone} pages of its parent: \
                         {refusal}\n"
                    ));
                }
            }
        }
    }

    fn page_in_child(&mut self, page: u32) {
        match self.pages[page as usize].state {
            State::Resident { .. } => {
                self.pages[page as usize].state = State::Resident { writable: true, dirty: true };
            }
            State::Coming { frame, then, .. } => {
                self.local -= 1;
                self.frames.give_full(frame);
                if then == Then::Discard {
                    self.make_empty(page);
                } else if self.pages[page as usize].holders & self.live == 0 {
                    self.pages[page as usize].state = State::Lost;
                } else {
                    self.pages[page as usize].state = State::Away;
                }
            }
            State::Leaving { frame, discard: true, .. } => {
                self.leaving -= 1;
                self.frames.give_full(frame);
                self.make_empty(page);
            }
            // No replica is available. The page stays local until its frame is needed, because the child may
            // end or execute another program before that.
            State::Leaving { frame, .. } if self.live == 0 => {
                self.leaving -= 1;
                self.local += 1;
                self.pages[page as usize].holders = 0;
                self.pages[page as usize].state = State::Staged { frame };
                self.stage(page);
            }
            State::Leaving { frame, .. } => {
                let out = Out::default();
                self.pages[page as usize].state = State::Leaving { frame, touch: None, out, discard: false };
                self.send_on(vec![page]);
            }
            State::Open => unreachable!("OPEN-3: no block is open where a child is made"),
            State::Empty
            | State::Away
            | State::Compressed
            | State::Staged { .. }
            | State::Armed { .. }
            | State::Lost
            | State::Unmanaged => {}
        }
    }
}
