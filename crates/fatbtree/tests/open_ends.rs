//! The ends of open transactions (`node::open`, OPEN-2 to OPEN-4) that random tests seldom reach: each in a
//! small cluster that is driven there.

mod lists;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{Answer, Clock, Error, PeId, RouteEntry, Target, TransactionId, Work};
use lists::{Lists, Locks};

const COORDINATOR: PeId = PeId(0);
const GATEWAY: PeId = PeId(1);
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than any test takes, in made-up time.
const LOCK_WAIT: Duration = Duration::from_secs(3600);
/// Of no transaction.
const NOBODY: u64 = u64::MAX;

type Answered = Result<(Answer, Option<RouteEntry>), Error>;

/// Two nodes, of which the first has the keys that are used here, and the locks of their transactions.
fn started() -> (Cluster, Locks) {
    let mut options = ClusterOptions::evenly(2);
    options.node.open_timeout = OPEN_TIMEOUT;
    options.node.request_timeout = LOCK_WAIT * 2;
    let delay = Duration::from_micros(100);
    options.faults = Faults { least_delay: delay, most_delay: delay, lose_one_in: 0 };
    let (cluster, locks) = (Cluster::new(1, options), Locks::default());
    let shared = Rc::clone(&locks);
    cluster.set_application(Box::new(move |world, store| {
        Rc::new(Lists::new(world.clone(), Rc::clone(store), Rc::clone(&shared), LOCK_WAIT))
    }));
    cluster.start_all();
    (cluster, locks)
}

/// Begins something, and goes on until it waits for a lock, or is done.
fn begin<T: 'static>(cluster: &Cluster, task: impl Future<Output = T> + 'static) -> Rc<RefCell<Option<T>>> {
    let (done, executor) = (Rc::new(RefCell::new(None)), cluster.executor());
    let tell = Rc::clone(&done);
    executor.spawn_in(executor.group(), Box::pin(async move { *tell.borrow_mut() = Some(task.await) }));
    executor.run_for(Duration::from_millis(5));
    done
}

/// A step of a transaction by a client of the other node.
fn step(
    cluster: &Cluster,
    id: TransactionId,
    coordinator: Option<PeId>,
    key: u8,
) -> impl Future<Output = Answered> + use<> {
    let gateway = cluster.running(GATEWAY);
    let work = Work::Step { id, coordinator, is_write: true, others: Vec::new(), bytes: vec![key; 8] };
    async move { gateway.call(Target::At(vec![key]), work).await }
}

fn end(cluster: &Cluster, id: TransactionId, is_commit: bool) -> Answered {
    let gateway = cluster.running(GATEWAY);
    cluster.wait(async move {
        gateway.call(Target::At(vec![1]), Work::End { id, coordinator: COORDINATOR, is_commit }).await
    })
}

/// A transaction that has appended to the list of key 1, and waits for its client.
fn opened(cluster: &Cluster) -> TransactionId {
    let id = cluster.running(GATEWAY).new_transaction();
    let stepped = cluster.wait(step(cluster, id, None, 1)).expect("nobody is in the way");
    assert!(matches!(stepped, (Answer::Ran(_), Some(RouteEntry { pe: COORDINATOR, .. }))), "{stepped:?}");
    assert_eq!(cluster.running(COORDINATOR).open_transactions(), 1);
    id
}

fn is_ended<T: std::fmt::Debug>(answered: Result<T, Error>, why: &str) -> bool {
    matches!(&answered, Err(Error::Ended { reason, .. }) if reason.contains(why))
}

