//! Decommission messages (`node::leave`) in cases that random runs seldom reach: late acknowledgments, and
//! nodes that cannot acknowledge yet.

use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{Clock, LeaveError, PeId, Work};

const FIRST: PeId = PeId(0);
const SECOND: PeId = PeId(1);
const LEAVER: PeId = PeId(2);

fn options(pes: u16, spares: u16) -> ClusterOptions {
    let mut options = ClusterOptions::evenly(pes);
    options.spares = spares;
    options.node.request_timeout = Duration::from_secs(3);
    options
}

fn started(pes: u16, spares: u16) -> Cluster {
    started_with(options(pes, spares))
}

fn started_with(options: ClusterOptions) -> Cluster {
    let cluster = Cluster::new(1, options);
    all_frames_take(&cluster, Duration::from_micros(100));
    cluster.start_all();
    cluster
}

fn all_frames_take(cluster: &Cluster, delay: Duration) {
    cluster.network().set_faults(Faults { least_delay: delay, most_delay: delay, lose_one_in: 0 });
}

fn move_its_leaf(cluster: &Cluster, from: PeId, to: PeId) {
    let source = cluster.running(from);
    cluster.wait(async move {
        let page = source.leaves()[0].page;
        source.move_leaf(page, to).await.expect("nothing is in the way");
    });
    // Runs until the receiver owns the leaf.
    cluster.executor().run_for(Duration::from_millis(50));
}

fn start_by_list(cluster: &Cluster, pe: PeId, list: &[PeId]) {
    let (again, list) = (cluster.clone(), list.to_vec());
    cluster.wait(async move { again.start_with_list(pe, list).await.map(drop) }).expect("it starts");
}

/// Makes a node leave, waits until the other nodes know it, and stops the node.
fn be_gone(cluster: &Cluster, pe: PeId) {
    leave(cluster, pe).expect("all answer");
    cluster.executor().run_for(Duration::from_millis(50));
    assert_eq!(cluster.running(pe).uninformed(), []);
    cluster.dismiss(pe);
}

fn leave(cluster: &Cluster, pe: PeId) -> Result<(), LeaveError> {
    let leaver = cluster.running(pe);
    cluster.wait(async move { leaver.leave().await })
}

/// LEAVE-3: an acknowledgment of an earlier decommission message does not count for the next one. In between,
/// the node had another leaf. The first node has only received the earlier message, so it would keep sending
/// requests for that leaf to the departed node.
#[test]
fn an_answer_to_an_earlier_decommission_of_this_start_or_the_last_does_not_count() {
    for is_started_anew in [false, true] {
        let cluster = started(3, 0);
        let first = cluster.running(FIRST);
        let writer = Rc::clone(&first);
        cluster.wait(async move { writer.write([1], Work::Put(vec![7])).await }).expect("it runs");
        // Both decommissions follow the same number of moves, so only the start numbers differ.
        move_its_leaf(&cluster, LEAVER, SECOND);
        all_frames_take(&cluster, Duration::from_secs(2));
        assert!(
            matches!(leave(&cluster, LEAVER), Err(LeaveError::NoAnswer(_))),
            "the answers are on their way"
        );
        all_frames_take(&cluster, Duration::from_micros(100));
        if is_started_anew {
            cluster.crash(LEAVER);
            let again = cluster.clone();
            cluster.wait(async move { again.start(LEAVER).await.map(drop) }).expect("it starts");
        }
        move_its_leaf(&cluster, FIRST, LEAVER);
        move_its_leaf(&cluster, LEAVER, SECOND);
        cluster.network().cut(LEAVER, FIRST);
        let done = leave(&cluster, LEAVER);
        assert!(matches!(done, Err(LeaveError::NoAnswer(FIRST))), "anew: {is_started_anew}, {done:?}");
        cluster.network().mend();
        leave(&cluster, LEAVER).expect("all answer");
        cluster.executor().run_for(Duration::from_secs(1));
        assert!(cluster.running(LEAVER).uninformed().is_empty());
        cluster.dismiss(LEAVER);
        assert_eq!(cluster.verify(), Vec::<String>::new());
        assert_eq!(cluster.wait(async move { first.get([1]).await }).expect("it is found"), Some(vec![7]));
    }
}

/// LEAVE-5: an unsettled node refuses a decommission message at once. It may itself be waiting for the
/// leaving node, so the leaving node must not wait for it.
#[test]
fn a_node_without_keys_refuses_a_decommission_at_once() {
    let cluster = started(2, 1);
    let new = cluster.spare().expect("there is one");
    cluster.network().cut(SECOND, new);
    let joined = cluster.clone();
    cluster.wait(async move { joined.join(new).await.map(drop) }).expect("it starts");
    let began = cluster.executor().now();
    let done = leave(&cluster, FIRST);
    assert!(matches!(&done, Err(LeaveError::NotReady(reason)) if reason.contains("PE 2")), "{done:?}");
    assert!(cluster.executor().now() - began < Duration::from_secs(1), "in made-up time");
    cluster.network().mend();
    cluster.executor().run_for(Duration::from_secs(1));
    assert!(cluster.running(new).is_settled());
    leave(&cluster, FIRST).expect("all answer");
    assert_eq!(cluster.verify(), Vec::<String>::new());
}

