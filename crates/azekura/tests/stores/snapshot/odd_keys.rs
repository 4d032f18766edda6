//! Snapshots of a table with keys that begin alike, beside every kind of change of its rows.

use super::*;

const TABLE: TableDefinition<[u8], [u8]> = TableDefinition::new("odd");

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys with common beginnings of many lengths, the empty key, keys of one byte, and keys that are the
/// beginnings of other keys.
fn all_keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte]).collect();
    keys.push(Vec::new());
    for len in [1, 5, 8, 9, 17, 100, 300] {
        keys.extend((0..len.min(20)).map(|part| vec![0; part]));
        for number in 0..40_u64 {
            for tail in [&[][..], &[0], &[255]] {
                let number = number.to_be_bytes();
                keys.push([&vec![b'p'; len][..], &number[7..], tail].concat());
                keys.push([&vec![0; len][..], &number, tail].concat());
                keys.push([&vec![255; len][..], &number[6..], tail].concat());
            }
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Changes the table and the model in one transaction. Rolls some of them back.
fn change(db: &Database, keys: &[Vec<u8>], model: &mut Rows, random: &mut SmallRng) {
    let mut after = model.clone();
    let (a, b) = (random.random_range(0..keys.len()), random.random_range(0..keys.len()));
    let (from, to) = (&keys[a.min(b)], &keys[a.max(b)]);
    let value = |random: &mut SmallRng| vec![random.random(); random.random_range(0..200)];
    let tx = db.begin().unwrap();
    match random.random_range(0..40) {
        0 => {
            tx.drop_table("odd").unwrap();
            after.clear();
        }
        1 => {
            tx.table(&TABLE).unwrap().remove_range(..).unwrap();
            after.clear();
        }
        2..5 => {
            tx.table(&TABLE).unwrap().remove_range(&**from..&**to).unwrap();
            after.retain(|key, _| key < from || key >= to);
        }
        5..8 if after.is_empty() => {
            keys[a.min(b)..a.max(b)].iter().for_each(|key| _ = after.insert(key.clone(), value(random)));
            let rows = after.iter().map(|(key, value)| (&**key, &**value));
            tx.table(&TABLE).unwrap().bulk_load(rows).unwrap();
        }
        kind => {
            let table = tx.table(&TABLE).unwrap();
            let near = a..(a + 30).min(keys.len());
            for _ in 0..random.random_range(1..60) {
                let at = if kind % 2 == 0 {
                    random.random_range(near.clone())
                } else {
                    random.random_range(0..keys.len())
                };
                let key = &keys[at];
                if random.random_range(0..3) == 0 {
                    assert_eq!(table.remove(&**key).unwrap(), after.remove(key));
                } else {
                    let value = value(random);
                    table.insert(&**key, &*value).unwrap();
                    after.insert(key.clone(), value);
                }
            }
        }
    }
    if random.random_range(0..5) == 0 {
        drop(tx);
    } else {
        tx.commit().unwrap();
        *model = after;
    }
}

/// Compares reads of the snapshot with the model. `false`: the snapshot is too old.
fn check(snapshot: &Snapshot, keys: &[Vec<u8>], model: &Rows, random: &mut SmallRng) -> bool {
    let mut read = || {
        let table = snapshot.table(&TABLE)?;
        let (a, b) = (random.random_range(0..keys.len()), random.random_range(0..keys.len()));
        let (from, to) = (&keys[a.min(b)], &keys[a.max(b)]);
        let found = table.range(&**from..&**to).collect::<Result<Vec<_>, _>>()?;
        let wanted = model.range(from.clone()..to.clone()).map(|(k, v)| (k.clone(), v.clone()));
        assert!(found == wanted.clone().collect::<Vec<_>>(), "from {from:?} to {to:?}");
        let found = table.range(&**from..).rev().collect::<Result<Vec<_>, _>>()?;
        let wanted = model.range(from.clone()..).rev().map(|(k, v)| (k.clone(), v.clone()));
        assert!(found == wanted.collect::<Vec<_>>(), "back to {from:?}");
        for _ in 0..20 {
            let key = &keys[random.random_range(0..keys.len())];
            let found = table.get(&**key)?;
            assert!(found == model.get(key).cloned(), "key {key:?}");
        }
        Ok(())
    };
    match read() {
        Err(Error::SnapshotTooOld { .. }) => false,
        done => {
            done.unwrap();
            true
        }
    }
}

#[test]
fn keys_that_begin_alike_are_seen_as_they_were() {
    let keys = all_keys();
    for (seed, limit) in [(1, 64 << 20), (2, 64 << 20), (3, 300 << 10), (4, 60 << 10)] {
        let (mut random, mut model, mut held) = (SmallRng::seed_from_u64(seed), Rows::new(), Vec::new());
        let db = builder().background(false).version_bytes(limit).open_in_memory().unwrap();
        db.transact(|tx| tx.table(&TABLE).map(drop)).unwrap();
        let (mut too_old, mut checked) = (0, 0);
        for step in 0..1_500 {
            if step % 7 == 0 && held.len() < 5 {
                held.push((db.snapshot().unwrap(), model.clone()));
            }
            change(&db, &keys, &mut model, &mut random);
            if !held.is_empty() && random.random_range(0..3) == 0 {
                let at = random.random_range(0..held.len());
                let (snapshot, model) = &held[at];
                let is_valid = check(snapshot, &keys, model, &mut random);
                (too_old, checked) = (too_old + u32::from(!is_valid), checked + 1);
                if !is_valid || random.random_range(0..12) == 0 {
                    drop(held.remove(at));
                }
            }
        }
        assert!(checked > 200 && (too_old > 0) == (limit < 1 << 20), "{checked} checked, {too_old} too old");
    }
}
