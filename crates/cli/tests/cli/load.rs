//! `load` and `dump`: rows loaded and dumped again.

use crate::support::{Run, Scratch, escaped, tsv};

#[test]
fn a_table_of_nasty_keys_and_values_is_the_same_after_dump_and_load() {
    let scratch = Scratch::new();
    let nasty: [&[u8]; 11] = [
        b"\t",
        b"\n",
        b"\r\n",
        b"\\",
        b"\\t",
        b"a\\x41",
        b"\0\0",
        b"\xff\xfe\x80",
        "校倉\u{85}".as_bytes(),
        b"\x1b[31m",
        b" end ",
    ];
    let rows: Vec<(Vec<u8>, Vec<u8>)> = nasty
        .iter()
        .flat_map(|key| nasty.iter().map(move |value| ([*key, *value].concat(), [*value, *key].concat())))
        .chain([(b"empty".to_vec(), Vec::new()), (b"big".to_vec(), b"\xffx\t".repeat(50_000))])
        .collect();
    Run::with_stdin(&scratch, &["load", "db", "t"], &tsv(&rows)).well();
    let dump = Run::in_dir(&scratch, &["dump", "db", "t"]);
    assert!(!dump.stdout.chars().any(|c| c.is_control() && c != '\t' && c != '\n'));
    Run::with_stdin(&scratch, &["load", "copy", "t", "-"], &dump.raw_stdout).well();
    assert_eq!(Run::in_dir(&scratch, &["dump", "copy", "t"]).stdout, dump.stdout);
    let mut sorted: Vec<_> = rows.clone();
    sorted.sort();
    sorted.dedup_by(|a, b| a.0 == b.0);
    assert_eq!(dump.raw_stdout, tsv(&sorted), "rows in byte order of the keys");
    for (key, value) in &sorted {
        let key = String::from_utf8(escaped(key)).unwrap();
        if key.len() < 20 && key.starts_with("\\x") {
            assert_eq!(&Run::in_dir(&scratch, &["get", "copy", "t", "-n", "-e", &key]).raw_stdout, value);
        }
    }
}

#[test]
fn raw_takes_and_gives_bytes_as_they_are() {
    let scratch = Scratch::new();
    let text = b"C:\\dir\tvalue\\n\twith \xff\n";
    Run::with_stdin(&scratch, &["load", "db", "t", "--raw"], text).well();
    assert_eq!(Run::in_dir(&scratch, &["dump", "db", "t", "--raw"]).raw_stdout, text);
    assert_eq!(Run::in_dir(&scratch, &["scan", "db", "t"]).well(), "C:\\\\dir\tvalue\\\\n\\twith \\xff\n");
}

#[test]
fn csv_and_json_lines_are_loaded_by_their_key_field() {
    let scratch = Scratch::new();
    let csv = scratch.file("people.csv", "id,name\n7,\"Doe, Jo\"\n8,Ann\n");
    let jsonl = scratch.file("people.ndjson", "{\"id\": 1.50, \"n\": [1]}\n\n{\"n\":0,\"id\":\"x\"}\n");
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    assert!(run(&["load", "db", "csv", &csv, "--key", "name"]).well().starts_with("loaded 2 rows "));
    assert_eq!(run(&["get", "db", "csv", "Doe, Jo"]).well(), "{\"id\":\"7\",\"name\":\"Doe, Jo\"}\n");
    run(&["load", "db", "jsonl", &jsonl, "--key", "id"]).well();
    assert_eq!(
        run(&["scan", "db", "jsonl"]).well(),
        "1.50\t{\"id\": 1.50, \"n\": [1]}\nx\t{\"n\":0,\"id\":\"x\"}\n"
    );
    assert!(
        run(&["load", "db", "t", &csv, "--key", "age"])
            .refused()
            .contains("no field \"age\"; the header has id, name")
    );
}

