//! Emulated users over a fixed number of connections.
//!
//! Each connection is a thread that serves its share of the users one after another, in the order of their
//! requests. A user looks at a page for the think time and then requests the next one. The system is thus
//! closed, as in DBT-1: with *N* users, think time *T* and response time *R*, the users request *N/(T+R)*
//! pages per second.

use super::front::Front;
use super::served::Served;
use super::shop::{Sequences, serve};
use crate::busy::of_thread;
use crate::lab::steady::Counter;
use azekura::Error;
use azekura_base::sync::atomic::{AtomicU8, Ordering::Relaxed};
use azekura_base::sync::thread;
use azekura_base::sync::time::Instant;
use azekura_trace::{Operation, Site, WaitKind, operation, wait};
use azekura_workload::bookstore::{Answer, Conformance, Interaction, Mix, Scale, Tally, Think, User};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

static NO_REQUEST: Site = Site::new("no user asks");

/// Traced operations around each page, one per kind of page.
static PAGES: [Operation; 14] = [
    Operation::new(Interaction::ALL[0].name()),
    Operation::new(Interaction::ALL[1].name()),
    Operation::new(Interaction::ALL[2].name()),
    Operation::new(Interaction::ALL[3].name()),
    Operation::new(Interaction::ALL[4].name()),
    Operation::new(Interaction::ALL[5].name()),
    Operation::new(Interaction::ALL[6].name()),
    Operation::new(Interaction::ALL[7].name()),
    Operation::new(Interaction::ALL[8].name()),
    Operation::new(Interaction::ALL[9].name()),
    Operation::new(Interaction::ALL[10].name()),
    Operation::new(Interaction::ALL[11].name()),
    Operation::new(Interaction::ALL[12].name()),
    Operation::new(Interaction::ALL[13].name()),
];

/// Think time of the paper's study. The clock of a visit advances by it for each page, whatever the real
/// think time.
const PAPER_THINK: Duration = Duration::from_millis(3_600);

/// The emulated users: their number and behavior.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Number of emulated users.
    pub users: usize,
    /// Number of connections; each is a thread.
    pub connections: usize,
    /// Time for which a user looks at a page.
    pub think: Think,
    /// Mix of pages that the users request.
    pub mix: Mix,
    /// Rules of the users: DBT-1's or TPC-W's.
    pub conformance: Conformance,
    /// Size of the shop.
    pub scale: Scale,
    /// Seed of all random choices.
    pub seed: u64,
    /// Largest number of pages that a user has visited before the run; the users have 0, 1, 2, … of them.
    /// Otherwise all users would begin with the first page of a visit, and a short run would request no other
    /// pages. These visits do not use the store.
    pub strolled: usize,
}

/// State of the measurement, which the measuring thread sets and the connections read.
#[derive(Debug, Default)]
pub struct Phase(AtomicU8);

const MEASURED: u8 = 1;
const OVER: u8 = 2;
const WEIGHED: u8 = 3;

impl Phase {
    /// Begins the measured time: pages are counted.
    pub fn measure(&self) {
        self.0.store(MEASURED, Relaxed); // Relaxed: no other data depends on the state
    }

    /// Begins to measure the processor time of each page, on connections with counts
    /// ([`Connection::served`]), until [`Phase::go_on`].
    pub fn weigh(&self) {
        self.0.store(WEIGHED, Relaxed); // Relaxed: no other data depends on the state
    }

    /// Ends the measurement of processor times; pages are not counted yet.
    pub fn go_on(&self) {
        self.0.store(0, Relaxed); // Relaxed: no other data depends on the state
    }

    /// Ends the phase: all connections stop.
    pub fn end(&self) {
        self.0.store(OVER, Relaxed);
    }
}

/// A user, with the clock of the current visit.
struct Visitor {
    user: User,
    /// Simulated time of the visits; advances by [`PAPER_THINK`] for each page.
    clock: Duration,
}

