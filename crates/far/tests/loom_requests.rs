//! F2, F3: a fault that a handler posts is completed after its page is present, in every interleaving of
//! handlers and pager.
#![cfg(loom)]

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use azekura_base::sync::{Arc, Condvar, Mutex, thread};
use azekura_far::model::ModelRequests;

/// A model of the pager's eventfd.
#[derive(Debug, Default)]
struct Notifier {
    notified: Mutex<bool>,
    heard: Condvar,
}

impl Notifier {
    fn notify(&self) {
        *self.notified.lock() = true;
        self.heard.notify_one();
    }

    fn reset(&self) {
        *self.notified.lock() = false;
    }

    fn wait(&self) {
        let mut notified = self.notified.lock();
        while !*notified {
            self.heard.wait(&mut notified);
        }
    }
}

struct Region<const N: usize> {
    requests: ModelRequests<N>,
    notifier: Notifier,
    /// The pager's mutex, for two threads that complete faults: faults are taken without it, and completed
    /// under it (REQUEST-4).
    core: Option<Mutex<()>>,
    /// Content of the pages at the addresses; zero while they are paged out.
    pages: [AtomicU32; 2],
}

impl<const N: usize> Region<N> {
    fn new() -> Arc<Self> {
        Self::guarded(None)
    }

    fn guarded(core: Option<Mutex<()>>) -> Arc<Self> {
        Arc::new(Self {
            requests: ModelRequests::default(),
            notifier: Notifier::default(),
            core,
            pages: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    /// Simulates a thread of the program that touches a paged-out page.
    fn touch(&self, page: usize) {
        self.requests.post(page, || self.notifier.notify());
        // Relaxed: the fault table must provide the ordering.
        assert_eq!(
            self.pages[page].load(Relaxed),
            7,
            "page {page} is not there although its fault was answered"
        );
    }

    /// Runs the pager for `faults` faults: makes each page present, then completes the fault.
    fn page(&self, faults: usize) {
        for _ in 0..faults {
            let page = loop {
                if let Some(page) = self.requests.take() {
                    break page;
                }
                self.notifier.wait();
                self.notifier.reset();
            };
            let _answers = self.core.as_ref().map(Mutex::lock);
            self.pages[page].store(7, Relaxed);
            self.requests.finish(page);
        }
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn two_threads_that_touch_two_pages_are_both_answered() {
    model(|| {
        let region = Region::<2>::new();
        let programs: Vec<_> = (0..2)
            .map(|page| {
                let region = Arc::clone(&region);
                thread::spawn(move || region.touch(page))
            })
            .collect();
        region.page(2);
        programs.into_iter().for_each(|program| program.join().expect("no panic"));
    });
}

#[test]
fn a_request_that_is_used_again_carries_the_new_fault() {
    model(|| {
        let region = Region::<1>::new();
        let program = {
            let region = Arc::clone(&region);
            thread::spawn(move || (0..2).for_each(|page| region.touch(page)))
        };
        region.page(2);
        program.join().expect("no panic");
    });
}

#[test]
fn a_handler_that_finds_the_table_full_gets_a_request_when_one_is_free() {
    model(|| {
        let region = Region::<1>::new();
        let program = {
            let region = Arc::clone(&region);
            thread::spawn(move || region.touch(0))
        };
        let pager = {
            let region = Arc::clone(&region);
            thread::spawn(move || region.page(2))
        };
        region.touch(1);
        program.join().expect("no panic");
        pager.join().expect("no panic");
    });
}

#[test]
fn a_page_that_is_answered_once_more_by_another_thread_does_not_answer_a_fault_on_the_next() {
    model(|| {
        let region = Region::<1>::guarded(Some(Mutex::new(())));
        let program = {
            let region = Arc::clone(&region);
            thread::spawn(move || (0..2).for_each(|page| region.touch(page)))
        };
        // As the thread of a replica does when it wakes the threads that wait for a page. There may be none,
        // if the fault was completed already.
        let replica = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                let _answers = region.core.as_ref().map(Mutex::lock);
                if region.pages[0].load(Relaxed) != 0 {
                    region.requests.finish(0);
                }
            })
        };
        region.page(2);
        program.join().expect("no panic");
        replica.join().expect("no panic");
    });
}