#[test]
fn a_malformed_row_stops_the_load_with_file_and_line_and_what_was_before_stays() {
    let scratch = Scratch::new();
    let mut text = (0..25_000).map(|n| format!("{n:05}\tv\n")).collect::<String>();
    text.push_str("no tab here\n99999\tv\n");
    let file = scratch.file("rows.tsv", &text);
    let said = Run::in_dir(&scratch, &["load", "db", "t", &file]).refused();
    assert!(
        said.contains("rows.tsv, line 25001: no tab") && said.contains("rows loaded before that: 25,000"),
        "{said}"
    );
    assert_eq!(Run::in_dir(&scratch, &["tables", "db", "--count"]).well(), "t\tbytes\tbytes\t25000\n");
    // After the file is corrected, a second run completes the load: rows are upserts.
    let file = scratch.file("rows.tsv", &text.replace("no tab here", "no tab\there"));
    Run::in_dir(&scratch, &["load", "db", "t", &file]).well();
    assert_eq!(Run::in_dir(&scratch, &["tables", "db", "--count"]).well(), "t\tbytes\tbytes\t25002\n");
}

#[test]
fn a_row_that_the_store_refuses_is_named_by_its_line_and_those_before_it_stay() {
    let scratch = Scratch::new();
    let text = format!("a\t1\nb\t2\n{}\t3\nc\t4\n", "k".repeat(100_000));
    let file = scratch.file("rows.tsv", &text);
    let said = Run::in_dir(&scratch, &["load", "db", "t", &file]).refused();
    assert!(said.contains("rows.tsv, line 3: ") && said.contains("rows loaded before that: 2"), "{said}");
    assert_eq!(Run::in_dir(&scratch, &["dump", "db", "t"]).well(), "a\t1\nb\t2\n");
}

#[test]
fn a_file_that_cannot_be_read_is_refused_before_a_store_is_made() {
    let scratch = Scratch::new();
    assert!(
        Run::in_dir(&scratch, &["load", "db", "t", "absent.tsv"])
            .refused()
            .contains("cannot open absent.tsv")
    );
    assert!(!scratch.path("db").exists());
}

/// Returns `count` rows of ascending keys from a number on. More rows than a transaction of `load` holds are
/// bulk loaded.
fn ascending(from: u32, count: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    (from..from + count).map(|n| (format!("k{n:07}").into_bytes(), format!("v{n}").into_bytes())).collect()
}

/// Returns the expected output of `dump` for these rows; the last row with a key counts.
fn dumped(rows: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let rows: std::collections::BTreeMap<_, _> = rows.iter().cloned().collect();
    tsv(&rows.into_iter().collect::<Vec<_>>())
}

#[test]
fn a_bulk_load_with_unordered_rows_continues_with_a_reported_sort() {
    let scratch = Scratch::new();
    let mut rows = ascending(1_000, 12_000);
    rows.push((b"k0000007".to_vec(), b"late".to_vec()));
    rows.push((b"k0001500".to_vec(), b"again".to_vec()));
    rows.extend(ascending(20_000, 300));
    let run = Run::with_stdin(&scratch, &["load", "db", "t"], &tsv(&rows));
    assert!(run.code == 0 && run.stdout.starts_with("loaded 12,302 rows "), "{run:?}");
    assert!(run.stderr.contains("line 12001 is out of key order"), "{}", run.stderr);
    assert!(Run::in_dir(&scratch, &["dump", "db", "t"]).raw_stdout == dumped(&rows));
    Run::in_dir(&scratch, &["check", "db"]).well();
}

