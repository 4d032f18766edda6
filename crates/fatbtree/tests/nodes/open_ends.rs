//! Ends of open transactions (`node::open`, OPEN-2 to OPEN-4) that random tests seldom reach. Each test
//! drives a small cluster into the case.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::lists::{Lists, Locks};
use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{Answer, Clock, Error, KeyRange, PeId, RouteEntry, Target, TransactionId, Work};

const COORDINATOR: PeId = PeId(0);
const GATEWAY: PeId = PeId(1);
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than any test takes, in virtual time.
const LOCK_WAIT: Duration = Duration::from_secs(3600);
/// Lock owner that is no transaction.
const NOBODY: u64 = u64::MAX;

type Answered = Result<(Answer, Option<RouteEntry>), Error>;

/// Starts two nodes; the first one owns most keys that are used here. Returns the locks of the transactions
/// too.
fn started() -> (Cluster, Locks) {
    started_with(Duration::ZERO)
}

fn started_with(store_delay: Duration) -> (Cluster, Locks) {
    let mut options = ClusterOptions::evenly(2);
    options.node.open_timeout = OPEN_TIMEOUT;
    options.node.request_timeout = LOCK_WAIT * 2;
    options.store_delay = store_delay;
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

/// Starts a task, and runs until it waits for a lock or is complete.
fn begin<T: 'static>(cluster: &Cluster, task: impl Future<Output = T> + 'static) -> Rc<RefCell<Option<T>>> {
    let (done, executor) = (Rc::new(RefCell::new(None)), cluster.executor());
    let tell = Rc::clone(&done);
    executor.spawn_in(executor.group(), Box::pin(async move { *tell.borrow_mut() = Some(task.await) }));
    executor.run_for(Duration::from_millis(5));
    done
}

/// Runs a step of a transaction from a client of the other node.
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

/// Begins a transaction that has appended to the list of key 1 and is idle.
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

/// OPEN-2: a split does not wait for a client, even if it waits for a writer that waits for an idle
/// transaction. It ends no other transaction.
#[test]
fn a_structure_change_does_not_wait_for_a_client() {
    let (cluster, _) = started();
    let id = opened(&cluster);
    let coordinator = cluster.running(COORDINATOR);
    let keys = Rc::clone(&coordinator);
    cluster.wait(async move {
        for key in 2..=5 {
            keys.write([key], Work::Put(vec![key])).await.expect("it runs");
        }
    });
    let other = cluster.running(GATEWAY).new_transaction();
    cluster.wait(step(&cluster, other, None, 6)).expect("nobody is in the way");
    let writer = Rc::clone(&coordinator);
    let work = Work::Run { is_write: true, others: Vec::new(), bytes: vec![7; 8] };
    let written = begin(&cluster, async move { writer.call(Target::At(vec![1]), work).await });
    assert!(written.borrow().is_none(), "it waits for the transaction");
    let (splitter, began) = (Rc::clone(&coordinator), cluster.executor().now());
    cluster
        .wait(async move { splitter.split_leaf(splitter.leaves()[0].page, vec![3]).await })
        .expect("five keys");
    assert!(cluster.executor().now() - began < Duration::from_millis(500), "in made-up time");
    assert_eq!((coordinator.open_transactions(), coordinator.leaves().len()), (1, 2));
    cluster.executor().run_for(Duration::from_millis(10));
    assert!(matches!(*written.borrow(), Some(Ok(_))), "{written:?}");
    assert!(is_ended(end(&cluster, id, true), "delayed the split"));
    end(&cluster, other, true).expect("nobody waits for it");
}

/// OPEN-2: a split that waits for no transaction ends none, however long its store takes.
#[test]
fn a_split_in_a_slow_store_ends_no_transaction() {
    let (cluster, _) = started_with(Duration::from_millis(400));
    let coordinator = cluster.running(COORDINATOR);
    let keys = Rc::clone(&coordinator);
    cluster.wait(async move {
        for key in 2..=5 {
            keys.write([key], Work::Put(vec![key])).await.expect("it runs");
        }
    });
    let id = opened(&cluster);
    for middle in [5, 4, 3] {
        let splitter = Rc::clone(&coordinator);
        cluster
            .wait(async move { splitter.split_leaf(splitter.leaves()[0].page, vec![middle]).await })
            .expect("it has earlier keys");
    }
    assert_eq!((coordinator.open_transactions(), coordinator.leaves().len()), (1, 4));
    end(&cluster, id, true).expect("it is open");
}

/// OPEN-3: a transaction with a lost client ends at its timeout, and not before.
#[test]
fn a_transaction_whose_client_has_vanished_ends_when_its_time_is_over() {
    let (cluster, locks) = started();
    let id = opened(&cluster);
    cluster.executor().run_for(OPEN_TIMEOUT - Duration::from_millis(100));
    assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (1, 1));
    cluster.executor().run_for(Duration::from_millis(200));
    assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (0, 0));
    assert!(is_ended(end(&cluster, id, true), "was open for more than"));
    // The next transaction has its own timeout.
    opened(&cluster);
    cluster.executor().run_for(OPEN_TIMEOUT * 2);
    assert_eq!(cluster.running(COORDINATOR).open_transactions(), 0);
}

