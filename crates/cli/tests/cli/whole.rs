//! What is said of a whole store.

use crate::support::{Run, Scratch};

#[test]
fn tables_stats_and_check_tell_about_the_store() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "b", "k", "v"]).well();
    run(&["put", "db", "a", "k", "v"]).well();
    run(&["put", "db", "a", "l", "v"]).well();
    assert_eq!(run(&["tables", "db"]).well(), "a\nb\n");
    assert_eq!(run(&["tables", "db", "--count"]).well(), "a\t2\nb\t1\n");
    let checked = run(&["check", "db"]).well();
    assert!(checked.contains("a: 2 rows") && checked.ends_with("clean\n"), "{checked}");
    let report: serde_json::Value = serde_json::from_str(&run(&["check", "db", "--json"]).well()).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    let stats: serde_json::Value = serde_json::from_str(&run(&["stats", "db", "--json"]).well()).unwrap();
    assert!(stats.as_object().is_some_and(|stats| !stats.is_empty()));
    assert!(run(&["stats", "db"]).well().lines().count() >= stats.as_object().unwrap().len());
}
