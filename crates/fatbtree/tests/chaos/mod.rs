//! Faults of a simulated cluster during requests of clients, and the checks at the end.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::Rng;
use azekura_fatbtree::sim::{Cluster, Faults};

/// Returns a number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Returns the seeds to run: the one in the environment, or as many as `usual` or the environment says.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    match number("AZEKURA_FAT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("AZEKURA_FAT_SEEDS").unwrap_or(usual),
    }
}

/// Returns choice `number` of a seed, below `end`.
pub(crate) fn pick(seed: u64, number: u64, end: u64) -> u64 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (number * 5)) % end
}

/// Moves `moves` random leaves to random nodes within 1.2 seconds.
pub(crate) async fn mover(cluster: Cluster, moves: usize, moved: Rc<Cell<usize>>) {
    use azekura_fatbtree::Clock;
    let clock = cluster.executor().clone();
    for _ in 0..moves {
        clock.sleep(Duration::from_micros(clock.below(1_200_000 / moves) as u64)).await;
        let members = cluster.members();
        let Some(node) = cluster.node(members[clock.below(members.len())]) else { continue };
        let leaves = node.leaves();
        if leaves.is_empty() {
            continue;
        }
        let (page, to) = (leaves[clock.below(leaves.len())].page, members[clock.below(members.len())]);
        if node.move_leaf(page, to).await.is_ok() {
            moved.set(moved.get() + 1);
        }
    }
}

/// Crashes and restarts nodes; cuts and restores connections.
pub(crate) async fn nemesis(cluster: Cluster, crashes: usize, cuts: usize) {
    use azekura_fatbtree::Clock;
    let clock = cluster.executor().clone();
    let any = || {
        let members = cluster.members();
        members[clock.below(members.len())]
    };
    for turn in 0..crashes + cuts {
        clock.sleep(Duration::from_micros(clock.below(200_000) as u64)).await;
        let (pe, other) = (any(), any());
        if turn < crashes {
            cluster.crash(pe);
            clock.sleep(Duration::from_micros(clock.below(200_000) as u64)).await;
            if cluster.members().contains(&pe) {
                cluster.start(pe).await.expect("it starts again");
            }
        } else {
            cluster.network().cut(pe, other);
            if clock.below(2) == 0 {
                cluster.network().cut(other, pe);
            }
            clock.sleep(Duration::from_micros(clock.below(400_000) as u64)).await;
            cluster.network().mend();
        }
    }
}

/// Adds `joins` nodes, at intervals of up to 0.4 seconds.
pub(crate) async fn joiner(cluster: Cluster, joins: usize) {
    use azekura_fatbtree::Clock;
    let clock = cluster.executor().clone();
    for _ in 0..joins {
        clock.sleep(Duration::from_micros(clock.below(400_000) as u64)).await;
        let Some(pe) = cluster.spare() else { return };
        cluster.join(pe).await.expect("it starts");
    }
}

/// Makes nodes leave, sometimes two at once, and stops them when all other nodes know it.
pub(crate) async fn leaver(cluster: Cluster, leaves: usize, left: Rc<Cell<usize>>) {
    use azekura_fatbtree::Clock;
    let clock = cluster.executor().clone();
    for _ in 0..leaves {
        clock.sleep(Duration::from_micros(clock.below(400_000) as u64)).await;
        let members = cluster.members();
        let pe = members[clock.below(members.len())];
        let Some(node) = cluster.node(pe) else { continue };
        let done = Rc::new(RefCell::new(None));
        let tell = Rc::clone(&done);
        let group = cluster.group(pe).expect("it runs");
        // The task holds no reference to the node, so that it ends with the node.
        let leaving = Rc::downgrade(&node);
        drop(node);
        let task = async move {
            let Some(node) = leaving.upgrade() else { return };
            let result = node.leave().await;
            *tell.borrow_mut() = Some(result.is_ok());
        };
        cluster.executor().spawn_in(group, Box::pin(task));
        for _ in 0..200 {
            clock.sleep(Duration::from_millis(10)).await;
            let Some(node) = cluster.node(pe) else { break };
            match *done.borrow() {
                Some(false) => break,
                Some(true) if node.uninformed().is_empty() => {
                    left.set(left.get() + 1);
                    cluster.dismiss(pe);
                    break;
                }
                _ => {}
            }
        }
    }
}

/// Runs tasks concurrently to their ends; then ends all faults and checks the invariants.
pub(crate) fn run_all(cluster: &Cluster, plan: &impl Debug, tasks: Vec<Pin<Box<dyn Future<Output = ()>>>>) {
    let executor = cluster.executor().clone();
    let left = Rc::new(RefCell::new(tasks.len()));
    for task in tasks {
        let left = Rc::clone(&left);
        executor.spawn_in(
            executor.group(),
            Box::pin(async move {
                task.await;
                *left.borrow_mut() -= 1;
            }),
        );
    }
    assert!(executor.run_until(|| *left.borrow() == 0), "{plan:?}: somebody waits for ever");
    heal(cluster, plan);
}

/// Ends all faults. From here on the cluster must recover.
fn heal(cluster: &Cluster, plan: &impl Debug) {
    cluster.network().mend();
    cluster.network().set_faults(Faults { least_delay: Duration::from_micros(50), ..Faults::default() });
    cluster.executor().run_for(Duration::from_secs(4));
    for pe in cluster.members() {
        if cluster.disk(pe).has_left(pe) {
            let node = cluster.running(pe);
            assert!(
                node.uninformed().is_empty(),
                "{plan:?}: {pe} has left, and {:?} never heard of it",
                node.uninformed()
            );
            cluster.dismiss(pe);
        }
    }
    for pe in cluster.members() {
        let node = cluster.running(pe);
        assert!(node.is_settled(), "{plan:?}: {pe} never came to its keys");
    }
    let wrong = cluster.verify();
    assert!(wrong.is_empty(), "{plan:?}: {wrong:#?}");
    for pe in cluster.members() {
        let (_, staged, decided) = cluster.disk(pe).structure();
        assert!(staged.is_empty() && decided.is_empty(), "{plan:?}: a move is open for ever at {pe}");
    }
}
