//! Members as known to nodes: MEMBERS-1 to MEMBERS-3 (`node::members`), each in a case in which a violation
//! would be harmful.

use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{Error, LeaveError, ListError, ListMark, PeId, Work};

const FIRST: PeId = PeId(0);
const SECOND: PeId = PeId(1);
const LAST: PeId = PeId(2);

fn started(spares: u16) -> Cluster {
    let mut options = ClusterOptions::evenly(3);
    options.spares = spares;
    options.node.request_timeout = Duration::from_secs(2);
    let delay = Duration::from_micros(100);
    options.faults = Faults { least_delay: delay, most_delay: delay, lose_one_in: 0 };
    let cluster = Cluster::new(1, options);
    cluster.start_all();
    cluster
}

fn go_by(cluster: &Cluster, pe: PeId, version: u64, digest: u32) -> Result<(), ListError> {
    let node = cluster.running(pe);
    cluster.wait(async move { node.go_by_list(ListMark { version, digest }).await })
}

fn leave(cluster: &Cluster, pe: PeId) -> Result<(), LeaveError> {
    let leaver = cluster.running(pe);
    cluster.wait(async move { leaver.leave().await })
}

fn start(cluster: &Cluster, pe: PeId) {
    let again = cluster.clone();
    cluster.wait(async move { again.start(pe).await.map(drop) }).expect("it starts");
}

/// Runs until all messages in flight have arrived.
fn await_quiet(cluster: &Cluster) {
    cluster.executor().run_for(Duration::from_millis(200));
}

/// Makes a node leave, waits until the other nodes know it, and stops the node.
fn be_gone(cluster: &Cluster, pe: PeId) {
    leave(cluster, pe).expect("all answer");
    await_quiet(cluster);
    assert_eq!(cluster.running(pe).uninformed(), []);
    cluster.dismiss(pe);
}

/// MEMBERS-1: neither a list nor a restart brings a departed node back.
#[test]
fn a_decommissioned_node_is_refused_with_any_list_and_after_restarts() {
    let cluster = started(0);
    be_gone(&cluster, LAST);
    for is_started_anew in [false, true] {
        if is_started_anew {
            cluster.crash(FIRST);
            start(&cluster, FIRST);
        }
        let first = cluster.running(FIRST);
        first.join(LAST);
        assert!(first.has_left(LAST) && !first.members().contains(&LAST), "anew: {is_started_anew}");
        assert_eq!(first.left(), [LAST]);
    }
}

/// MEMBERS-2: a node refuses an older list, also after a restart.
#[test]
fn an_older_list_is_refused_before_and_after_a_restart() {
    let cluster = started(0);
    go_by(&cluster, FIRST, 3, 30).expect("the first");
    for is_started_anew in [false, true] {
        if is_started_anew {
            cluster.crash(FIRST);
            start(&cluster, FIRST);
        }
        let refused = go_by(&cluster, FIRST, 2, 20);
        assert_eq!(refused, Err(ListError::Stale { found: 2, known: 3 }), "anew: {is_started_anew}");
        assert_eq!(cluster.running(FIRST).list().version, 3);
        go_by(&cluster, FIRST, 3, 30).expect("the same");
    }
    go_by(&cluster, FIRST, 4, 40).expect("a newer one");
}

/// MEMBERS-2: all nodes learn that a newer list exists, also after a crash.
#[test]
fn a_newer_list_reaches_all_nodes_also_after_an_absence() {
    let cluster = started(0);
    cluster.crash(LAST);
    go_by(&cluster, FIRST, 3, 30).expect("the first");
    await_quiet(&cluster);
    assert_eq!(cluster.running(SECOND).list_versions(), (0, 3));
    start(&cluster, LAST);
    await_quiet(&cluster);
    assert_eq!(cluster.running(LAST).list_versions(), (0, 3));
    // A node that reports an old version learns of the newer one too.
    cluster.crash(SECOND);
    start(&cluster, SECOND);
    await_quiet(&cluster);
    assert_eq!(cluster.running(SECOND).list_versions(), (0, 3));
}