/// A load writes a note to stderr when it begins to sort.
#[test]
fn commands_finish_with_their_exit_code_if_stderr_cannot_be_written() {
    let scratch = Scratch::new();
    let mut rows = ascending(1_000, 12_000);
    rows.push((b"k0000007".to_vec(), b"late".to_vec()));
    std::fs::write(scratch.path("rows.tsv"), tsv(&rows)).unwrap();
    for (arguments, code) in
        [(&["get", "db", "t", "k"][..], 1), (&["load", "db", "t", "rows.tsv"], 0), (&["put"], 2)]
    {
        let status = std::process::Command::new(env!("CARGO_BIN_EXE_azekura"))
            .current_dir(scratch.path(""))
            .args(arguments)
            .stdout(std::process::Stdio::null())
            .stderr(std::fs::File::options().write(true).open("/dev/full").unwrap())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
    assert!(Run::in_dir(&scratch, &["dump", "db", "t"]).raw_stdout == dumped(&rows));
}

#[test]
fn a_table_with_rows_is_loaded_by_transactions_as_one_without() {
    let scratch = Scratch::new();
    let mut rows = vec![(b"k0000500".to_vec(), b"was here".to_vec()), (b"z".to_vec(), b"stays".to_vec())];
    Run::with_stdin(&scratch, &["load", "db", "t"], &tsv(&rows)).well();
    let more = ascending(0, 11_000);
    Run::with_stdin(&scratch, &["load", "db", "t"], &tsv(&more)).well();
    rows.extend(more);
    assert!(Run::in_dir(&scratch, &["dump", "db", "t"]).raw_stdout == dumped(&rows));
}

/// Returns rows in random order, with some keys twice.
fn scattered(count: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let row = |n: u64| {
        let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 46;
        (format!("k{key:06}").into_bytes(), format!("v{n}").into_bytes())
    };
    (0..count).map(row).collect()
}

#[test]
fn rows_in_any_order_are_sorted_with_little_memory_and_loaded_once() {
    let scratch = Scratch::new();
    let rows = scattered(60_000);
    let run = Run::with_stdin(&scratch, &["load", "db", "t", "--sort-memory", "1M"], &tsv(&rows));
    assert!(run.code == 0 && run.stdout.starts_with("loaded 60,000 rows "), "{run:?}");
    assert!(Run::in_dir(&scratch, &["dump", "db", "t"]).raw_stdout == dumped(&rows));
    // A second load, into a table with rows: this is how an interrupted load is resumed.
    let mut again: Vec<_> = scattered(30_000).into_iter().map(|(key, _)| (key, b"new".to_vec())).collect();
    Run::with_stdin(&scratch, &["load", "db", "t", "--sort-memory", "1M"], &tsv(&again)).well();
    let mut both = rows;
    both.append(&mut again);
    assert!(Run::in_dir(&scratch, &["dump", "db", "t"]).raw_stdout == dumped(&both));
    assert_eq!(std::fs::read_dir(scratch.path("db/sort")).map_or(0, Iterator::count), 0, "runs are removed");
    Run::in_dir(&scratch, &["check", "db"]).well();
}

#[test]
fn a_malformed_row_ends_a_sorted_load_and_the_rows_before_it_are_loaded() {
    let scratch = Scratch::new();
    let rows = scattered(11_000);
    let mut input = tsv(&rows);
    input.extend_from_slice(b"bad\\x\n");
    input.extend_from_slice(b"after\tit\n");
    let run = Run::with_stdin(&scratch, &["load", "db", "t"], &input);
    assert!(run.code == 1 && run.stderr.contains("line 11001"), "{run:?}");
    assert!(Run::in_dir(&scratch, &["dump", "db", "t"]).raw_stdout == dumped(&rows));
}

#[test]
fn rows_with_the_same_key_are_counted_or_refused() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str], rows: &str| Run::with_stdin(&scratch, arguments, rows.as_bytes());
    assert!(!run(&["load", "db", "t"], "a\t1\nb\t2\n").well().contains("replaced"));
    let said = run(&["load", "db", "t"], "b\t3\nc\t4\nc\t5\n").well();
    assert!(said.starts_with("loaded 3 rows ") && said.contains("; 2 rows replaced one"), "{said}");
    let refused = run(&["load", "db", "t", "--no-replace"], "d\t6\nc\t7\ne\t8\n").refused();
    assert!(refused.contains("line 2: the table has a row with the key c already"), "{refused}");
    assert_eq!(Run::in_dir(&scratch, &["dump", "db", "t"]).well(), "a\t1\nb\t3\nc\t5\nd\t6\n");
    // More rows than one transaction holds: first the rows in order, which are bulk loaded, then a key that
    // occurs twice.
    let many: String = (0..12_000).map(|n| format!("{n:05}\tv\n")).chain(["11999\tw\n".into()]).collect();
    let loaded = run(&["load", "db", "many"], &many);
    assert!(
        loaded.stdout.contains("12,001 rows ") && loaded.stdout.contains("; 1 row replaced"),
        "{loaded:?}"
    );
    // Rows in another order, the last one with a key that an earlier row has.
    let mut rows = scattered(11_000);
    rows.push((rows[5].0.clone(), b"again".to_vec()));
    let text = String::from_utf8(tsv(&rows)).unwrap();
    for replaced in ["; 1 row replaced", "; 11,001 rows replaced"] {
        let said = run(&["load", "db", "scattered"], &text).well();
        assert!(said.starts_with("loaded 11,001 rows ") && said.contains(replaced), "{said}");
    }
    let refused = run(&["load", "db", "new", "--no-replace"], &text).refused();
    assert!(refused.contains("line 11001: the table has a row with the key k"), "{refused}");
    assert!(Run::in_dir(&scratch, &["dump", "db", "new"]).raw_stdout == dumped(&rows[..11_000]));
    // Rows in order that are bulk loaded, then a row with a key that is already in the table.
    let refused = run(&["load", "db", "most", "--no-replace"], &many).refused();
    assert!(refused.contains("line 12001: ") && refused.contains("before that: 12,000"), "{refused}");
}

