//! Tests of streams: shape, repeatability, shares of operations, uniqueness of values.

use azekura_workload::ycsb::{MAX_SCAN_RECORDS, Mix};
use azekura_workload::{Family, Key, Lane, Step, Workload};
use std::collections::{BTreeMap, HashMap, HashSet};

fn transactions(workload: &Workload, lane: Lane, seed: u64, n: usize) -> Vec<Vec<Step>> {
    let population = workload.population();
    let mut stream = workload.stream(&population, lane, seed);
    let mut all = Vec::new();
    for _ in 0..n {
        let mut steps = Vec::new();
        stream.next_transaction(&mut steps);
        steps.iter().for_each(|s| stream.acknowledge(s));
        all.push(steps);
    }
    all
}

fn named(name: &str) -> Workload {
    name.parse().expect("a name of a workload")
}

#[test]
fn the_same_seed_gives_the_same_stream_and_another_seed_or_lane_another() {
    for name in Workload::names().filter(|n| !n.starts_with("load") && n != "scan" && n != "scan-back") {
        let run = |lane, seed| transactions(&named(&name), lane, seed, 200);
        assert_eq!(run(Lane::new(0, 2), 7), run(Lane::new(0, 2), 7), "{name}");
        assert_ne!(run(Lane::new(0, 2), 7), run(Lane::new(0, 2), 8), "{name}: seed");
        assert_ne!(run(Lane::new(0, 2), 7), run(Lane::new(1, 2), 7), "{name}: lane");
    }
}

#[test]
fn u1_has_one_update_and_u10_ten_over_65536_records() {
    for (name, updates) in [("u1", 1), ("u10", 10)] {
        for steps in transactions(&named(name), Lane::only(), 1, 1_000) {
            assert_eq!(steps.len(), updates);
            for step in steps {
                let Step::Put { key, .. } = step else { panic!("{step:?}") };
                assert!(u64::from_be_bytes(key.0) < 65_536);
            }
        }
    }
}

#[test]
fn no_update_brings_a_value_that_another_brought() {
    let workload = named("u10").with_value_bytes(4);
    let mut seen = HashSet::new();
    for lane in 0..4 {
        for step in transactions(&workload, Lane::new(lane, 4), 3, 1_000).concat() {
            let Step::Put { value, .. } = step else { panic!("{step:?}") };
            let mut bytes = [0; 4];
            value.fill(&mut bytes);
            assert!(seen.insert(bytes), "lane {lane} repeats {bytes:?}");
        }
    }
    assert_eq!(seen.len(), 40_000);
}

#[test]
fn reads_ask_only_for_records_that_are_there_and_reach_all_of_them() {
    let workload = named("read").with_records(500).with_group(10);
    let keys: HashSet<Key> = transactions(&workload, Lane::only(), 1, 1_000)
        .concat()
        .into_iter()
        .map(|s| if let Step::Get { key } = s { key } else { panic!("{s:?}") })
        .collect();
    assert_eq!(keys, (0..500).map(|i| workload.dataset().key(i)).collect());
}

#[test]
fn a_load_writes_every_record_once_in_key_order_ten_thousand_at_a_time() {
    let workload = named("load").with_records(25_000);
    let parts = transactions(&workload, Lane::only(), 1, 4);
    assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [10_000, 10_000, 5_000, 0]);
    let keys: Vec<Key> = parts
        .concat()
        .into_iter()
        .map(|s| if let Step::Insert { key, .. } = s { key } else { panic!("{s:?}") })
        .collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
    assert_eq!(keys.len(), 25_000);
}

#[test]
fn a_load_in_random_order_writes_the_same_records_in_no_order() {
    let workload = named("load-random").with_records(2_000);
    let keys: Vec<Key> = transactions(&workload, Lane::only(), 1, 2)
        .concat()
        .into_iter()
        .map(|s| if let Step::Insert { key, .. } = s { key } else { panic!("{s:?}") })
        .collect();
    assert_eq!(keys, (0..2_000).map(|i| workload.dataset().key(i)).collect::<Vec<_>>());
    let ascents = keys.windows(2).filter(|w| w[0] < w[1]).count();
    assert!((900..1_100).contains(&ascents), "{ascents} ascents of 1999: half would be no order");
}

#[test]
fn scans_read_fifty_records_or_the_whole_table_from_its_end() {
    let workload = named("short-scan").with_records(500);
    for step in transactions(&workload, Lane::only(), 1, 100).concat() {
        let Step::Scan { from, limit: 50 } = step else { panic!("{step:?}") };
        assert!((0..500).any(|item| workload.dataset().key(item) == from));
    }
    let back = transactions(&named("scan-back"), Lane::only(), 1, 1).concat();
    assert_eq!(back, [Step::ScanBack { limit: u64::MAX }]);
}

#[test]
fn loads_of_several_lanes_write_every_record_once() {
    let workload = named("load").with_records(1_001).with_group(100);
    let mut items = Vec::new();
    for lane in 0..3 {
        for step in transactions(&workload, Lane::new(lane, 3), 1, 5).concat() {
            let Step::Insert { item, .. } = step else { panic!("{step:?}") };
            items.push(item);
        }
    }
    items.sort_unstable();
    assert_eq!(items, (0..1_001).collect::<Vec<_>>());
}