/// MEMBERS-2: a list with a known version and other contents is refused, also by a node that has only heard
/// of that version.
#[test]
fn a_changed_list_with_an_old_version_is_refused_by_all_nodes_that_know_it() {
    let cluster = started(0);
    go_by(&cluster, FIRST, 3, 30).expect("the first");
    assert_eq!(go_by(&cluster, FIRST, 3, 31), Err(ListError::Changed(3)), "it goes by another");
    await_quiet(&cluster);
    assert_eq!(go_by(&cluster, SECOND, 3, 31), Err(ListError::Changed(3)), "it has heard of another");
    assert_eq!(cluster.running(SECOND).list_versions(), (0, 3));
    go_by(&cluster, SECOND, 3, 30).expect("the same");
    go_by(&cluster, FIRST, 4, 40).expect("a newer one");
    await_quiet(&cluster);
    assert_eq!(
        go_by(&cluster, SECOND, 3, 31),
        Err(ListError::Changed(3)),
        "it goes by another, and there is a newer one"
    );
    go_by(&cluster, SECOND, 4, 40).expect("the newer one");
    // An isolated node cannot detect the difference.
    for other in [FIRST, SECOND] {
        cluster.network().cut(other, LAST);
    }
    cluster.crash(LAST);
    start(&cluster, LAST);
    go_by(&cluster, LAST, 4, 41).expect("as far as it knows");
    cluster.network().mend();
    let refused = leave(&cluster, LAST);
    assert!(matches!(refused, Err(LeaveError::OtherList { version: 4, .. })), "{refused:?}");
    assert!(refused.is_err_and(|error| error.to_string().contains("wrong list")));
    assert!(!cluster.running(LAST).has_left(LAST));
}

/// MEMBERS-3: a node must store the decommission message if the leaving node has recorded its store, even if
/// the leaving node's list does not contain it.
#[test]
fn a_node_known_but_not_listed_also_records_a_decommission() {
    let cluster = started(1);
    let new = cluster.spare().expect("there is one");
    let joined = cluster.clone();
    cluster.wait(async move { joined.join(new).await.map(drop) }).expect("it starts");
    cluster.executor().run_for(Duration::from_secs(1));
    assert!(cluster.running(new).is_settled());
    // The leaving node is restarted with the old list, which does not contain the new node.
    cluster.crash(LAST);
    let again = cluster.clone();
    let old = vec![FIRST, SECOND, LAST];
    cluster.wait(async move { again.start_with_list(LAST, old).await.map(drop) }).expect("it starts");
    assert!(!cluster.running(LAST).members().contains(&new));
    cluster.network().cut(LAST, new);
    let done = leave(&cluster, LAST);
    assert!(matches!(done, Err(LeaveError::NoAnswer(pe)) if pe == new), "{done:?}");
    cluster.network().mend();
    leave(&cluster, LAST).expect("all answer");
}

/// STORE-8: a restored node with an old list of members does not ask the nodes that only the newer list
/// contains, and one of these may own a leaf of the restored store. So it serves nothing by the old list.
#[test]
fn a_restored_store_is_not_answered_from_while_its_list_is_outdated() {
    let cluster = started(1);
    let node = cluster.running(LAST);
    cluster.wait(async move { node.write([250], Work::Put(vec![1])).await }).expect("it runs");
    let backup = cluster.disk(LAST).backup();
    let new = cluster.spare().expect("there is one");
    let joined = cluster.clone();
    cluster.wait(async move { joined.join(new).await.map(drop) }).expect("it starts");
    for pe in [FIRST, SECOND, LAST, new] {
        go_by(&cluster, pe, 3, 30).expect("the first");
    }
    cluster.executor().run_for(Duration::from_secs(1));
    let node = cluster.running(LAST);
    let page = node.leaves()[0].page;
    cluster.wait(async move { node.move_leaf(page, new).await }).expect("both run");
    await_quiet(&cluster);
    let node = cluster.running(new);
    cluster.wait(async move { node.write([250], Work::Put(vec![2])).await }).expect("it owns the leaf");
    cluster.crash(LAST);
    cluster.disk(LAST).restore(&backup);
    let again = cluster.clone();
    let old = vec![FIRST, SECOND, LAST];
    cluster.wait(async move { again.start_with_list(LAST, old).await.map(drop) }).expect("it starts");
    cluster.executor().run_for(Duration::from_secs(1));
    let node = cluster.running(LAST);
    assert!(!node.is_settled());
    let refused = cluster.wait(async move { node.get([250]).await });
    let Err(Error::Unavailable { reason: Some(reason), .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("has version 0, but another node uses version 3"), "{reason}");
    // With the newer list it asks the new node, and detects that it is an old copy.
    cluster.running(LAST).join(new);
    go_by(&cluster, LAST, 3, 30).expect("the newest");
    cluster.executor().run_for(Duration::from_secs(1));
    let failure = cluster.running(LAST).failure().expect("it says why");
    assert!(failure.contains("one of the two stores is an old copy"), "{failure}");
    assert!(!cluster.running(LAST).is_settled());
}
