//! Errors of a node's store. With a full disk it rolls back changes of structure, and the node continues
//! without them.

use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{
    Application, Asked, Credentials, Error, MoveError, PeId, Ran, RunError, Target, Task, Work,
};

const SOURCE: PeId = PeId(0);
const RECEIVER: PeId = PeId(1);

fn started() -> Cluster {
    let mut options = ClusterOptions::evenly(2);
    options.node.leaf_rows = 8;
    options.node.move_timeout = Duration::from_millis(300);
    options.node.remind_interval = Duration::from_millis(20);
    options.faults = Faults {
        least_delay: Duration::from_micros(100),
        most_delay: Duration::from_micros(100),
        lose_one_in: 0,
    };
    options.store_delay = Duration::from_micros(100);
    let cluster = Cluster::new(5, options);
    cluster.start_all();
    cluster
}

/// An application with a store that fails during each request.
struct Failing;

impl Application for Failing {
    fn run(&self, _: Asked) -> Task<'_, Result<Ran, RunError>> {
        Box::pin(std::future::ready(Err(RunError::Failed("the log failed".to_owned()))))
    }
}

#[test]
fn only_a_write_has_an_unknown_outcome_after_a_failure_of_the_store() {
    let cluster = Cluster::new(6, ClusterOptions::evenly(2));
    cluster.set_application(Box::new(|_, _| Rc::new(Failing)));
    cluster.start_all();
    for is_write in [false, true] {
        let node = cluster.running(RECEIVER);
        let work = Work::Run { is_write, others: Vec::new(), bytes: Vec::new() };
        let failed = cluster.wait(async move { node.call(Target::At(vec![1]), work).await });
        match is_write {
            true => assert!(matches!(failed, Err(Error::Unknown { .. })), "{failed:?}"),
            false => assert!(matches!(failed, Err(Error::Store { pe: SOURCE, .. })), "{failed:?}"),
        }
    }
}

fn put(cluster: &Cluster, key: u8) {
    let node = cluster.running(SOURCE);
    cluster.wait(async move { node.write([key], Work::Put(vec![key])).await }).expect("both run");
}

fn get(cluster: &Cluster, key: u8) -> Result<Option<Vec<u8>>, Error> {
    let node = cluster.running(SOURCE);
    cluster.wait(async move { node.get([key]).await })
}

fn move_first_leaf(cluster: &Cluster) -> Result<(), MoveError> {
    let node = cluster.running(SOURCE);
    cluster.wait(async move { node.move_leaf(node.leaves()[0].page, RECEIVER).await })
}

fn assert_all_serve(cluster: &Cluster) {
    for pe in [SOURCE, RECEIVER] {
        assert_eq!(cluster.running(pe).failure(), None, "{pe}");
    }
}

#[test]
fn a_leaf_that_cannot_be_split_serves_its_keys_and_is_split_later() {
    let cluster = started();
    cluster.disk(SOURCE).fill(true);
    (1..=12).for_each(|key| put(&cluster, key));
    assert_all_serve(&cluster);
    assert_eq!(cluster.running(SOURCE).leaves().len(), 1);
    cluster.disk(SOURCE).fill(false);
    put(&cluster, 13);
    assert!(cluster.executor().run_until(|| cluster.running(SOURCE).leaves().len() == 2));
    (1..=13).for_each(|key| assert_eq!(get(&cluster, key).expect("both run"), Some(vec![key])));
    assert_eq!(cluster.verify(), Vec::<String>::new());
}

#[test]
fn a_move_that_the_source_cannot_record_is_aborted() {
    let cluster = started();
    put(&cluster, 1);
    cluster.disk(SOURCE).fill(true);
    let refused = move_first_leaf(&cluster);
    assert!(matches!(refused, Err(MoveError::RolledBack(_))), "{refused:?}");
    cluster.executor().run_for(Duration::from_secs(1));
    assert_all_serve(&cluster);
    assert_eq!(get(&cluster, 1).expect("both run"), Some(vec![1]));
    assert!(cluster.disk(RECEIVER).structure().1.is_empty(), "the receiver has dropped the leaf");
    cluster.disk(SOURCE).fill(false);
    move_first_leaf(&cluster).expect("the disk has space");
    assert_eq!(get(&cluster, 1).expect("both run"), Some(vec![1]));
    cluster.executor().run_for(Duration::from_secs(1));
    assert_eq!(cluster.verify(), Vec::<String>::new());
}

#[test]
fn a_receiver_installs_a_leaf_when_its_disk_has_space_again() {
    let cluster = started();
    put(&cluster, 1);
    let (source, executor) = (cluster.running(SOURCE), cluster.executor().clone());
    let page = source.leaves()[0].page;
    let mover = Rc::clone(&source);
    let task = async move { mover.move_leaf(page, RECEIVER).await.expect("both run") };
    executor.spawn_in(executor.group(), Box::pin(task));
    assert!(executor.run_until(|| !cluster.disk(RECEIVER).structure().1.is_empty()), "it is staged");
    cluster.disk(RECEIVER).fill(true);
    let refused = get(&cluster, 1);
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert_all_serve(&cluster);
    cluster.disk(RECEIVER).fill(false);
    assert_eq!(get(&cluster, 1).expect("both run"), Some(vec![1]));
    executor.run_for(Duration::from_secs(1));
    assert_eq!(cluster.running(RECEIVER).leaves().len(), 2);
    assert_eq!(cluster.verify(), Vec::<String>::new());
}

#[test]
fn a_node_with_a_full_disk_does_not_call_an_unknown_store_a_replaced_one() {
    let cluster = started();
    cluster.disk(SOURCE).fill(true);
    let (node, other) = (cluster.running(SOURCE), PeId(2));
    let shown = Credentials { birth: 7, is_settled: true, is_loss_accepted: false };
    let judge = Rc::clone(&node);
    assert_eq!(cluster.wait(async move { judge.admits(other, shown).await }), None);
    cluster.disk(SOURCE).fill(false);
    assert_eq!(cluster.wait(async move { node.admits(other, shown).await }), Some(true));
}
