//! Hazards B3 to B5. Each test drives a small cluster into the hazard.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{
    BuildOptions, Clock, Error, KeyRange, Node, Options, PageNo, PeId, Placement, Protocol, Rng, Target,
    Work, build,
};

const SOURCE: PeId = PeId(0);
const RECEIVER: PeId = PeId(1);

fn options(pes: u16) -> ClusterOptions {
    let mut options = ClusterOptions::evenly(pes);
    options.node.leaf_rows = 8;
    options.node.index_entries = 4;
    options.node.move_timeout = Duration::from_millis(300);
    options.node.remind_interval = Duration::from_millis(20);
    options.node.read_timeout = Duration::from_millis(200);
    options.faults = Faults {
        least_delay: Duration::from_micros(100),
        most_delay: Duration::from_micros(100),
        lose_one_in: 0,
    };
    options.store_delay = Duration::from_micros(100);
    options
}

fn started(seed: u64, options: ClusterOptions) -> Cluster {
    let cluster = Cluster::new(seed, options);
    cluster.start_all();
    cluster
}

/// Writes rows 1 to 5 into the first leaf of the source.
fn put_rows(cluster: &Cluster) {
    let source = cluster.running(SOURCE);
    cluster.wait(async move {
        for key in 1..=5 {
            source.write([key], Work::Put(vec![key])).await.expect("it runs");
        }
    });
}

/// A crash of either node at each tenth of a millisecond of a move. (B4 demands this of splits. A split is
/// one transaction here; only a move can be incomplete.)
#[test]
fn b4_a_crash_at_any_moment_of_a_move_leaves_the_leaf_whole_at_one_of_the_two() {
    let (mut undone, mut done) = (0, 0);
    for victim in [SOURCE, RECEIVER] {
        for moment in 0..30 {
            let cluster = started(7, options(2));
            put_rows(&cluster);
            let source = cluster.running(SOURCE);
            let page = source.leaves()[0].page;
            let executor = cluster.executor().clone();
            let task = async move {
                // A crashed node receives no answer.
                let _ = source.move_leaf(page, RECEIVER).await;
            };
            executor.spawn_in(executor.group(), Box::pin(task));
            executor.run_for(Duration::from_micros(moment * 100));
            cluster.crash(victim);
            executor.run_for(Duration::from_millis(5));
            let again = cluster.clone();
            cluster.wait(async move { again.start(victim).await.map(drop) }).expect("it starts again");
            executor.run_for(Duration::from_secs(1));

            let context = format!("{victim} crashed {moment} tenths of a millisecond after the move began");
            assert_eq!(cluster.verify(), Vec::<String>::new(), "{context}");
            for pe in [SOURCE, RECEIVER] {
                let (_, staged, decided) = cluster.disk(pe).structure();
                assert!(staged.is_empty() && decided.is_empty(), "{context}: the move is open at {pe}");
                let node = cluster.running(pe);
                let scan = async move { node.scan(KeyRange::all(), false, 100).await };
                let rows = cluster.wait(scan).expect("all run").rows;
                assert_eq!(rows, (1..=5).map(|key| (vec![key], vec![key])).collect::<Vec<_>>(), "{context}");
            }
            match cluster.running(RECEIVER).leaves().len() {
                1 => undone += 1,
                _ => done += 1,
            }
        }
    }
    assert!(undone > 5 && done > 5, "{undone} undone and {done} done: the moments lie on both sides");
}