/// LEAVE-4: no node treats the leaving node as departed until the decision is durable, because a crash would
/// make it a member again.
#[test]
fn a_node_that_crashes_while_it_leaves_has_left_for_all_or_for_none() {
    let (mut gone, mut back) = (0, 0);
    for moment in 0..60 {
        let mut options = options(3, 0);
        options.store_delay = Duration::from_millis(2);
        let cluster = started_with(options);
        let (leaver, executor) = (cluster.running(LEAVER), cluster.executor().clone());
        let task = async move {
            // A crashed node does not see the result.
            let _ = leaver.leave().await;
        };
        executor.spawn_in(cluster.group(LEAVER).expect("it runs"), Box::pin(task));
        executor.run_for(Duration::from_micros(500 * moment));
        cluster.crash(LEAVER);
        executor.run_for(Duration::from_millis(20));
        start_by_list(&cluster, LEAVER, &[FIRST, SECOND, LEAVER]);
        executor.run_for(Duration::from_secs(1));
        let has_left = cluster.disk(LEAVER).has_left(LEAVER);
        for pe in [FIRST, SECOND] {
            assert_eq!(cluster.running(pe).has_left(LEAVER), has_left, "{pe}, moment {moment}");
        }
        assert_eq!(cluster.verify(), Vec::<String>::new(), "moment {moment}");
        *if has_left { &mut gone } else { &mut back } += 1;
    }
    assert!(gone > 0 && back > 10, "{gone} and {back}: the moments lie on both sides");
}

/// Runs a case in which a new node joins while a node leaves that does not know it, because its list is old.
/// The new node has the entries of all nodes except the leaving one. With `answers_are_late`, these entries
/// arrive only after the departure.
fn joins_while_one_leaves_that_does_not_know_it(answers_are_late: bool) {
    let cluster = started(3, 1);
    // The leaf and its version are not part of the initial distribution.
    move_its_leaf(&cluster, SECOND, LEAVER);
    let key = cluster.running(LEAVER).leaves().last().expect("two").range.low.clone();
    cluster.crash(LEAVER);
    let new = cluster.spare().expect("there is one");
    cluster.network().cut(new, LEAVER);
    let joined = cluster.clone();
    cluster.wait(async move { joined.join(new).await.map(drop) }).expect("it starts");
    if answers_are_late {
        // The requests are in flight, and the answers will take longer.
        cluster.executor().run_for(Duration::from_micros(50));
        all_frames_take(&cluster, Duration::from_secs(2));
        cluster.executor().run_for(Duration::from_micros(100));
        cluster.network().cut(new, FIRST);
        cluster.network().cut(new, SECOND);
        all_frames_take(&cluster, Duration::from_micros(100));
    } else {
        cluster.executor().run_for(Duration::from_millis(500));
    }
    start_by_list(&cluster, LEAVER, &[FIRST, SECOND, LEAVER]);
    for _ in cluster.running(LEAVER).leaves() {
        move_its_leaf(&cluster, LEAVER, SECOND);
    }
    be_gone(&cluster, LEAVER);
    assert!(cluster.running(new).has_left(LEAVER), "the others have informed it");
    cluster.executor().run_for(Duration::from_secs(3));
    cluster.network().mend();
    cluster.executor().run_for(Duration::from_secs(1));
    let reader = cluster.running(new);
    assert!(reader.is_settled());
    assert_eq!(cluster.verify(), Vec::<String>::new());
    assert_eq!(cluster.wait(async move { reader.get(key).await }).expect("it is found"), None);
}

/// LEAVE-5: the new node discards the entries that it received before the departure, and collects all entries
/// again.
#[test]
fn a_node_that_collects_its_keys_starts_again_after_a_decommission() {
    joins_while_one_leaves_that_does_not_know_it(false);
}

/// LEAVE-5: the new node ignores answers to requests from before the departure.
#[test]
fn a_node_that_starts_again_ignores_answers_to_earlier_questions() {
    joins_while_one_leaves_that_does_not_know_it(true);
}

/// LEAVE-6: a staged leaf is dropped after its source has left, if the receiver has received neither the
/// abort nor an answer to its question.
#[test]
fn a_leaf_that_waits_for_one_that_has_left_is_given_up() {
    let mut options = options(3, 0);
    options.node.move_timeout = Duration::from_millis(300);
    options.node.remind_interval = Duration::from_secs(5);
    let cluster = started_with(options);
    let (leaver, page) = (cluster.running(LEAVER), cluster.running(LEAVER).leaves()[0].page);
    cluster.network().cut(FIRST, LEAVER);
    let moved = cluster.wait(async move { leaver.move_leaf(page, FIRST).await });
    assert!(moved.is_err(), "no word comes back");
    let staged = |cluster: &Cluster| cluster.disk(FIRST).structure().1.len();
    assert_eq!(staged(&cluster), 1, "it came, and waits");
    // The abort message is in flight, and is lost.
    cluster.network().cut(LEAVER, FIRST);
    cluster.executor().run_for(Duration::from_millis(10));
    cluster.network().mend();
    move_its_leaf(&cluster, LEAVER, SECOND);
    be_gone(&cluster, LEAVER);
    assert_eq!(staged(&cluster), 1, "it has not asked again");
    cluster.executor().run_for(Duration::from_secs(10));
    assert_eq!(staged(&cluster), 0);
    assert_eq!(cluster.verify(), Vec::<String>::new());
}
