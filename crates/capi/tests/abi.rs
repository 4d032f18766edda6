//! Test of the binary interface: programs that were compiled with the header of this version run with later
//! libraries of the same soname.
//!
//! `abi.txt` has the declarations of the header and the layouts of its structs. Each difference fails the
//! test. `AZEKURA_UPDATE_ABI=1 cargo test -p azekura-capi --test abi` writes the file again. It accepts new
//! declarations. If a declaration was changed or removed, it also needs a new `AZK_ABI_VERSION` and a new
//! soname, which is the version of the package (`scripts/install-c.sh`).

use std::collections::BTreeSet;
use std::mem::{offset_of, size_of};
use std::path::Path;

use azekura_c::{AZK_ABI_VERSION, azk_slice, azk_status};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the part of the version that is in the soname: below 1.0 each minor version is an interface.
fn soname() -> String {
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    format!("libazekura.so.{}", if major == "0" { format!("0.{minor}") } else { major.into() })
}

fn without_comments(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text += before;
        rest = comment.split_once("*/").expect("the comment ends").1;
    }
    text += rest;
    text.lines().map(|line| line.split("//").next().unwrap_or(line).to_owned() + "\n").collect()
}

/// Returns the declarations of a header, one a line, without their order. The values of an enumeration are
/// declarations of their own, so that a new value is no change of the others.
fn declarations(header: &str) -> BTreeSet<String> {
    let text = without_comments(header);
    let is_constant = |line: &&str| line.starts_with("#define AZK_") && !line.contains("AZK_ABI_VERSION");
    let mut found: BTreeSet<String> = text.lines().filter(is_constant).map(str::to_owned).collect();
    let code: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let code = code.join(" ").replacen("extern \"C\" {", "", 1);
    let (mut depth, mut statement) = (0_i32, String::new());
    for char in code.chars() {
        depth += i32::from(char == '{') - i32::from(char == '}');
        if depth < 0 {
            break; // the end of `extern "C"`
        }
        if char != ';' || depth > 0 {
            statement.push(char);
            continue;
        }
        let words = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        statement.clear();
        match words.split_once('{') {
            Some((head, body)) if head.starts_with("typedef enum") => {
                let (values, name) = body.split_once('}').expect("the body ends");
                let values = values.split(',').map(str::trim).filter(|value| !value.is_empty());
                found.extend(values.map(|value| format!("enum{name}: {value}")));
            }
            _ => {
                found.insert(words);
            }
        }
    }
    found
}

fn layouts() -> [String; 2] {
    let (data, len) = (offset_of!(azk_slice, data), offset_of!(azk_slice, len));
    [
        format!("layout azk_slice: {} bytes, data at {data}, len at {len}", size_of::<azk_slice>()),
        format!("layout azk_status: {} bytes", size_of::<azk_status>()),
    ]
}

#[test]
#[cfg(target_pointer_width = "64")]
fn the_binary_interface_is_the_recorded_one() {
    let header = std::fs::read_to_string(Path::new(CRATE).join("include/azekura.h")).expect("reads");
    let mut now = declarations(&header);
    assert!(now.len() > 40 && now.contains("uint32_t azk_abi_version(void)"), "{now:#?}");
    now.extend(layouts());
    let version = format!("AZK_ABI_VERSION {AZK_ABI_VERSION}, soname {}", soname());
    let path = Path::new(CRATE).join("abi.txt");
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines = recorded.lines().map(str::to_owned);
    let recorded_version = lines.next().unwrap_or_default();
    let recorded: BTreeSet<String> = lines.collect();
    let removed: Vec<_> = recorded.difference(&now).collect();
    let added: Vec<_> = now.difference(&recorded).collect();
    if recorded_version == version && removed.is_empty() && added.is_empty() {
        return;
    }
    let shared_part = |version: &str| version.split(", ").map(str::to_owned).collect::<BTreeSet<_>>();
    let is_new_version = shared_part(&version).is_disjoint(&shared_part(&recorded_version));
    assert!(
        removed.is_empty() || is_new_version,
        "programs that were compiled with {recorded_version} do not run with this library; raise \
         AZK_ABI_VERSION and the version of the package, or restore {removed:#?}"
    );
    assert!(
        std::env::var_os("AZEKURA_UPDATE_ABI").is_some(),
        "the interface differs from {}: {recorded_version} is {version}, new: {added:#?}, gone: \
         {removed:#?}; \
         run this test with AZEKURA_UPDATE_ABI=1",
        path.display()
    );
    let lines: Vec<String> = std::iter::once(version).chain(now).collect();
    std::fs::write(&path, lines.join("\n") + "\n").expect("writes");
}

#[test]
fn a_changed_signature_struct_or_value_is_another_declaration() {
    let header = "/* a */ typedef enum e { A = 0, /* b */ B = 1, } e; // c\n#define AZK_X 1\n#ifdef q\n\
                  extern \"C\" {\n#endif\ntypedef struct s { int a; } s;\n\
                  void f(int a,\n  int b);\n#ifdef q\n}\n#endif\n";
    let before = declarations(header);
    let expected = [
        "#define AZK_X 1",
        "enum e: A = 0",
        "enum e: B = 1",
        "typedef struct s { int a; } s",
        "void f(int a, int b)",
    ];
    assert!(before.iter().eq(expected.iter()), "{before:?}");
    for (from, to) in
        [("int b", "long b"), ("B = 1", "B = 2"), ("int a; }", "int a; int c; }"), ("X 1", "X 2")]
    {
        let after = declarations(&header.replace(from, to));
        assert_eq!(before.difference(&after).count(), 1, "{from}");
    }
    let after = declarations(&header.replace("B = 1,", "B = 1, C = 2,"));
    assert_eq!((before.difference(&after).count(), after.len()), (0, before.len() + 1));
}