/// A leaf with more bytes than a message between nodes is split by the move.
#[test]
fn a_leaf_too_large_for_a_message_is_split_and_the_part_with_the_key_moves() {
    const LARGE: usize = (8 << 20) - 1024;
    const ROWS: [(u8, usize); 3] = [(1, 1), (2, LARGE), (3, LARGE)];
    let mut options = options(2);
    options.node.leaf_bytes = 8 << 20;
    let cluster = started(7, options);
    let (source, receiver) = (cluster.running(SOURCE), cluster.running(RECEIVER));
    let writer = Rc::clone(&source);
    cluster.wait(async move {
        // The third row makes the leaf too large. Both large rows are then in the right half, which is not
        // counted before its next change.
        for (key, bytes) in ROWS {
            writer.write([key], Work::Put(vec![key; bytes])).await.expect("it runs");
        }
    });
    let lows = |pe| cluster.running(pe).leaves().into_iter().map(|leaf| leaf.range.low).collect::<Vec<_>>();
    assert!(cluster.executor().run_until(|| lows(SOURCE).len() == 2), "the leaf is split after the answer");
    assert_eq!(lows(SOURCE), [vec![], vec![2_u8]]);
    let mover = Rc::clone(&receiver);
    let request = async move { mover.call(Target::At(vec![3]), Work::Move { to: RECEIVER }).await };
    cluster.wait(request).expect("both run");
    cluster.executor().run_for(Duration::from_secs(1));
    assert_eq!(lows(SOURCE), [vec![], vec![2_u8]]);
    assert_eq!(lows(RECEIVER), [vec![3_u8], vec![128]]);
    for (key, bytes) in ROWS {
        let reader = Rc::clone(&receiver);
        let value = cluster.wait(async move { reader.get([key]).await }).expect("both run");
        assert_eq!(value.map(|value| value.len()), Some(bytes));
    }
    assert_eq!(cluster.verify(), Vec::<String>::new());
}

#[test]
fn a_request_too_long_for_a_message_is_refused_only_if_another_node_owns_the_key() {
    let cluster = started(7, options(2));
    let node = cluster.running(SOURCE);
    for (key, is_own) in [(1_u8, true), (200, false)] {
        let (node, work) = (Rc::clone(&node), Work::Put(vec![key; (8 << 20) + 1]));
        let written = cluster.wait(async move { node.write([key], work).await });
        match is_own {
            true => assert!(written.is_ok(), "{written:?}"),
            false => assert!(matches!(written, Err(Error::TooLong { .. })), "{written:?}"),
        }
    }
}

/// A write that waits for a leaf may find the leaf split when it gets the lock. Its key is then in the other
/// half, which may already be moving. So fences are compared under the lock (NODE-1).
#[test]
fn b6_a_write_that_waited_for_a_split_is_not_lost_when_the_other_half_moves() {
    let mut waited = 0;
    for seed in 0..40 {
        let mut options = options(2);
        options.store_delay = Duration::from_millis(2);
        let cluster = started(seed, options);
        put_rows(&cluster);
        let (source, executor) = (cluster.running(SOURCE), cluster.executor().clone());
        let page = source.leaves()[0].page;
        let splitter = Rc::clone(&source);
        let split = async move { splitter.split_leaf(page, vec![3]).await.expect("it has five rows") };
        executor.spawn_in(executor.group(), Box::pin(split));
        let (left, begun) = (Rc::new(Cell::new(3)), source.leaves().len());
        executor.run_for(Duration::from_micros(200));
        for key in 3..=5_u8 {
            let (source, left) = (Rc::clone(&source), Rc::clone(&left));
            let write = async move {
                source.write([key], Work::Put(vec![key, 1])).await.expect("all run");
                left.set(left.get() - 1);
            };
            executor.spawn_in(executor.group(), Box::pin(write));
        }
        waited += usize::from(source.leaves().len() == begun);
        assert!(executor.run_until(|| source.leaves().len() > begun), "seed {seed}");
        let (mover, right) = (Rc::clone(&source), source.leaves()[1].page);
        cluster.wait(async move { mover.move_leaf(right, RECEIVER).await }).expect("both run");
        assert!(executor.run_until(|| left.get() == 0), "seed {seed}");
        for key in 3..=5_u8 {
            let reader = cluster.running(RECEIVER);
            let value = cluster.wait(async move { reader.get([key]).await }).expect("both run");
            assert_eq!(value, Some(vec![key, 1]), "seed {seed}: key {key}");
        }
    }
    assert!(waited > 20, "{waited} of 40 came while the leaf was split");
}

