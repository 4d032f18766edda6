//! The page table: one frame for a page, whoever inserts, removes and helps (TABLE-1, TABLE-2).
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a model ends where it fails")]

mod loom_common;

use azekura_base::sync::{Arc, thread};
use azekura_buffer::model::ModelTable;
use loom_common::model;

/// Two pages that belong into one bucket, so that the second to come passes it.
fn neighbours(table: &ModelTable) -> (u64, u64) {
    let other = (2..).find(|&page| table.home(page) == table.home(1)).expect("some page");
    (1, other)
}

#[test]
fn table_1_two_inserters_of_one_page_agree() {
    model("insert, insert", 4, 100, || {
        let table = Arc::new(ModelTable::new(2));
        let theirs = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.insert(1, 11))
        };
        let ours = table.insert(1, 22);
        let theirs = theirs.join().unwrap();
        assert_eq!(ours, theirs);
        assert_eq!(table.get(1), Some(ours));
        table.remove(1, ours);
        assert_eq!(table.get(1), None, "only one entry");
        assert!(table.counts_are_zero());
    });
}

#[test]
fn table_1_inserters_agree_while_a_slot_on_their_way_comes_free() {
    model("insert, insert, remove", 2, 1000, || {
        let table = Arc::new(ModelTable::new(3));
        let (page, other) = neighbours(&table);
        table.insert(other, 33);
        let remover = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(other, 33))
        };
        let theirs = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.insert(page, 11))
        };
        let ours = table.insert(page, 22);
        remover.join().unwrap();
        assert_eq!(theirs.join().unwrap(), ours);
        table.remove(page, ours);
        assert_eq!(table.get(page), None, "only one entry");
        assert!(table.counts_are_zero());
    });
}

#[test]
fn table_2_two_removers_take_one_entry_out_and_its_counts_back_once() {
    model("remove, remove, insert", 3, 100, || {
        let table = Arc::new(ModelTable::new(3));
        let (page, other) = neighbours(&table);
        table.insert(other, 33);
        table.insert(page, 11); // passes the bucket of `other`
        let helper = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(page, 11))
        };
        table.remove(page, 11);
        let ours = table.insert(page, 22);
        helper.join().unwrap();
        assert_eq!((ours, table.get(page)), (22, Some(22)));
        table.remove(page, 22);
        table.remove(other, 33);
        assert!(table.counts_are_zero());
    });
}
