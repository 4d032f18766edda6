//! DOOR-1 to DOOR-4: a session whose stream broke, a client that comes back, and others that want its room,
//! in every interleaving.
//!
//! The model has no clock: a time of nothing is over at once, any other never. So a wake that is missing is
//! somebody who sleeps for ever.
#![cfg(loom)]

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use azekura_base::sync::{Arc, thread};
use azekura_far::model::{ModelDoors, ModelStream};
use std::time::Duration;

const NAME: u128 = 77;
/// The session's first connection, and that of who comes back.
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const FOR_EVER: Duration = Duration::from_secs(3600);
const NOT_AT_ALL: Duration = Duration::ZERO;

#[derive(Default)]
struct House {
    doors: ModelDoors,
    closed: Arc<AtomicU32>,
    served: AtomicU32,
    /// The session has said that nobody is served any more.
    over: AtomicU32,
}

impl House {
    /// With a session in it whose first stream has just broken, and that waits so long for each next one.
    fn with_session(linger: Duration) -> (Arc<Self>, thread::JoinHandle<()>) {
        let house = Arc::new(Self::default());
        let inside = Arc::clone(&house);
        // The door is there before anybody comes: the handshake has told the client the session's name.
        let opened = Arc::new(AtomicU32::new(0));
        let door_is_open = Arc::clone(&opened);
        let session = thread::spawn(move || {
            let door = inside.doors.open(NAME, FIRST);
            door_is_open.store(1, SeqCst);
            while let Some(stream) = door.wait(linger) {
                assert_eq!(stream.number, SECOND);
                assert_eq!(inside.closed.load(SeqCst), 0, "a stream that is served is not closed");
                inside.served.fetch_add(1, SeqCst);
            }
            inside.over.store(1, SeqCst);
            drop(door);
        });
        while opened.load(SeqCst) == 0 {
            thread::yield_now();
        }
        (house, session)
    }

    fn newcomer(&self) -> ModelStream {
        ModelStream { number: SECOND, closed: Arc::clone(&self.closed) }
    }

    /// A client comes back. Whether it was taken.
    fn come_back(&self) -> bool {
        let is_over = self.over.load(SeqCst) == 1;
        match self.doors.leave(NAME, self.newcomer()) {
            Ok(ended) => {
                assert!(!is_over, "nobody is taken at a door behind which nobody serves any more");
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
        house.doors.close();
        session.join().expect("no panic");
        assert_eq!((house.served.load(SeqCst), house.closed.load(SeqCst)), (1, 1));
        assert_eq!(house.doors.count(), 0);
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
        house.doors.close();
        session.join().expect("no panic");
        assert!(!house.come_back(), "the server has ended");
        assert_eq!(house.doors.count(), 0);
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
        let made_way = house.doors.make_way();
        let was_taken = back.join().expect("no panic");
        // Whoever is still there goes now.
        house.doors.close();
        session.join().expect("no panic");
        assert!(made_way || was_taken || house.served.load(SeqCst) == 0);
        assert!(house.served.load(SeqCst) <= u32::from(was_taken));
        assert_eq!(house.closed.load(SeqCst), 1, "no stream is left open");
        assert!(!house.doors.make_way(), "nobody waits");
    });
}

#[test]
fn who_wants_room_has_it_when_the_session_that_waits_has_gone() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        while !house.doors.make_way() {
            thread::yield_now();
        }
        // Relaxed: what must order it is the door.
        assert_eq!((house.over.load(Relaxed), house.doors.count()), (1, 0));
        session.join().expect("no panic");
    });
}

#[test]
fn who_comes_back_as_the_session_ends_by_itself_finds_its_stream_closed() {
    model(|| {
        let house = Arc::new(House::default());
        let door = house.doors.open(NAME, FIRST);
        let back = {
            let house = Arc::clone(&house);
            thread::spawn(move || house.come_back())
        };
        drop(door);
        back.join().expect("no panic");
        assert_eq!((house.closed.load(SeqCst), house.doors.count()), (1, 0), "no stream is left open");
    });
}