/// A move reads the rows of its leaf only after the threads that serve its keys have left. Until the leaf
/// returns, no thread serves its keys (LOCAL-1). A split excludes no thread.
#[test]
fn a_move_waits_for_the_threads_that_serve_keys_of_the_leaf_and_a_split_does_not() {
    let cluster = started(1, options(2));
    put_rows(&cluster);
    let (source, receiver) = (cluster.running(SOURCE), cluster.running(RECEIVER));
    let keys = Arc::clone(source.local_keys());
    assert!(receiver.local_keys().enter(&[3]).is_none(), "it does not own the key");
    let entry = keys.enter(&[3]).expect("the source owns it");
    let (splitter, page) = (Rc::clone(&source), source.leaves()[0].page);
    cluster.wait(async move { splitter.split_leaf(page, vec![4]).await }).expect("no thread is in its way");
    let executor = cluster.executor().clone();
    let (mover, done) = (Rc::clone(&source), Rc::new(Cell::new(false)));
    let tell = Rc::clone(&done);
    let task = async move {
        mover.move_leaf(page, RECEIVER).await.expect("both run");
        tell.set(true);
    };
    executor.spawn_in(executor.group(), Box::pin(task));
    executor.run_for(Duration::from_secs(5));
    assert!(!done.get() && source.counts().moved == 0, "a thread serves a key of the leaf");
    assert!(!entry.serves(&[3]) && keys.enter(&[3]).is_none(), "no further request begins");
    drop(entry);
    assert!(executor.run_until(|| done.get() && receiver.local_keys().serves(&[3])));
    assert!(!keys.serves(&[3]), "it is the receiver's");
    assert!(keys.serves(&[5]), "the right half is still the source's");
    assert_eq!(cluster.verify(), [""; 0]);
    // An aborted move returns the keys to the threads.
    cluster.network().cut(SOURCE, RECEIVER);
    let (mover, right) = (Rc::clone(&source), page_of(&source, 5).expect("it is there"));
    cluster.wait(async move { mover.move_leaf(right, RECEIVER).await }).expect_err("no answer comes");
    assert!(keys.serves(&[5]), "LOCAL-3");
}

fn page_of(node: &Node, key: u8) -> Option<PageNo> {
    node.leaves().into_iter().find(|leaf| leaf.range.contains(&[key])).map(|leaf| leaf.page)
}

/// Moves the leaf of a key to the receiver and back.
async fn move_there_and_back(source: &Node, receiver: &Node, key: u8) {
    let page = page_of(source, key).expect("it came back");
    source.move_leaf(page, RECEIVER).await.expect("both run");
    // The move is decided, but may not be installed yet.
    while page_of(receiver, key).is_none() {
        receiver.get([key]).await.expect("both run");
    }
    let page = page_of(receiver, key).expect("just looked");
    receiver.move_leaf(page, SOURCE).await.expect("both run");
    while page_of(source, key).is_none() {
        source.get([key]).await.expect("both run");
    }
}

/// Leaves are split and merged during continuous writes, and each result is moved at once. No write may run
/// under the lock of a leaf that does not contain its key any more.
#[test]
fn b6_no_write_is_lost_when_a_leaf_moves_right_after_a_split_or_a_merge() {
    let (mut splits, mut merges) = (0, 0);
    for seed in 0..12 {
        let mut options = options(2);
        options.store_delay = Duration::from_millis(2);
        // All 17 rows fit into a leaf. A leaf with fewer than ten rows is merged.
        options.node.leaf_rows = 40;
        let cluster = started(seed, options);
        put_rows(&cluster);
        let (source, receiver) = (cluster.running(SOURCE), cluster.running(RECEIVER));
        let executor = cluster.executor().clone();
        let (is_over, left) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(12)));
        let acked: Rc<RefCell<BTreeMap<Vec<u8>, Vec<u8>>>> = Rc::default();
        for writer in 0..12_u8 {
            let (source, is_over, left) = (Rc::clone(&source), Rc::clone(&is_over), Rc::clone(&left));
            let (acked, clock) = (Rc::clone(&acked), executor.clone());
            let write = async move {
                // Each writer has its own key in either half. The key exists before, so that writes do not
                // change the size of the leaf.
                let key = vec![2 + writer % 4, writer];
                for number in 0_u32.. {
                    if is_over.get() {
                        break;
                    }
                    let value = number.to_be_bytes().to_vec();
                    source.write(key.clone(), Work::Put(value.clone())).await.expect("all run");
                    acked.borrow_mut().insert(key.clone(), value);
                    clock.sleep(Duration::from_micros(clock.below(300) as u64)).await;
                }
                left.set(left.get() - 1);
            };
            executor.spawn_in(executor.group(), Box::pin(write));
        }
        let (one, two) = (Rc::clone(&source), Rc::clone(&receiver));
        cluster.wait(async move {
            for _ in 0..6 {
                let page = page_of(&one, 3).expect("all is there");
                // The leaf may already be split at this key.
                let _ = one.split_leaf(page, vec![4]).await;
                move_there_and_back(&one, &two, 5).await;
                for key in 1..=5_u8 {
                    one.write([key], Work::Delete).await.expect("all run");
                }
                move_there_and_back(&one, &two, 3).await;
                for key in 1..=5_u8 {
                    one.write([key], Work::Put(vec![key])).await.expect("all run");
                }
            }
        });
        is_over.set(true);
        assert!(executor.run_until(|| left.get() == 0), "seed {seed}");
        for (key, value) in acked.take() {
            let reader = Rc::clone(&receiver);
            let found = cluster.wait(async move { reader.get(key).await }).expect("both run");
            assert_eq!(found, Some(value), "seed {seed}");
        }
        for node in [&source, &receiver] {
            splits += node.counts().splits;
            merges += node.counts().merges;
        }
    }
    assert!(splits > 12 && merges > 0, "{splits} splits, {merges} merges");
}