/// OPEN-2: a split waits for a writer in its leaf, which waits for a transaction, which waits for its client.
#[test]
fn who_changes_the_structure_does_not_wait_for_a_client() {
    let (cluster, _) = started();
    let id = opened(&cluster);
    let coordinator = cluster.running(COORDINATOR);
    let keys = Rc::clone(&coordinator);
    cluster.wait(async move {
        for key in 2..=5 {
            keys.write([key], Work::Put(vec![key])).await.expect("it runs");
        }
    });
    let writer = Rc::clone(&coordinator);
    let work = Work::Run { is_write: true, others: Vec::new(), bytes: vec![7; 8] };
    let written = begin(&cluster, async move { writer.call(Target::At(vec![1]), work).await });
    assert!(written.borrow().is_none(), "it waits for the transaction");
    let (splitter, began) = (Rc::clone(&coordinator), cluster.executor().now());
    cluster
        .wait(async move { splitter.split_leaf(splitter.leaves()[0].page, vec![3]).await })
        .expect("five keys");
    assert!(cluster.executor().now() - began < Duration::from_millis(500), "in made-up time");
    assert_eq!((coordinator.open_transactions(), coordinator.leaves().len()), (0, 2));
    cluster.executor().run_for(Duration::from_millis(10));
    assert!(matches!(*written.borrow(), Some(Ok(_))), "{written:?}");
    assert!(is_ended(end(&cluster, id, true), "held up a leaf"));
}

/// OPEN-3: of a client that has vanished nothing is left when the time is over, and no sooner.
#[test]
fn a_transaction_whose_client_has_vanished_ends_when_its_time_is_over() {
    let (cluster, locks) = started();
    let id = opened(&cluster);
    cluster.executor().run_for(OPEN_TIMEOUT - Duration::from_millis(100));
    assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (1, 1));
    cluster.executor().run_for(Duration::from_millis(200));
    assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (0, 0));
    assert!(is_ended(end(&cluster, id, true), "was open for more than"));
    // And the next one has a time of its own.
    opened(&cluster);
    cluster.executor().run_for(OPEN_TIMEOUT * 2);
    assert_eq!(cluster.running(COORDINATOR).open_transactions(), 0);
}

/// OPEN-3: when the time is over a step is at work, which waits for a lock.
#[test]
fn a_step_that_is_at_work_when_the_time_is_over_is_the_last() {
    let (cluster, locks) = started();
    let id = opened(&cluster);
    locks.borrow_mut().insert(vec![2], NOBODY);
    let stepped = begin(&cluster, step(&cluster, id, Some(COORDINATOR), 2));
    cluster.executor().run_for(OPEN_TIMEOUT * 2);
    assert!(stepped.borrow().is_none(), "it waits for the lock");
    locks.borrow_mut().clear();
    cluster.executor().run_for(Duration::from_millis(10));
    let stepped = stepped.borrow_mut().take().expect("the lock is free");
    assert!(is_ended(stepped, "was open for more than"));
    assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (0, 0));
}

/// No node can continue a transaction if its client's node is unreachable, and other transactions want its
/// locks.
#[test]
fn what_came_by_a_node_that_is_lost_ends_at_once_and_nothing_else() {
    let (cluster, locks) = started();
    let id = opened(&cluster);
    let coordinator = cluster.running(COORDINATOR);
    let own = coordinator.new_transaction();
    let work =
        Work::Step { id: own, coordinator: None, is_write: true, others: Vec::new(), bytes: vec![9; 8] };
    let here = Rc::clone(&coordinator);
    cluster.wait(async move { here.call(Target::At(vec![9]), work).await }).expect("another key");
    locks.borrow_mut().insert(vec![2], NOBODY);
    let other = cluster.running(GATEWAY).new_transaction();
    let at_work = begin(&cluster, step(&cluster, other, None, 2));
    assert_eq!(coordinator.open_transactions(), 3);
    coordinator.lost_touch(GATEWAY);
    cluster.executor().run_for(Duration::from_millis(10));
    assert_eq!(coordinator.open_transactions(), 2, "its own, and the one whose step is at work");
    locks.borrow_mut().remove(&vec![2]);
    cluster.executor().run_for(Duration::from_millis(10));
    assert_eq!(coordinator.open_transactions(), 1, "its own");
    let at_work = at_work.borrow_mut().take().expect("the lock is free");
    assert!(is_ended(at_work, "was lost"));
    assert!(is_ended(end(&cluster, id, true), "was lost"));
}

