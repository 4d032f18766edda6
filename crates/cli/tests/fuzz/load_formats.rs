//! Entry for `load` with random files. The result is rows, or a fault with its line. The output of `dump` for
//! the rows reads back the same.

use azekura_cli::format::{ReadError, ReadRows, Row, csv, escape, jsonl, tsv};

/// Reads a file. The first byte selects the format and its options, the rest is the file.
pub(crate) fn load_formats(data: &[u8]) {
    let (&mode, text) = data.split_first().unwrap_or((&0, &[]));
    let rows = match mode % 5 {
        0 => rows_of(tsv::Reader::new(text, false)),
        1 => rows_of(tsv::Reader::new(text, true)),
        2 => csv::Reader::new(text, None, Some(b',')).map_or_else(|_| Vec::new(), rows_of),
        3 => csv::Reader::new(text, Some("2"), Some(b';')).map_or_else(|_| Vec::new(), rows_of),
        _ => rows_of(jsonl::Reader::new(text, "id")),
    };
    let mut dumped = Vec::new();
    let mut out = tsv::Writer::new(&mut dumped, false, false);
    rows.iter().for_each(|row| out.write(&row.key, &row.value).expect("memory"));
    assert_eq!(rows_of(tsv::Reader::new(&dumped[..], false)), rows, "a dump reads back as something else");
    let mut plain = Vec::new();
    let _ = escape::unescape(text, &mut plain);
    assert!(plain.len() <= text.len());
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 6] = [
        b"key\tvalue\nwith\\nescapes\\x00\\xff\t\\\\ and \\t tabs\n\t\nlast\tno newline",
        b"id,name\n1,\"Doe, \"\"J\"\"\"\n2,\"two\nlines\"\r\n",
        b"{\"id\":1,\"x\":[1,2,{\"id\":3}]}\n\
          {\"id\":\"\\u6821\\ud83d\\ude00\",\"y\":null}\r\n{\"i\\u0064\":1e5}\n",
        b"\xef\xbb\xbfid,b\n\xff\xfe,1\n",
        b"C:\\new\tvalue\n",
        b"",
    ];
    (0..5).flat_map(|mode| texts.iter().map(move |text| [&[mode], *text].concat())).collect()
}

fn rows_of(mut reader: impl ReadRows) -> Vec<Row> {
    let (mut row, mut rows, mut line) = (Row::default(), Vec::new(), 0);
    loop {
        match reader.read_row(&mut row) {
            Ok(true) => rows.push(row.clone()),
            Ok(false) => return rows,
            Err(ReadError::Malformed { line: at, fault }) => {
                assert!(at >= line && !fault.to_string().is_empty(), "line {at} after {line}");
                return rows;
            }
            Err(other) => panic!("reading memory failed: {other}"),
        }
        assert!(reader.line() >= line);
        line = reader.line();
    }
}
