//! Models of the page table: a page has one frame, for any threads that insert, remove and help (TABLE-1 to
//! TABLE-3).
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a failed step ends the model")]

mod loom_common;

use azekura_base::sync::{Arc, thread};
use azekura_buffer::model::ModelTable;
use loom_common::model;

/// Returns two pages of the same bucket, so that the one inserted second passes the bucket.
fn neighbors(table: &ModelTable) -> (u64, u64) {
    let other = (2..).find(|&page| table.home(page) == table.home(1)).expect("some page");
    (1, other)
}

#[test]
fn table_1_two_inserters_of_one_page_agree() {
    model("insert, insert", 4, 100, || {
        let table = Arc::new(ModelTable::new(2));
        let theirs = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.insert(1, 0))
        };
        let ours = table.insert(1, 1);
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
        let (page, other) = neighbors(&table);
        table.insert(other, 2);
        let remover = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(other, 2))
        };
        let theirs = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.insert(page, 0))
        };
        let ours = table.insert(page, 1);
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
        let (page, other) = neighbors(&table);
        table.insert(other, 2);
        table.insert(page, 0); // Passes the bucket of `other`.
        let helper = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(page, 0))
        };
        table.remove(page, 0);
        let ours = table.insert(page, 1);
        helper.join().unwrap();
        assert_eq!((ours, table.get(page)), (1, Some(1)));
        table.remove(page, 1);
        table.remove(other, 2);
        assert!(table.counts_are_zero());
    });
}

/// All pages have the same tag here, so a word determines only its frame. Frame 0 changes from page 1 to a
/// page of the same bucket; then two threads insert page 1.
#[test]
fn table_3_a_frame_that_changes_pages_under_an_insertion_is_neither_taken_for_ours_nor_lost() {
    model("insert, give the frame to another page", 2, 500, || {
        let table = Arc::new(ModelTable::new(3));
        let (page, other) = neighbors(&table);
        table.insert(page, 0);
        let mover = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                table.remove(page, 0);
                assert_eq!(table.insert(other, 0), 0);
                table.insert(page, 2)
            })
        };
        let found = table.insert(page, 1);
        let at_last = mover.join().unwrap();
        assert!(found == at_last || found == 0, "{found}, then {at_last}");
        assert_eq!((table.get(page), table.get(other)), (Some(at_last), Some(0)));
        table.remove(page, at_last);
        table.remove(other, 0);
        assert!(table.get(page).is_none() && table.counts_are_zero());
    });
}