impl Visitor {
    /// Returns a user after `pages` pages, without using the store.
    fn after(pages: usize, mut user: User) -> Self {
        let mut clock = Duration::ZERO;
        for _ in 0..pages {
            let _ = user.next(clock);
            user.answered(&Answer::default());
            clock += PAPER_THINK;
        }
        Self { user, clock }
    }
}

/// One connection with its share of the users.
#[derive(Debug)]
pub struct Connection {
    /// The engine's upper layer.
    pub front: Arc<Front>,
    /// Sequences of numbers for new rows.
    pub sequences: Arc<Sequences>,
    /// All users, of which the connection serves a share.
    pub crowd: Crowd,
    /// Index of the connection, from 0.
    pub index: usize,
    /// Counts that other threads read during the run, if needed.
    pub served: Option<Arc<Served>>,
    /// Counter of pages that ends the warm-up on a simulated machine.
    pub(crate) counter: Option<Counter>,
}

impl Connection {
    /// Serves the connection's users until the phase ends. Returns the counts.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn run(&self, phase: &Phase) -> Result<Tally, Error> {
        let begin = Instant::now();
        let mut visitors = self.visitors();
        let mut due: BinaryHeap<Reverse<(Duration, usize)>> = self.first_requests(visitors.len());
        let mut tally = Tally::default();
        let mut page = String::new();
        let mut session = self.front.session();
        while let Some(Reverse((asked, at))) = due.pop() {
            if asked > begin.elapsed() {
                session.rest();
            }
            if !wait_until(begin, asked, phase) {
                break;
            }
            let visitor = &mut visitors[at];
            let request = visitor.user.next(visitor.clock);
            let served = self.served.as_deref();
            let weighed_since = (served.is_some() && phase.0.load(Relaxed) == WEIGHED).then(of_thread);
            let answer = {
                let _operation = operation(&PAGES[request.interaction().index()]);
                serve(&mut session, &self.sequences, &request, &mut page)?
            };
            visitor.user.answered(&answer);
            let now = begin.elapsed();
            if let Some(counter) = &self.counter {
                counter.count(&mut 0); // the phase ends the run
            }
            if let Some(served) = served {
                served.count(request.interaction(), weighed_since.map(|t| of_thread().saturating_sub(t)));
            }
            if phase.0.load(Relaxed) == MEASURED {
                tally.add(request.interaction(), now.saturating_sub(asked), answer.is_error);
            }
            visitor.clock += PAPER_THINK;
            due.push(Reverse((now + visitor.user.think(self.crowd.think), at)));
        }
        Ok(tally)
    }

    fn visitors(&self) -> Vec<Visitor> {
        let Crowd { users, connections, scale, mix, conformance, seed, strolled, .. } = self.crowd;
        (self.index..users)
            .step_by(connections.max(1))
            .map(|n| {
                let seed = seed ^ (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Visitor::after(n % (strolled + 1), User::new(scale, mix, conformance, seed))
            })
            .collect()
    }

    /// Spreads the first requests of the users over the first think time.
    fn first_requests(&self, users: usize) -> BinaryHeap<Reverse<(Duration, usize)>> {
        let (Think::Constant(mean) | Think::Exponential(mean)) = self.crowd.think;
        let turn = |at: usize| mean.mul_f64((at as f64 + 0.5) / users.max(1) as f64);
        (0..users).map(|at| Reverse((turn(at), at))).collect()
    }
}

/// Sleeps until the time of a request. Returns `false` if the phase ends first.
fn wait_until(begin: Instant, asked: Duration, phase: &Phase) -> bool {
    /// Longest sleep between two checks for the end of the phase.
    const NAP: Duration = Duration::from_millis(5);
    loop {
        if phase.0.load(Relaxed) == OVER {
            return false;
        }
        let left = asked.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return true;
        }
        let _idle = wait(&NO_REQUEST, 0, WaitKind::Idle);
        thread::sleep(left.min(NAP));
    }
}
