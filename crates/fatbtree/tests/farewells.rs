//! What a farewell is worth (`node::leave`), where chance seldom comes: answers that are late, and one who cannot answer yet.

use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{Clock, LeaveError, Node, PeId, Work};

const FIRST: PeId = PeId(0);
const SECOND: PeId = PeId(1);
const LEAVER: PeId = PeId(2);

fn started(pes: u16, spares: u16) -> Cluster {
    let mut options = ClusterOptions::evenly(pes);
    options.spares = spares;
    options.node.request_timeout = Duration::from_secs(3);
    let cluster = Cluster::new(1, options);
    all_frames_take(&cluster, Duration::from_micros(100));
    cluster.start_all();
    cluster
}

fn all_frames_take(cluster: &Cluster, delay: Duration) {
    cluster.network().set_faults(Faults { least_delay: delay, most_delay: delay, lose_one_in: 0 });
}

fn node(cluster: &Cluster, pe: PeId) -> Rc<Node> {
    cluster.node(pe).expect("it runs")
}

fn wait<T: 'static>(cluster: &Cluster, task: impl Future<Output = T> + 'static) -> T {
    cluster.executor().block_on(task).expect("nobody waits for ever")
}

fn move_its_leaf(cluster: &Cluster, from: PeId, to: PeId) {
    let source = node(cluster, from);
    wait(cluster, async move {
        let page = source.leaves()[0].page;
        source.move_leaf(page, to).await.expect("nothing is in the way");
    });
    // Until the receiver owns it.
    cluster.executor().run_for(Duration::from_millis(50));
}

fn leave(cluster: &Cluster, pe: PeId) -> Result<(), LeaveError> {
    let leaver = node(cluster, pe);
    wait(cluster, async move { leaver.leave().await })
}

/// LEAVE-3: answers to an earlier farewell come while one waits for those to the next, between which the node had a leaf. The first node was given that
/// farewell only: it would go on sending requests for the leaf to the one that has left.
#[test]
fn an_answer_to_an_earlier_farewell_of_this_start_or_the_last_does_not_count() {
    for is_started_anew in [false, true] {
        let cluster = started(3, 0);
        let first = node(&cluster, FIRST);
        let writer = Rc::clone(&first);
        wait(&cluster, async move { writer.write([1], Work::Put(vec![7])).await }).expect("it runs");
        // As many moves before each farewell: only the starts are different.
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
            wait(&cluster, async move { again.start(LEAVER).await.map(drop) }).expect("it starts");
        }
        move_its_leaf(&cluster, FIRST, LEAVER);
        move_its_leaf(&cluster, LEAVER, SECOND);
        cluster.network().cut(LEAVER, FIRST);
        let done = leave(&cluster, LEAVER);
        assert!(matches!(done, Err(LeaveError::NoAnswer(FIRST))), "anew: {is_started_anew}, {done:?}");
        cluster.network().mend();
        leave(&cluster, LEAVER).expect("all answer");
        cluster.executor().run_for(Duration::from_secs(1));
        assert!(node(&cluster, LEAVER).untold().is_empty());
        cluster.dismiss(LEAVER);
        assert_eq!(cluster.verify(), Vec::<String>::new());
        assert_eq!(wait(&cluster, async move { first.get([1]).await }).expect("it is found"), Some(vec![7]));
    }
}

/// LEAVE-5: who has no keys yet, since it has not heard from all, may be waiting for the one that leaves: it is not waited for.
#[test]
fn who_has_no_keys_yet_refuses_a_farewell_at_once() {
    let cluster = started(2, 1);
    let new = cluster.spare().expect("there is one");
    cluster.network().cut(SECOND, new);
    let joined = cluster.clone();
    wait(&cluster, async move { joined.join(new).await.map(drop) }).expect("it starts");
    let began = cluster.executor().now();
    let done = leave(&cluster, FIRST);
    assert!(matches!(&done, Err(LeaveError::NotReady(reason)) if reason.contains("PE 2")), "{done:?}");
    assert!(cluster.executor().now() - began < Duration::from_secs(1), "in made-up time");
    cluster.network().mend();
    cluster.executor().run_for(Duration::from_secs(1));
    assert!(node(&cluster, new).is_settled());
    leave(&cluster, FIRST).expect("all answer");
    assert_eq!(cluster.verify(), Vec::<String>::new());
}