#[test]
fn rows_that_a_program_could_not_decode_are_refused() {
    let scratch = Scratch::new();
    let definition = azekura::TableDefinition::<u64, str>::new("t");
    let open = || azekura::Database::open(scratch.path("db")).unwrap();
    let db = open();
    db.transact(|tx| tx.table(&definition)?.insert(&5, "five")).unwrap();
    db.close().unwrap();
    let refused = Run::in_dir(&scratch, &["put", "db", "t", "6", "six"]).refused();
    assert!(refused.contains("keys of type u64, 8 bytes in length; this key has 1"), "{refused}");
    let key = r"\x00\x00\x00\x00\x00\x00\x00\x06";
    let refused = Run::in_dir(&scratch, &["put", "db", "t", "-e", key, r"\xff"]).refused();
    assert!(refused.contains("values of type str, which is UTF-8; this value is not"), "{refused}");
    Run::in_dir(&scratch, &["put", "db", "t", "-e", key, "six"]).well();
    let rows = Run::in_dir(&scratch, &["dump", "db", "t"]).well();
    let refused =
        Run::with_stdin(&scratch, &["load", "db", "t"], format!("{rows}7\tseven\n").as_bytes()).refused();
    assert!(refused.contains("stdin, line 3: the table has keys of type u64"), "{refused}");
    let db = open();
    let rows = db.read(|s| s.table(&definition)?.iter().collect::<Result<Vec<_>, _>>()).unwrap();
    assert_eq!(rows, [(5, "five".to_owned()), (6, "six".to_owned())]);
}