/// OPEN-4.
#[test]
fn a_step_that_comes_late_finds_nothing_and_begins_nothing() {
    let (cluster, locks) = started();
    for is_commit in [true, false] {
        let id = opened(&cluster);
        end(&cluster, id, is_commit).expect("it is open");
        let late = cluster.wait(step(&cluster, id, Some(COORDINATOR), 2));
        assert!(is_ended(late, ""), "after {is_commit}");
        assert!(is_ended(end(&cluster, id, true), ""), "after {is_commit}");
        assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (0, 0));
    }
}

/// OPEN-4.
#[test]
fn a_second_step_beside_the_first_is_refused_and_the_first_goes_on() {
    let (cluster, locks) = started();
    let id = opened(&cluster);
    locks.borrow_mut().insert(vec![2], NOBODY);
    let first = begin(&cluster, step(&cluster, id, Some(COORDINATOR), 2));
    let second = cluster.wait(step(&cluster, id, Some(COORDINATOR), 3)).expect_err("one at a time");
    assert!(second.to_string().contains("is at work already"), "{second}");
    locks.borrow_mut().remove(&vec![2]);
    cluster.executor().run_for(Duration::from_millis(10));
    assert!(matches!(*first.borrow(), Some(Ok(_))), "{first:?}");
    end(&cluster, id, true).expect("it goes on");
    assert_eq!(cluster.running(COORDINATOR).open_transactions(), 0);
}

/// OPEN-4: a client that does not wait for its step gives the transaction up. It cannot be at rest again
/// after that, since nobody would end it.
#[test]
fn a_transaction_that_is_given_up_while_its_step_is_at_work_ends_with_the_step() {
    let (cluster, locks) = started();
    for is_commit in [true, false] {
        let id = opened(&cluster);
        locks.borrow_mut().insert(vec![2], NOBODY);
        let stepped = begin(&cluster, step(&cluster, id, Some(COORDINATOR), 2));
        let given_up = end(&cluster, id, is_commit);
        match is_commit {
            true => assert!(is_ended(given_up, "gave it up"), "nothing is committed in the midst of a step"),
            false => assert!(matches!(given_up, Ok((Answer::Done { existed: false }, _)))),
        }
        locks.borrow_mut().remove(&vec![2]);
        cluster.executor().run_for(Duration::from_millis(10));
        let stepped = stepped.borrow_mut().take().expect("the lock is free");
        assert!(is_ended(stepped, "gave it up"));
        assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (0, 0));
    }
}

/// OPEN-1: a step may touch keys of several leaves.
#[test]
fn a_transaction_ends_before_the_leaf_of_any_of_its_keys_moves() {
    let (cluster, _) = started();
    let coordinator = cluster.running(COORDINATOR);
    let keys = Rc::clone(&coordinator);
    cluster.wait(async move {
        for key in 1..=5 {
            keys.write([key], Work::Put(vec![key])).await.expect("it runs");
        }
        keys.split_leaf(keys.leaves()[0].page, vec![3]).await.expect("it has more keys");
    });
    let (gateway, id) = (cluster.running(GATEWAY), cluster.running(GATEWAY).new_transaction());
    let work = Work::Step { id, coordinator: None, is_write: true, others: vec![vec![4]], bytes: Vec::new() };
    cluster.wait(async move { gateway.call(Target::At(vec![1]), work).await }).expect("nobody is in the way");
    let (mover, right) = (Rc::clone(&coordinator), coordinator.leaves()[1].page);
    cluster.wait(async move { mover.move_leaf(right, GATEWAY).await }).expect("both run");
    assert_eq!(coordinator.open_transactions(), 0);
    assert!(is_ended(end(&cluster, id, true), "was moved"));
}