/// Returns the kind of a step as a word.
fn kind(step: &Step) -> &'static str {
    match step {
        Step::Get { .. } => "read",
        Step::Put { .. } => "update",
        Step::ReadModifyWrite { .. } => "read-modify-write",
        Step::Insert { .. } => "insert",
        Step::Scan { .. } => "scan",
        Step::ScanBack { .. } => "scan back",
    }
}

#[test]
fn ycsb_mixes_have_their_standard_shares() {
    let expected: [(Mix, &[(&str, f64)]); 6] = [
        (Mix::A, &[("read", 0.5), ("update", 0.5)]),
        (Mix::B, &[("read", 0.95), ("update", 0.05)]),
        (Mix::C, &[("read", 1.0)]),
        (Mix::D, &[("insert", 0.05), ("read", 0.95)]),
        (Mix::E, &[("insert", 0.05), ("scan", 0.95)]),
        (Mix::F, &[("read", 0.5), ("read-modify-write", 0.5)]),
    ];
    for (mix, shares) in expected {
        let workload = Workload::new(Family::Ycsb(mix)).with_records(10_000);
        let all = transactions(&workload, Lane::only(), 5, 20_000);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for steps in &all {
            assert_eq!(steps.len(), 1, "one operation per transaction");
            *counts.entry(kind(&steps[0])).or_default() += 1;
        }
        assert_eq!(
            counts.keys().copied().collect::<Vec<_>>(),
            shares.iter().map(|s| s.0).collect::<Vec<_>>()
        );
        for (what, share) in shares {
            let seen = counts[what] as f64 / 20_000.0;
            assert!((seen - share).abs() < 0.02, "{mix:?}: {seen} of {what}, not {share}");
        }
    }
}

#[test]
fn ycsb_a_is_skewed_as_zipf_of_0_99_says() {
    let workload = named("ycsb-a");
    let mut counts: HashMap<Key, u64> = HashMap::new();
    let population = workload.population();
    let mut stream = workload.stream(&population, Lane::only(), 11);
    let (mut steps, n) = (Vec::new(), 200_000);
    for _ in 0..n {
        stream.next_transaction(&mut steps);
        let (Step::Get { key } | Step::Put { key, .. }) = steps[0] else { panic!("{steps:?}") };
        *counts.entry(key).or_default() += 1;
    }
    let mut by_count: Vec<u64> = counts.values().copied().collect();
    by_count.sort_unstable_by(|a, b| b.cmp(a));
    // Over a million items the sum of r^-0.99 is 15.4, so the first rank has 6.5 % and the first thousand
    // have 48.4 %.
    let first = by_count[0] as f64 / f64::from(n);
    let thousand = by_count[..1_000].iter().sum::<u64>() as f64 / f64::from(n);
    assert!((0.062..0.068).contains(&first), "hottest item: {first}");
    assert!((0.47..0.51).contains(&thousand), "hottest thousand: {thousand}");
}

#[test]
fn ycsb_d_reads_what_was_inserted_last() {
    let workload = named("ycsb-d").with_records(10_000);
    let population = workload.population();
    let mut stream = workload.stream(&population, Lane::only(), 11);
    let number: HashMap<Key, u64> = (0..20_000).map(|i| (workload.key_order().key(i), i)).collect();
    let (mut steps, mut ages) = (Vec::new(), Vec::new());
    for _ in 0..20_000 {
        stream.next_transaction(&mut steps);
        if let Step::Get { key } = steps[0] {
            ages.push(population.horizon() - 1 - number[&key]);
        }
        stream.acknowledge(&steps[0]);
    }
    assert!(population.horizon() > 10_800, "a twentieth of the operations insert");
    let newest = ages.iter().filter(|&&age| age == 0).count() as f64 / ages.len() as f64;
    // Over ten thousand items the sum of r^-0.99 is 10.2, so the newest has 9.8 %.
    assert!((0.09..0.107).contains(&newest), "{newest} of the reads are of the newest");
}

#[test]
fn ycsb_e_scans_one_to_a_hundred_records_from_a_key_that_is_there() {
    let workload = named("ycsb-e").with_records(1_000);
    let population = workload.population();
    let mut stream = workload.stream(&population, Lane::only(), 11);
    let (mut steps, mut lengths, mut there) = (Vec::new(), Vec::new(), HashSet::new());
    there.extend((0..1_000).map(|i| workload.key_order().key(i)));
    for _ in 0..10_000 {
        stream.next_transaction(&mut steps);
        match steps[0] {
            Step::Scan { from, limit } => {
                assert!(there.contains(&from));
                lengths.push(limit);
            }
            Step::Insert { key, .. } => assert!(there.insert(key), "an insert of a key that is there"),
            other => panic!("{other:?}"),
        }
        stream.acknowledge(&steps[0]);
    }
    assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&1), Some(&MAX_SCAN_RECORDS)));
    let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
    assert!((49.0..52.0).contains(&mean), "mean scan length {mean}");
}
