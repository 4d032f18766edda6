//! Nodes with real databases on disks that lose power: acknowledged writes survive crashes during splits and
//! moves.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use azekura::Database;
use azekura_fatbtree::sim::{Cluster, ClusterOptions, Executor, Faults, MakeStore};
use azekura_fatbtree::store::{DatabaseStore, Inline, LeafStore, NoAttachments};
use azekura_fatbtree::{Clock, Error, Key, KeyRange, Rng, Work};
use azekura_io::FaultFs;

/// Returns stores on one disk for each PE. Each start continues with the state that the last power failure
/// has left.
fn stores(seed: u64) -> Box<MakeStore> {
    let disks = RefCell::new(BTreeMap::new());
    Box::new(move |pe, _| -> Rc<dyn LeafStore> {
        let mut disks = disks.borrow_mut();
        let (disk, starts) = disks.entry(pe).or_insert_with(|| (FaultFs::new(), 0));
        *starts += 1;
        *disk = disk.crash(seed * 1000 + *starts);
        let db = Database::builder()
            .file_system(Arc::new(disk.clone()))
            .background(false)
            .page_size(4096)
            .cache_bytes(1 << 20)
            .log_buffers(2)
            .wal_streams(1)
            .open("db")
            .expect("it opens after every crash");
        Rc::new(DatabaseStore::new(db, "rows", Rc::new(Inline), Arc::new(NoAttachments)))
    })
}

fn options() -> ClusterOptions {
    let mut options = ClusterOptions::evenly(3);
    options.node.leaf_rows = 4;
    options.node.index_entries = 4;
    options.node.request_timeout = Duration::from_secs(2);
    options.node.read_timeout = Duration::from_millis(200);
    options.node.move_timeout = Duration::from_millis(200);
    options.node.remind_interval = Duration::from_millis(20);
    options.faults = Faults {
        least_delay: Duration::from_micros(50),
        most_delay: Duration::from_millis(4),
        lose_one_in: 60,
    };
    options
}

/// Possible values of each key: several after a write with an unknown outcome.
type Model = BTreeMap<Key, BTreeSet<Option<Vec<u8>>>>;

async fn write_something(cluster: &Cluster, number: u8, model: &RefCell<Model>) {
    let clock = cluster.executor();
    let members = cluster.members();
    let Some(node) = cluster.node(members[clock.below(members.len())]) else { return };
    let key = vec![clock.below(40) as u8 * 6];
    let value = (clock.below(4) > 0).then(|| vec![number]);
    let work = value.clone().map_or(Work::Delete, Work::Put);
    let done = node.write(key.clone(), work).await;
    let mut model = model.borrow_mut();
    let may_be = model.entry(key).or_insert_with(|| BTreeSet::from([None]));
    match done {
        Ok(_) => *may_be = BTreeSet::from([value]),
        Err(Error::Unknown { .. }) => {
            may_be.insert(value);
        }
        Err(_) => {}
    }
}

async fn disturb(cluster: Cluster) {
    let clock = cluster.executor().clone();
    let members = cluster.members();
    for turn in 0..24 {
        clock.sleep(Duration::from_micros(clock.below(40_000) as u64)).await;
        let (pe, to) = (members[clock.below(3)], members[clock.below(3)]);
        if turn % 6 == 5 {
            cluster.crash(pe);
            clock.sleep(Duration::from_millis(20)).await;
            cluster.start(pe).await.expect("it starts again");
        } else if let Some(node) = cluster.node(pe) {
            let leaves = node.leaves();
            if !leaves.is_empty() {
                // The move may be aborted, which is also a valid result.
                let _ = node.move_leaf(leaves[clock.below(leaves.len())].page, to).await;
            }
        }
    }
}

#[test]
fn b4_what_was_acknowledged_survives_power_failures_in_the_midst_of_splits_and_moves() {
    let (mut moved, mut split) = (0, 0);
    for seed in 1..=12 {
        let cluster = Cluster::with(Executor::new(seed), options(), Some(stores(seed)), None);
        cluster.start_all();
        let executor = cluster.executor().clone();
        executor.spawn_in(executor.group(), Box::pin(disturb(cluster.clone())));
        let (writer, model) = (cluster.clone(), Rc::new(RefCell::new(Model::new())));
        let for_task = Rc::clone(&model);
        let wrote = executor.block_on(async move {
            for number in 0..120 {
                write_something(&writer, number, &for_task).await;
            }
        });
        wrote.expect("no request hangs");
        executor.run_for(Duration::from_secs(3));
        cluster.network().set_faults(Faults::default());
        executor.run_for(Duration::from_secs(2));

        let mut leaves = Vec::new();
        for pe in cluster.members() {
            let node = cluster.running(pe);
            assert_eq!(node.verify(), Vec::<String>::new(), "seed {seed}");
            leaves.extend(node.leaves());
            (moved, split) = (moved + node.counts().moved, split + node.counts().splits);
            let scan = executor.block_on(async move { node.scan(KeyRange::all(), false, 1000).await });
            let rows: BTreeMap<_, _> = scan.expect("it ends").expect("all run").rows.into_iter().collect();
            for (key, may_be) in model.borrow_mut().iter_mut() {
                let value = rows.get(key).cloned();
                assert!(
                    may_be.contains(&value),
                    "seed {seed}, {pe}: {key:?} is {value:?}, not of {may_be:?}"
                );
                // From here on every node must return this value.
                *may_be = BTreeSet::from([value]);
            }
        }
        leaves.sort_unstable_by(|one, two| one.range.low.cmp(&two.range.low));
        let ends = leaves.iter().map(|leaf| leaf.range.high.clone()).collect::<Vec<_>>();
        let begins = leaves.iter().skip(1).map(|leaf| Some(leaf.range.low.clone())).chain([None]);
        assert!(ends.into_iter().eq(begins), "seed {seed}: {leaves:?}");
    }
    assert!(moved > 20 && split > 20, "{moved} moved, {split} split");
}