#[test]
fn a_table_of_a_program_is_the_same_after_dump_and_load_with_its_types() {
    let scratch = Scratch::new();
    let definition = azekura::TableDefinition::<u64, str>::new("t");
    let open = |name| azekura::Database::open(scratch.path(name)).unwrap();
    let db = open("db");
    db.transact(|tx| (0..300).try_for_each(|n| tx.table(&definition)?.insert(&n, "tab\tnewline\n"))).unwrap();
    db.close().unwrap();
    let tables = Run::in_dir(&scratch, &["tables", "db"]).well();
    assert_eq!(tables, "t\tu64\tstr\n");
    let dump = Run::in_dir(&scratch, &["dump", "db", "t"]).well();
    let load = ["load", "copy", "t", "--types", "u64", "str"];
    Run::with_stdin(&scratch, &load, dump.as_bytes()).well();
    let copy = open("copy");
    let rows = |db: &azekura::Database| {
        db.read(|s| s.table(&definition)?.iter().collect::<Result<Vec<_>, _>>()).unwrap()
    };
    let db = open("db");
    assert_eq!(rows(&copy), rows(&db));
    copy.close().unwrap();
    // The same table without rows.
    db.transact(|tx| (0..300).try_for_each(|n| tx.table(&definition)?.remove(&n).map(drop))).unwrap();
    db.close().unwrap();
    assert_eq!(Run::in_dir(&scratch, &["dump", "db", "t"]).well(), "");
    Run::with_stdin(&scratch, &["load", "copy", "u", "--types", "u64", "str"], b"").well();
    Run::with_stdin(&scratch, &["load", "copy", "u"], b"").well();
    let load = ["load", "copy", "u", "--types", "u64", "u8"];
    assert!(Run::with_stdin(&scratch, &load, b"").refused().contains("u8"));
    assert_eq!(
        Run::in_dir(&scratch, &["tables", "copy", "--count"]).well(),
        "t\tu64\tstr\t300\nu\tu64\tstr\t0\n"
    );
    let row = format!("{}\\x06\t\\x01\n", "\\x00".repeat(7));
    let load = ["load", "copy", "t", "--types", "u64", "u8"];
    let refused = Run::with_stdin(&scratch, &load, row.as_bytes()).refused();
    assert!(refused.contains("u8"), "{refused}");
}

#[test]
fn a_compressed_file_is_refused_unless_it_is_raw() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("w.tsv.gz"), b"\x1f\x8b\x08\x08\t\n").unwrap();
    let refused = Run::in_dir(&scratch, &["load", "db", "t", "w.tsv.gz"]).refused();
    assert!(refused.contains("w.tsv.gz is compressed") && refused.contains("zcat"), "{refused}");
    assert!(!scratch.path("db").exists());
    Run::in_dir(&scratch, &["load", "db", "t", "w.tsv.gz", "--raw"]).well();
}

#[test]
fn names_of_types_that_no_program_can_open_are_refused() {
    let scratch = Scratch::new();
    for (name, part) in [("String", "`str`"), ("Vec<u8>", "`bytes`"), ("", "--types"), ("a\nb", "name")] {
        let refused = Run::with_stdin(&scratch, &["load", "db", "t", "--types", name, "u64"], b"");
        assert!(refused.code == 2 && refused.stderr.contains(part), "{name:?}: {refused:?}");
    }
    // A program may have stored such a name.
    let definition = azekura::TableDefinition::<[u8], [u8]>::encoded("t", "a\tb", "c\nd");
    let db = azekura::Database::open(scratch.path("db")).unwrap();
    db.transact(|tx| tx.table(&definition)?.insert(&b"k".to_vec(), &b"v".to_vec())).unwrap();
    db.close().unwrap();
    assert_eq!(Run::in_dir(&scratch, &["tables", "db"]).well(), "t\ta\\tb\tc\\nd\n");
}

#[test]
fn a_stray_quote_of_csv_is_refused_and_the_rows_before_it_stay() {
    let scratch = Scratch::new();
    let csv = scratch.file("p.csv", "\u{feff}id;name\r\n1;\"a;b\"\r\n2;\"open\r\n3;c\r\n");
    let refused = Run::in_dir(&scratch, &["load", "db", "t", &csv, "--delimiter", ";"]).refused();
    assert!(refused.contains("line 3: a quote is opened and never closed"), "{refused}");
    let said = Run::in_dir(&scratch, &["dump", "db", "t"]).well();
    assert_eq!(said, "1\t{\"id\":\"1\",\"name\":\"a;b\"}\n");
    let usage = Run::in_dir(&scratch, &["load", "db", "t", &csv, "--delimiter", "ab"]);
    assert_eq!(usage.code, 2, "{usage:?}");
}
