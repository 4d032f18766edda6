//! RESUME-1 to RESUME-4: a session with a broken stream, a client that reconnects, and another that needs the
//! session's memory, in every interleaving.
//!
//! The model has no clock: a timeout of zero ends at once, any other one never. So a missing wake-up leaves a
//! thread blocked, which loom reports.
#![cfg(loom)]

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use azekura_base::sync::{Arc, thread};
use azekura_far::model::{ModelResumeTable, ModelStream};
use std::time::Duration;

const NAME: u128 = 77;
/// Connection numbers: the session's first connection, and that of the client that reconnects.
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const FOR_EVER: Duration = Duration::from_secs(3600);
const NOT_AT_ALL: Duration = Duration::ZERO;

#[derive(Default)]
struct House {
    resume_table: ModelResumeTable,
    closed: Arc<AtomicU32>,
    served: AtomicU32,
    /// Set when the session has ended and serves no more connections.
    over: AtomicU32,
}

impl House {
    /// Starts a session with a broken first stream. The session waits for `linger` for each further stream.
    fn with_session(linger: Duration) -> (Arc<Self>, thread::JoinHandle<()>) {
        let house = Arc::new(Self::default());
        let inside = Arc::clone(&house);
        // The resume point exists before a client reconnects, because the client got the session's name in
        // the handshake.
        let opened = Arc::new(AtomicU32::new(0));
        let resume_point_is_open = Arc::clone(&opened);
        let session = thread::spawn(move || {
            let resume_point = inside.resume_table.open(NAME, FIRST);
            resume_point_is_open.store(1, SeqCst);
            while let Some(stream) = resume_point.wait(linger) {
                assert_eq!(stream.number, SECOND);
                assert_eq!(inside.closed.load(SeqCst), 0, "a stream that is served is not closed");
                inside.served.fetch_add(1, SeqCst);
            }
            inside.over.store(1, SeqCst);
            drop(resume_point);
        });
        while opened.load(SeqCst) == 0 {
            thread::yield_now();
        }
        (house, session)
    }

    fn newcomer(&self) -> ModelStream {
        ModelStream { number: SECOND, closed: Arc::clone(&self.closed) }
    }

    /// Reconnects a client. Returns `true` if the session accepted it.
    fn come_back(&self) -> bool {
        let is_over = self.over.load(SeqCst) == 1;
        match self.resume_table.leave(NAME, self.newcomer()) {
            Ok(ended) => {
                assert!(!is_over, "nobody is taken at a resume_point behind which nobody serves any more");
                assert!(ended.is_none_or(|connection| connection == FIRST));
                true
            }
            Err(stream) => {
                assert_eq!(stream.number, SECOND);
                false
            }
        }
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn who_comes_back_while_the_session_waits_or_is_about_to_is_served() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        assert!(house.come_back(), "it waits for ever");
        while house.served.load(SeqCst) == 0 {
            thread::yield_now();
        }
        house.resume_table.close();
        session.join().expect("no panic");
        assert_eq!((house.served.load(SeqCst), house.closed.load(SeqCst)), (1, 1));
        assert_eq!(house.resume_table.count(), 0);
    });
}

#[test]
fn who_comes_back_as_the_time_runs_out_is_served_or_learns_that_it_is_not() {
    model(|| {
        let (house, session) = House::with_session(NOT_AT_ALL);
        let was_taken = house.come_back();
        session.join().expect("no panic");
        let served = house.served.load(SeqCst);
        assert!(served <= u32::from(was_taken));
        assert_eq!(house.closed.load(SeqCst), 1, "no stream is left open");
    });
}

#[test]
fn a_server_that_ends_wakes_who_waits_and_who_is_about_to() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        house.resume_table.close();
        session.join().expect("no panic");
        assert!(!house.come_back(), "the server has ended");
        assert_eq!(house.resume_table.count(), 0);
    });
}

#[test]
fn who_waits_gives_way_and_a_client_that_comes_at_that_moment_is_served_or_sent_away() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        let back = {
            let house = Arc::clone(&house);
            thread::spawn(move || house.come_back())
        };
        let made_way = house.resume_table.make_way();
        let was_taken = back.join().expect("no panic");
        // A session that still exists ends now.
        house.resume_table.close();
        session.join().expect("no panic");
        assert!(made_way || was_taken || house.served.load(SeqCst) == 0);
        assert!(house.served.load(SeqCst) <= u32::from(was_taken));
        assert_eq!(house.closed.load(SeqCst), 1, "no stream is left open");
        assert!(!house.resume_table.make_way(), "nobody waits");
    });
}

#[test]
fn who_wants_room_has_it_when_the_session_that_waits_has_gone() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        while !house.resume_table.make_way() {
            thread::yield_now();
        }
        // Relaxed: the mutex of the resume point provides the ordering.
        assert_eq!((house.over.load(Relaxed), house.resume_table.count()), (1, 0));
        session.join().expect("no panic");
    });
}

#[test]
fn who_comes_back_as_the_session_ends_by_itself_finds_its_stream_closed() {
    model(|| {
        let house = Arc::new(House::default());
        let resume_point = house.resume_table.open(NAME, FIRST);
        let back = {
            let house = Arc::clone(&house);
            thread::spawn(move || house.come_back())
        };
        drop(resume_point);
        back.join().expect("no panic");
        assert_eq!((house.closed.load(SeqCst), house.resume_table.count()), (1, 0), "no stream is left open");
    });
}