/// The paper's servers stop when all their threads wait (section 3.4.1). Here a thousand requests wait for
/// one leaf, and another leaf is served meanwhile.
#[test]
fn b5_requests_that_wait_for_a_leaf_block_no_other_request() {
    let cluster = started(3, options(2));
    put_rows(&cluster);
    cluster.network().cut(SOURCE, RECEIVER);
    let source = cluster.running(SOURCE);
    let page = source.leaves()[0].page;
    let executor = cluster.executor().clone();
    let mover = Rc::clone(&source);
    let task = async move { drop(mover.move_leaf(page, RECEIVER).await) };
    executor.spawn_in(executor.group(), Box::pin(task));
    executor.run_for(Duration::from_millis(10));
    let answered = Rc::new(Cell::new(0));
    for _ in 0..1000 {
        let (source, answered) = (Rc::clone(&source), Rc::clone(&answered));
        let task = async move {
            source.write([2], Work::Put(vec![9])).await.expect("the move is given up");
            answered.set(answered.get() + 1);
        };
        executor.spawn_in(executor.group(), Box::pin(task));
    }
    executor.run_for(Duration::from_millis(10));
    assert_eq!(answered.get(), 0, "all wait for the leaf that is on its way");
    let receiver = cluster.running(RECEIVER);
    let meanwhile = cluster.wait(async move { receiver.write([200], Work::Put(vec![1])).await });
    assert!(!meanwhile.expect("another leaf"));
    assert_eq!(answered.get(), 0);
    assert!(executor.run_until(|| answered.get() == 1000));
    assert_eq!(source.counts().moves_undone, 1);
}