/// OPEN-3: if the timeout passes during a step that waits for a lock, the transaction ends after that step.
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

/// A lost connection to a node ends the idle transactions of that node's clients at once, and no others.
/// Their locks are then free for other transactions.
#[test]
fn transactions_of_a_lost_gateway_end_at_once_and_no_others() {
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

/// OPEN-4: a late step finds no transaction and begins none.
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

/// OPEN-4: a second concurrent step is refused, and the first one continues.
#[test]
fn a_concurrent_second_step_is_refused_and_the_first_continues() {
    let (cluster, locks) = started();
    let id = opened(&cluster);
    locks.borrow_mut().insert(vec![2], NOBODY);
    let first = begin(&cluster, step(&cluster, id, Some(COORDINATOR), 2));
    let second = cluster.wait(step(&cluster, id, Some(COORDINATOR), 3)).expect_err("one at a time");
    assert!(second.to_string().contains("another step of this transaction is running"), "{second}");
    locks.borrow_mut().remove(&vec![2]);
    cluster.executor().run_for(Duration::from_millis(10));
    assert!(matches!(*first.borrow(), Some(Ok(_))), "{first:?}");
    end(&cluster, id, true).expect("it goes on");
    assert_eq!(cluster.running(COORDINATOR).open_transactions(), 0);
}

/// OPEN-4: if a client ends a transaction during a step, the transaction ends with that step. It must not
/// become idle again, because no client would end it.
#[test]
fn a_transaction_that_is_given_up_while_its_step_is_at_work_ends_with_the_step() {
    let (cluster, locks) = started();
    for is_commit in [true, false] {
        let id = opened(&cluster);
        locks.borrow_mut().insert(vec![2], NOBODY);
        let stepped = begin(&cluster, step(&cluster, id, Some(COORDINATOR), 2));
        let given_up = end(&cluster, id, is_commit);
        match is_commit {
            true => assert!(
                is_ended(given_up, "its client ended it"),
                "nothing is committed in the midst of a step"
            ),
            false => assert!(matches!(given_up, Ok((Answer::Done { existed: false }, _)))),
        }
        locks.borrow_mut().remove(&vec![2]);
        cluster.executor().run_for(Duration::from_millis(10));
        let stepped = stepped.borrow_mut().take().expect("the lock is free");
        assert!(is_ended(stepped, "its client ended it"));
        assert_eq!((cluster.running(COORDINATOR).open_transactions(), locks.borrow().len()), (0, 0));
    }
}

/// OPEN-1: a transaction ends before a leaf of any of its keys moves, also for a step with keys of several
/// leaves.
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

/// Requests a key for a reader of several nodes.
fn read(
    cluster: &Cluster,
    id: TransactionId,
    opened: &[PeId],
    key: u8,
) -> impl Future<Output = Answered> + use<> {
    let gateway = cluster.running(GATEWAY);
    let (opened, within) = (opened.to_vec(), KeyRange::all());
    let work = Work::Read { id, opened, within, others: Vec::new(), bytes: Vec::new() };
    async move { gateway.call(Target::At(vec![key]), work).await }
}

fn append(cluster: &Cluster, key: u8) {
    let gateway = cluster.running(GATEWAY);
    let work = Work::Run { is_write: true, others: Vec::new(), bytes: vec![key; 8] };
    cluster
        .wait(async move { gateway.call(Target::At(vec![key]), work).await })
        .expect("nobody is in the way");
}

fn move_leaf(cluster: &Cluster, from: PeId, to: PeId) {
    let node = cluster.running(from);
    let page = node.leaves()[0].page;
    cluster.wait(async move { node.move_leaf(page, to).await }).expect("both run");
    cluster.executor().run_for(Duration::from_millis(50));
}

fn bytes(answered: Answered) -> Vec<u8> {
    match answered.expect("it goes on") {
        (Answer::Ran(bytes), _) => bytes,
        other => panic!("{other:?}"),
    }
}

/// OPEN-2: readers hold no locks, so a structure change neither waits for them nor ends them. Readers do not
/// wait for a transaction, and do not see its changes.
#[test]
fn a_reader_continues_during_writes_and_splits() {
    let (cluster, _) = started();
    (1..=5).for_each(|key| append(&cluster, key));
    let (node, id) = (cluster.running(COORDINATOR), cluster.running(GATEWAY).new_transaction());
    let writer = opened(&cluster);
    assert_eq!(bytes(cluster.wait(read(&cluster, id, &[], 1))), [1; 8]);
    end(&cluster, writer, true).expect("the reader is not in its way");
    let splitter = Rc::clone(&node);
    cluster
        .wait(async move { splitter.split_leaf(splitter.leaves()[0].page, vec![3]).await })
        .expect("five keys");
    append(&cluster, 4);
    cluster.executor().run_for(OPEN_TIMEOUT * 2);
    for key in [1, 4] {
        assert_eq!(bytes(cluster.wait(read(&cluster, id, &[COORDINATOR], key))), [key; 8]);
    }
    end(&cluster, id, true).expect("nothing has ended it");
    assert_eq!(node.open_transactions(), 0);
}

/// OPEN-5: a reader ends at a node if its snapshot there lacks the rows of a leaf that has arrived since.
#[test]
fn a_reader_ends_where_its_snapshot_would_lack_rows() {
    let (cluster, _) = started();
    append(&cluster, 1);
    // The gateway owns the upper half of the keys.
    let (node, id) = (cluster.running(GATEWAY), cluster.running(GATEWAY).new_transaction());
    assert_eq!(bytes(cluster.wait(read(&cluster, id, &[], 200))), Vec::<u8>::new());
    assert_eq!(node.open_transactions(), 1);
    move_leaf(&cluster, COORDINATOR, GATEWAY);
    assert!(is_ended(cluster.wait(read(&cluster, id, &[GATEWAY], 1)), "moved to this node after"));
    assert_eq!(node.open_transactions(), 0);
    // The same holds for a reader of one node that began there.
    append(&cluster, 200);
    let id = cluster.running(GATEWAY).new_transaction();
    let one = |coordinator, key: u8| {
        let (node, others) = (cluster.running(GATEWAY), Vec::new());
        let work = Work::Step { id, coordinator, is_write: false, others, bytes: Vec::new() };
        cluster.wait(async move { node.call(Target::At(vec![key]), work).await })
    };
    assert_eq!(bytes(one(None, 200)), [200; 8]);
    let page = node.leaves().into_iter().find(|leaf| leaf.range.contains(&[1])).expect("it came").page;
    for (from, to) in [(GATEWAY, COORDINATOR), (COORDINATOR, GATEWAY)] {
        let source = cluster.running(from);
        let page = if from == GATEWAY { page } else { source.leaves()[0].page };
        cluster.wait(async move { source.move_leaf(page, to).await }).expect("both run");
        cluster.executor().run_for(Duration::from_millis(50));
    }
    assert!(is_ended(one(Some(GATEWAY), 1), "moved to this node after"));
}

/// OPEN-6: a reader of several nodes ends at a node when one of its keys moves away. Otherwise it could read
/// the leaf at the new node with changes that its first snapshot lacks.
#[test]
fn a_reader_of_several_nodes_ends_where_keys_that_it_may_read_leave() {
    let (cluster, _) = started();
    append(&cluster, 1);
    append(&cluster, 2);
    let node = cluster.running(COORDINATOR);
    let splitter = Rc::clone(&node);
    cluster
        .wait(async move { splitter.split_leaf(splitter.leaves()[0].page, vec![2]).await })
        .expect("two keys");
    let id = cluster.running(GATEWAY).new_transaction();
    // The reader has read one of the two leaves. The other one moves away.
    assert_eq!(bytes(cluster.wait(read(&cluster, id, &[], 2))), [2; 8]);
    move_leaf(&cluster, COORDINATOR, GATEWAY);
    assert_eq!(node.open_transactions(), 0);
    assert_eq!(bytes(cluster.wait(read(&cluster, id, &[COORDINATOR], 1))), [1; 8]);
    assert!(is_ended(cluster.wait(read(&cluster, id, &[COORDINATOR, GATEWAY], 2)), "was moved"));
    let gateway = cluster.running(GATEWAY);
    let ended = cluster.wait(async move {
        gateway.call(Target::At(vec![2]), Work::End { id, coordinator: COORDINATOR, is_commit: true }).await
    });
    assert!(is_ended(ended, "was moved"));
}

/// OPEN-3: an earlier reader with a longer timeout does not delay the timeout of a transaction. The timeout
/// of a reader restarts with each step.
#[test]
fn a_reader_has_time_from_its_last_step_and_gives_none_to_others() {
    let (cluster, locks) = started();
    let node = cluster.running(COORDINATOR);
    let idle = azekura_fatbtree::Options::default().reader_timeout;
    let reader = cluster.running(GATEWAY).new_transaction();
    bytes(cluster.wait(read(&cluster, reader, &[], 1)));
    cluster.executor().run_for(Duration::from_secs(1));
    opened_beside(&cluster, 2);
    cluster.executor().run_for(OPEN_TIMEOUT + Duration::from_millis(100));
    assert_eq!((node.open_transactions(), locks.borrow().len()), (1, 0), "the reader is left");
    for _ in 0..3 {
        cluster.executor().run_for(idle - Duration::from_secs(30));
        bytes(cluster.wait(read(&cluster, reader, &[COORDINATOR], 1)));
    }
    cluster.executor().run_for(idle + Duration::from_secs(1));
    assert_eq!(node.open_transactions(), 0);
    assert!(is_ended(cluster.wait(read(&cluster, reader, &[COORDINATOR], 1)), "open and not used"));
}

/// Begins a transaction that has appended to the list of a key and is idle.
fn opened_beside(cluster: &Cluster, key: u8) {
    let id = cluster.running(GATEWAY).new_transaction();
    cluster.wait(step(cluster, id, None, key)).expect("nobody is in the way");
}
