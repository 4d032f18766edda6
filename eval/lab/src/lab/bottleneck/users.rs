//! Emulated users over a fixed number of connections.
//!
//! Each connection is a thread and serves its share of the users one after another, first the user that has
//! waited longest. A user looks at a page for the think time and then asks for the next. So the loop is
//! closed, as in the kit: with *N* users, think time *T* and response *R*, *N/(T+R)* pages are asked for each
//! second.

use super::front::Front;
use super::served::Served;
use super::shop::{Sequences, serve};
use crate::busy::of_thread;
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

/// One operation per page, around those of the engine.
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

/// Think time of the paper's study, in which a visit's length is given, whatever the think time here.
const PAPER_THINK: Duration = Duration::from_millis(3_600);

/// The users, and their number and behavior.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Emulated users.
    pub users: usize,
    /// Connections; each is a thread.
    pub connections: usize,
    /// Time for which users look at a page.
    pub think: Think,
    /// Their mix of pages.
    pub mix: Mix,
    /// The rules that they keep.
    pub conformance: Conformance,
    /// The shop's size.
    pub scale: Scale,
    /// Seed of all choices.
    pub seed: u64,
    /// Pages that users have seen before they come, one after another up to this number. Otherwise all users
    /// would begin with the first page of a visit, and a short run would have no others. The store is not
    /// used for these.
    pub strolled: usize,
}

/// Signals to the users from outside.
#[derive(Debug, Default)]
pub struct Phase(AtomicU8);

const MEASURED: u8 = 1;
const OVER: u8 = 2;
const WEIGHED: u8 = 3;

impl Phase {
    /// From now on pages count.
    pub fn measure(&self) {
        self.0.store(MEASURED, Relaxed); // tells nothing but itself
    }

    /// From now on the processor time of each page is measured, where connections have counts to be looked
    /// at; until [`Phase::go_on`].
    pub fn weigh(&self) {
        self.0.store(WEIGHED, Relaxed); // likewise
    }

    /// From now on it is not, and pages do not count yet.
    pub fn go_on(&self) {
        self.0.store(0, Relaxed); // likewise
    }

    /// Ends the phase; all users leave.
    pub fn end(&self) {
        self.0.store(OVER, Relaxed);
    }
}

/// A user among those of one connection.
struct Visitor {
    user: User,
    /// The visit's own clock.
    clock: Duration,
}

impl Visitor {
    /// Returns a user that has seen `pages` pages.
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

/// One connection's share of the crowd.
#[derive(Debug)]
pub struct Connection {
    /// The engine.
    pub front: Arc<Front>,
    /// Numbers for new rows.
    pub sequences: Arc<Sequences>,
    /// The crowd.
    pub crowd: Crowd,
    /// Index of the connection in the crowd.
    pub index: usize,
    /// Counts for others to look at meanwhile, if they do.
    pub served: Option<Arc<Served>>,
}

impl Connection {
    /// Serves its users until the phase is over. Returns the counts.
    ///
    /// # Errors
    ///
    /// The store's.
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

    /// The users come one after another in the first think time, not all at once.
    fn first_requests(&self, users: usize) -> BinaryHeap<Reverse<(Duration, usize)>> {
        let (Think::Constant(mean) | Think::Exponential(mean)) = self.crowd.think;
        let turn = |at: usize| mean.mul_f64((at as f64 + 0.5) / users.max(1) as f64);
        (0..users).map(|at| Reverse((turn(at), at))).collect()
    }
}

/// Sleeps until a user asks for a page; returns whether the phase goes on.
fn wait_until(begin: Instant, asked: Duration, phase: &Phase) -> bool {
    /// The end of the phase is noticed within this time.
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