/// Lock coupling, locks on all copies, and splits in all leaves. The order of levels and PEs prevents cycles
/// of waits.
#[test]
fn b3_the_papers_protocols_split_all_leaves_at_once_without_deadlock() {
    for seed in 0..12 {
        for protocol in [Protocol::BOpt, Protocol::IncOpt] {
            for placement in Placement::ALL {
                let mut options = options(4);
                options.node.placement = placement;
                options.node.protocol = protocol;
                options.node.request_timeout = Duration::from_secs(3600);
                options.node.read_timeout = Duration::from_secs(3600);
                // 64 leaves, 8 index pages above them with space for more entries, and a root.
                let shape = BuildOptions { pes: 4, placement, index_fill: 8, index_entries: 200 };
                let first_keys: Vec<_> = (0..64).map(|leaf| vec![leaf * 4]).collect();
                let parts = build(&first_keys, shape);
                options.node.index_entries = shape.index_entries;
                options.shares =
                    (0..).map(PeId).zip(&parts).map(|(pe, part)| (part.low.clone(), pe)).collect();
                let cluster = Cluster::new(seed, options);
                cluster.give(parts);
                cluster.start_all();
                let executor = cluster.executor().clone();
                let left = Rc::new(Cell::new(16));
                for client in 0..16u8 {
                    let (cluster, left, clock) = (cluster.clone(), Rc::clone(&left), executor.clone());
                    let task = async move {
                        for number in 0..40u8 {
                            let node = cluster.running(PeId(clock.below(4) as u16));
                            let key = [clock.below(256) as u8, client, number];
                            node.write(key, Work::Insert(vec![number])).await.expect("no faults");
                            assert_eq!(node.get(key).await.expect("no faults"), Some(vec![number]));
                        }
                        left.set(left.get() - 1);
                    };
                    executor.spawn_in(executor.group(), Box::pin(task));
                }
                let context = format!("{placement}, {}, seed {seed}", protocol.short());
                assert!(executor.run_until(|| left.get() == 0), "{context}: a circle of waits");
                let splits: u64 = (0..4).map(|pe| cluster.running(PeId(pe)).counts().splits).sum();
                assert!(splits > 40, "{context}: {splits} splits");
                let scanned = cluster.running(PeId(3));
                let rows = cluster.wait(async move { scanned.scan(KeyRange::all(), true, 10_000).await });
                assert_eq!(rows.expect("no faults").rows.len(), 16 * 40, "{context}");
            }
        }
    }
}

/// A node stops answering, like a stopped process. After four heartbeats requests for its keys are refused
/// without waiting. Requests for other keys continue, and the node is accepted again after its next message.
#[test]
fn a_silent_node_is_noticed_within_3_seconds_and_stalls_no_request_for_other_keys() {
    let mut options = options(3);
    options.node.heartbeat_interval = Options::default().heartbeat_interval;
    options.node.request_timeout = Duration::from_secs(3600);
    let cluster = started(5, options);
    let (gateway, executor) = (cluster.running(PeId(0)), cluster.executor().clone());
    let write = |key: u8| {
        let node = Rc::clone(&gateway);
        cluster.wait(async move { node.write([key], Work::Put(vec![key])).await })
    };
    // Keys of nodes 0, 1 and 2.
    const KEYS: [u8; 3] = [1, 100, 200];
    for key in KEYS {
        write(key).expect("all run");
    }
    cluster.crash(PeId(2));
    let crashed = executor.now();
    // The request was in flight. It ends as soon as the silence is detected, long before its timeout of an
    // hour.
    assert!(matches!(write(KEYS[2]), Err(Error::Unknown { .. })));
    assert!(executor.now() - crashed <= Duration::from_secs(3), "{:?}", executor.now() - crashed);
    let began = executor.now();
    for _ in 0..1000 {
        let refused = write(KEYS[2]);
        assert!(matches!(refused, Err(Error::Unreachable { pe: PeId(2), .. })), "{refused:?}");
        write(KEYS[0]).expect("it runs");
        write(KEYS[1]).expect("it runs");
    }
    // Only the store and the network take time: less than a millisecond for each request.
    assert!(executor.now() - began < Duration::from_secs(2), "{:?}", executor.now() - began);

    let again = cluster.clone();
    cluster.wait(async move { again.start(PeId(2)).await.map(drop) }).expect("it starts again");
    executor.run_for(Duration::from_secs(1));
    write(KEYS[2]).expect("it is heard again");
}

/// A node is down after four missed heartbeats, not before, and a received heartbeat restarts the count.
#[test]
fn a_node_whose_answers_are_lost_for_less_than_four_heartbeats_is_not_down() {
    let mut options = options(2);
    options.node.heartbeat_interval = Some(Duration::from_millis(500));
    let cluster = started(6, options);
    let (gateway, executor) = (cluster.running(PeId(0)), cluster.executor().clone());
    executor.run_for(Duration::from_secs(1));
    cluster.network().cut(PeId(1), PeId(0));
    executor.run_for(Duration::from_millis(1400));
    assert!(!gateway.is_down(PeId(1)));
    cluster.network().mend();
    executor.run_for(Duration::from_secs(10));
    assert!(!gateway.is_down(PeId(1)));
    cluster.network().cut(PeId(1), PeId(0));
    executor.run_for(Duration::from_secs(3));
    assert!(gateway.is_down(PeId(1)));
}
