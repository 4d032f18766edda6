#!/usr/bin/env python3
"""Runs programs of a Linux distribution in far memory, once each, at half of the memory that they need, and
prints a table: share of the memory that far memory managed, slowdown, and whether the output is that of the
plain run. Nothing in the layer was tuned for these programs.

    cargo build --release -p azekura-cli
    scripts/far-collection.py                     # all that are installed
    scripts/far-collection.py java sort           # some
    scripts/far-collection.py --block 1M          # large blocks only; otherwise blocks of 64 bytes and more

`$FAR` stands before a program in its script, `$D` is the directory with its data. A program's need is the
largest resident set of its plain run. The exit code is 1 if an output differed; a program that does not end
in a minute is listed and is no error. AZEKURA_FAR_PRELOAD names another library, as in `far-programs.py`.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOADER = importlib.machinery.SourceFileLoader("far_programs", str(HERE / "far-programs.py"))
tools = importlib.util.module_from_spec(importlib.util.spec_from_loader("far_programs", LOADER))
LOADER.exec_module(tools)
# Time limit of a program, in seconds.
LONGEST = 60

JAVA = """import java.util.*;
public class Model { public static void main(String[] a) {
  long sum = 0; ArrayList<int[]> rows = new ArrayList<>();
  for (int i = 0; i < 600; i++) { int[] row = new int[25000];
    for (int j = 0; j < row.length; j++) row[j] = i * 31 + j;
    rows.add(row); if (i % 3 == 0) rows.set(rows.size() / 2, new int[25000]); }
  HashMap<Integer, String> map = new HashMap<>();
  for (int i = 0; i < 200000; i++) map.put(i * 7919 % 1000003, "v" + i);
  for (int[] row : rows) for (int v : row) sum += v;
  for (String v : map.values()) sum += v.hashCode();
  System.out.println(sum + " " + map.size()); } }
"""

NODE = """const rows = []; let s = 0;
for (let i = 0; i < 300; i++) { const x = new Array(20000);
  for (let j = 0; j < x.length; j++) x[j] = {a: i, b: j & 7};
  rows.push(x); if (i % 3 == 0) rows[rows.length >> 1] = [{a: 1, b: 2}];
if (rows.length > 60) rows.shift(); }
const m = new Map(); for (let i = 0; i < 200000; i++) m.set(i * 7919 % 1000003, 'v' + i);
for (const x of rows) for (const o of x) s += o.a * o.b; for (const v of m.values()) s += v.length;
const f = new Float64Array(2e6); for (let i = 0; i < f.length; i++) f[i] = i * 0.5;
console.log(s, f.reduce((a, b) => a + b), m.size);
"""

PYTHON = """import json, zlib, hashlib
rows = [{'n': i, 's': str(i * 7919), 'l': list(range(i % 9))} for i in range(60000)]
text = json.dumps(rows); back = json.loads(text); back.sort(key=lambda r: r['s'])
print(hashlib.sha256(json.dumps(back).encode()).hexdigest(), len(zlib.compress(text.encode(), 6)))
"""

PERL = """my %h; for my $i (0..150000) { $h{"key" . ($i * 7919 % 1000003)} .= "v$i"; }
my @k = sort { $h{$a} cmp $h{$b} } keys %h; print join(",", @k[0..20]), " ", scalar(@k), "\\n";
my $s = 0; $s += length for values %h; print "$s\\n";"""

RUBY = """h = {}; 150000.times { |i| h["key#{i * 7919 % 1000003}"] = [i, i.to_s * 3] }
a = h.values.sort_by { |v| v[1] }; puts a[0..9].inspect, a.sum { |v| v[0] }"""

PHP = """<?php $h = []; for ($i = 0; $i < 200000;
$i++) $h[$i * 7919 % 1000003] = ['n' => $i, 's' => str_repeat("$i", 3)];
ksort($h); $s = 0; foreach ($h as $k => $v) $s += $k * $v['n'] % 97;
echo $s, ' ', md5(serialize($h)), "\\n";"""

LUA = """local t = {} for i = 1, 300000 do t[i] = {k = i * 7919 % 1000003, s = "v" .. i} end
table.sort(t, function(a, b) return a.k < b.k end) local s = 0 for i = 1, #t do s = (s * 31 + #t[i].s +
t[i].k) % 1000003 end
print(s, t[1].s, t[#t].s)"""

TCL = """set s 0; for {set i 0} {$i < 120000} {incr i} { dict set d [expr {$i * 7919 % 1000003}] "v$i" }
foreach k [lsort -integer [dict keys $d]] { set s [expr {($s * 31 + $k + [string length [dict get $d
$k]]) % 1000003}] }; puts $s"""

LISP = """(let ((h (make-hash-table)) (s 0)) (dotimes (i 400000) (setf (gethash (mod (* i 7919)
1000003) h) (list i (* i i))))
(maphash (lambda (k v) (setf s (mod (+ (* s 31) k (second v)) 1000003))) h) (format t "~a ~a~%" s
(hash-table-count h)))"""

SCHEME = """(define h (make-hash-table)) (do ((i 0 (+ i 1))) ((= i 150000)) (hash-set! h (modulo (* i
7919) 1000003) (list i (* i i))))
(display (hash-fold (lambda (k v s) (modulo (+ s (* k (cadr v))) 1000003)) 0 h)) (newline)"""

SQL = """create table t(a integer primary key, b text, c blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
  insert into t select i, hex(i * 7919), zeroblob(i % 200) from n;
create index u on t(b); update t set c = b || c where a % 3 = 0; delete from t where a % 7 = 0;
select count(*), sum(length(b)), sum(length(c)), min(b), max(b) from t;
select x.a, y.b from t x join t y on y.b = hex(x.a * 7919) order by y.b limit 50;
pragma integrity_check;"""

RUST = """use std::collections::*; pub fn f(n: u64) -> Vec<(u64, String)> { let mut m = BTreeMap::new();
for i in 0..n { m.insert(i * 7919 % 1000003, format!("{i:?} {:?}", vec![i; 3]));
} m.into_iter().collect() }
fn main() { let mut h: HashMap<String, Vec<u64>> = HashMap::new();
for (k, v) in f(1000) { h.entry(v).or_default().push(k); } println!("{}", h.len()); }"""

CPP = """#include <map>
#include <regex>
#include <iostream>
#include <algorithm>
#include <functional>
int main() { std::map<std::string, std::vector<int>> m; std::regex r("a(b|c)+d");
for (int i = 0; i < 100; i++) m[std::to_string(i)].push_back(i);
std::function<int(int)> f = [&](int n) { return n < 2 ? n : f(n - 1) + f(n - 2); };
std::cout << m.size() << std::regex_match("abcd", r) << f(10); }"""


MODEL_C = """#include <stdio.h>
#include <stdlib.h>
int main(void) { int *a = malloc(4000), s = 0; for (int i = 0; i < 1000; i++) a[i] = i;
for (int i = 0; i < 1000; i++) s += a[i]; printf("%d\\n", s); free(a); }
"""


def collection():
    """Names, scripts, and the programs that must be installed."""
    one = lambda name, script, *needs: (name, script, needs or (name,))
    return [
        one("sort", "$FAR sort -S 60M --parallel=2 -k2,2n $D/lines | sha256sum"),
        one("sort -u", "$FAR sort -u -S 60M $D/words | sha256sum", "sort"),
        one("uniq", "sort $D/words | $FAR uniq -c | sha256sum"),
        one("join", "sort -u $D/words >$D/tmp/j; $FAR join $D/tmp/j $D/tmp/j | sha256sum"),
        one(
            "comm",
            "sort $D/words >$D/tmp/j; sort -r $D/lines | sort >$D/tmp/k; $FAR comm $D/tmp/j "
            "$D/tmp/k | sha256sum",
        ),
        one("tac", "$FAR tac $D/lines | sha256sum"),
        one("shuf", "$FAR shuf --random-source=$D/words $D/lines | sha256sum"),
        one(
            "split",
            "mkdir -p $D/tmp/s; $FAR split -n r/7 $D/lines $D/tmp/s/; cat $D/tmp/s/* | "
            "sha256sum; rm -r $D/tmp/s",
        ),
        one("factor", "seq 1000000007 2003 1100000000 | $FAR factor | sha256sum"),
        one("b2sum", "$FAR b2sum <$D/lines"),
        one(
            "grep",
            "$FAR grep -c -E '(1[0-9]*7){3}' $D/lines; $FAR grep -v -F -f <(head -2000 "
            "$D/words) $D/words | sha256sum",
        ),
        one(
            "sed",
            "$FAR sed -n -e '1!G;h;30000q' -e 's/1\\(.\\)/\\1x/gp' <(head -3000 $D/lines) | "
            "sha256sum",
        ),
        one(
            "mawk",
            "$FAR mawk '{n[$2 % 5003] = n[$2 % 5003] $1; s += $2} END {for (k in n) t += "
            "length(n[k]); print s, t}' $D/lines",
        ),
        one(
            "gawk",
            "$FAR gawk '{n[$2] = $1; s += $2} END {PROCINFO[\"sorted_in\"] = \"@ind_num_asc\"; for "
            "(k in n) print k, n[k]}' $D/lines | sha256sum",
        ),
        one("diff", "$FAR diff $D/lines <($FAR sed 's/77/78/' $D/lines) | sha256sum", "diff", "sed"),
        one(
            "patch",
            "diff $D/lines <(sed 's/777/778/' $D/lines) >$D/tmp/p; $FAR patch -s -o - $D/lines "
            "$D/tmp/p | sha256sum",
        ),
        one("bc", "echo 'scale=3000; 4*a(1)' | $FAR bc -l | sha256sum"),
        one(
            "find",
            "$FAR find /usr/share /usr/lib -name '*.[ch]*' -printf '%p %s\\n' 2>/dev/null | "
            "sort | sha256sum",
        ),
        one("gzip", "$FAR gzip -9n <$D/lines | sha256sum"),
        one("bzip2", "$FAR bzip2 -9 <$D/lines | sha256sum"),
        one("xz", "$FAR xz -6 <$D/part | sha256sum"),
        one("xz -d", "xz -1 <$D/lines >$D/tmp/x; $FAR xz -dc <$D/tmp/x | sha256sum", "xz"),
        one("zstd", "$FAR zstd -q -19 --long=24 <$D/part | sha256sum"),
        one(
            "zstd -d",
            "zstd -q -3 --long=27 <$D/lines >$D/tmp/z; $FAR zstd -q -d --long=27 <$D/tmp/z | "
            "sha256sum",
            "zstd",
        ),
        one("lz4", "$FAR lz4 -q -9 <$D/lines | sha256sum"),
        one("zip", "cd $D; $FAR zip -q -X - part | $FAR funzip | sha256sum", "zip", "funzip"),
        one(
            "tar",
            "$FAR tar --sort=name -C /usr/share -cf - --ignore-failed-read perl 2>/dev/null | "
            "sha256sum",
        ),
        one(
            "openssl",
            "$FAR openssl dgst -sha3-512 <$D/lines; echo pw | $FAR openssl enc -aes-256-ctr "
            "-pbkdf2 -nosalt -pass stdin -in $D/lines | sha256sum",
        ),
        one("iconv", "$FAR iconv -f latin1 -t utf-16 $D/lines | sha256sum"),
        one("groff", "head -3000 $D/words | $FAR groff -Tps | grep -v '^%%CreationDate' | sha256sum"),
        one(
            "jq",
            "$FAR jq -S 'map(select(.n % 3 == 0)) | group_by(.n % 10) | map(length)' "
            "$D/rows.json | sha256sum",
        ),
        one(
            "git",
            "rm -rf $D/tmp/g; mkdir $D/tmp/g; cd $D/tmp/g; git init -q .; cp $D/words $D/part "
            ".; git add -A; $FAR git -c user.name=a -c user.email=a@b -c gc.auto=0 commit -qm "
            "a --date=2000-01-01T00:00:00Z; $FAR git -c pack.threads=1 repack -qadf "
            "--window=20; $FAR git fsck --full 2>/dev/null; $FAR git log --format=%T",
        ),
        one(
            "cmake",
            "mkdir -p $D/tmp/c; echo 'cmake_minimum_required(VERSION 3.10)\nproject(a "
            "C)\nadd_executable(a a.c)' >$D/tmp/c/CMakeLists.txt; echo 'int main(void){return "
            "0;}' >$D/tmp/c/a.c; $FAR cmake -S $D/tmp/c -B $D/tmp/c/b >/dev/null && $FAR make "
            "-s -C $D/tmp/c/b >/dev/null && $D/tmp/c/b/a; echo $?; rm -r $D/tmp/c",
            "cmake", "make",
        ),
        one("gcc", "$FAR gcc -O2 -S -o - $D/large.c | sha256sum"),
        one("g++", "$FAR g++ -O1 -S -o - $D/large.cc | sha256sum"),
        one(
            "as and ld",
            "gcc -O1 -S $D/large.c -o $D/tmp/l.s; $FAR as $D/tmp/l.s -o $D/tmp/l.o; $FAR ld -r "
            "$D/tmp/l.o -o $D/tmp/m.o; sha256sum <$D/tmp/m.o",
            "as", "ld", "gcc",
        ),
        one("objdump", "$FAR objdump -d $(readlink -f $(command -v perl)) | sha256sum", "objdump", "perl"),
        one(
            "nm and strip",
            "p=$(readlink -f $(command -v bash)); $FAR nm -D $p | sha256sum; $FAR strip -o "
            "$D/tmp/st $p && sha256sum <$D/tmp/st",
            "nm", "strip",
        ),
        one(
            "gdb",
            "$FAR gdb -nx -batch -ex 'info functions main' -ex 'disassemble main' $(readlink "
            "-f $(command -v perl)) 2>/dev/null | sha256sum",
            "gdb", "perl",
        ),
        one("rustc", "$FAR rustc -C codegen-units=1 -O --emit=llvm-ir -o - $D/large.rs | sha256sum"),
        one(
            "opt and llc",
            "rustc -C codegen-units=1 --emit=llvm-ir -o $D/tmp/l.ll $D/large.rs; $FAR opt -O2 "
            "-S $D/tmp/l.ll 2>/dev/null | sha256sum",
            "opt", "rustc",
        ),
        one("python3", "$FAR python3 $D/model.py"),
        one(
            "python3 sqlite3",
            "$FAR python3 -c \"import sqlite3; c = sqlite3.connect(':memory:'); "
            "c.execute('create table t(a, b)'); c.executemany('insert into t values(?, ?)', "
            "((i * 7919 % 1000003, str(i)) for i in range(60000))); print(c.execute('select "
            "count(*), sum(a), min(b) from t').fetchall(), c.execute('select a from t order by "
            "a limit 9').fetchall())\"",
            "python3",
        ),
        one(
            "python3 lzma",
            "$FAR python3 -c \"import lzma, bz2, hashlib; d = open('$D/part', 'rb').read(); "
            "print(hashlib.sha256(lzma.compress(d)).hexdigest(), "
            "hashlib.sha256(bz2.compress(d)).hexdigest())\"",
            "python3",
        ),
        one("perl", "$FAR perl $D/model.pl"),
        one("ruby", "$FAR ruby $D/model.rb"),
        one("php", "$FAR php -d memory_limit=1G $D/model.php"),
        one("lua", "$FAR lua $D/model.lua"),
        one("tclsh", "$FAR tclsh $D/model.tcl"),
        one("sbcl", "$FAR sbcl --script $D/model.lisp"),
        one("guile", "XDG_CACHE_HOME=$D/tmp $FAR guile --no-auto-compile $D/model.scm"),
        one("node", "$FAR node $D/model.js"),
        one("java", "$FAR java -Xmx256m $D/Model.java"),
        one(
            "javac",
            "mkdir -p $D/tmp/jc; $FAR javac -d $D/tmp/jc $D/Model.java; sha256sum "
            "<$D/tmp/jc/Model.class; rm -r $D/tmp/jc",
        ),
        one("sqlite3", "$FAR sqlite3 :memory: <$D/sql | sha256sum"),
        one(
            "bash",
            "$FAR bash -c 'for ((i = 0; i < 60000; i++)); do a[i * 7919 % 1000003]=v$i; done; "
            "echo ${#a[@]} ${!a[*]}' | sha256sum",
        ),
        one(
            "dash",
            "seq 20000 | $FAR dash -c 's=0; while read n; do s=$(((s * 31 + n) % 1000003)); "
            "done; echo $s'",
        ),
        one("ed", "printf 'g/7/s/1/one/g\\n,p\\nQ\\n' | $FAR ed -s $D/part.txt 2>/dev/null | sha256sum"),
        one(
            "vim",
            "$FAR vim -u NONE -es -c '%s/7/seven/ge' -c 'sort' -c 'w! /dev/stdout' -c 'q!' "
            "$D/part.txt 2>/dev/null | sha256sum",
        ),
        one(
            "convert",
            "$FAR convert -size 1500x1000 plasma:fractal -seed 1 -blur 0x2 -resize 50% gray:- "
            "2>/dev/null | wc -c",
        ),
        one(
            "msgfmt",
            "awk '{print \"msgid \\\"\" NR \" \" $1 \"\\\"\\nmsgstr \\\"\" $2 \"\\\"\\n\"}' <(head -40000 "
            "$D/lines) >$D/tmp/po; $FAR msgfmt -o - $D/tmp/po | sha256sum",
        ),
        one("file", "$FAR file -b /usr/bin/[a-f]* | sha256sum"),
        one(
            "rsync",
            "mkdir -p $D/tmp/r; $FAR rsync -a --checksum $D/words $D/part $D/tmp/r/ && cat "
            "$D/tmp/r/* | sha256sum; rm -r $D/tmp/r",
        ),
        one("valgrind", "$FAR valgrind -q $D/model-c"),
        one("go", "$FAR go version"),
    ]


def prepare(scratch):
    """The programs' data."""
    with open(scratch / "lines", "w") as lines:
        for i in range(300_000):
            lines.write(f"{i} {i * 7919 % 1_000_003} {i * i % 97:030}\n")
    (scratch / "words").write_text("".join(f"w{i * 7919 % 100_003} {i % 13}\n" for i in range(150_000)))
    text = (scratch / "lines").read_bytes()
    (scratch / "part").write_bytes(text[: 4 << 20])
    (scratch / "part.txt").write_bytes(b"".join(text.splitlines(True)[:60_000]))
    rows = [{"n": i, "s": str(i * 7919), "l": [i, i + 1]} for i in range(60_000)]
    (scratch / "rows.json").write_text(json.dumps(rows))
    texts = {"model.py": PYTHON, "model.pl": PERL, "model.rb": RUBY, "model.php": PHP, "model.lua": LUA}
    texts |= {"model.tcl": TCL, "model.lisp": LISP, "model.scm": SCHEME, "model.js": NODE}
    texts |= {"Model.java": JAVA, "sql": SQL, "large.rs": RUST, "large.cc": CPP}
    for name, content in texts.items():
        (scratch / name).write_text(content)
    function = ("int f{0}(int *a, int n) {{ int s = {0}; "
                "for (int j = 0; j < n; j++) s = s * {1} + a[j] % {2}; return s; }}\n")
    (scratch / "large.c").write_text("".join(function.format(i, i + 3, i + 7) for i in range(1500)))
    (scratch / "model.c").write_text(MODEL_C)
    subprocess.run(["cc", "-o", scratch / "model-c", scratch / "model.c"], check=False)


def row(azekura, address, program, options, user, scratch):
    """What is seen of one program."""
    name, script, _ = program
    script = f"D={scratch}; {script}"
    code, plain, _, seconds, need = tools.run(script, "", user, scratch)
    stats = scratch / "tmp/stats"
    local = tools.whole_pages((need - tools.SMALL) // 2)
    far = [azekura, "far", "--local", local, "--max-far", "8G", "--server", address, *options]
    far += ["--stats-json", stats, "--"]
    far_code, out, err, far_seconds, _ = tools.run(script, " ".join(map(str, far)), user, scratch)
    lines = [json.loads(line) for line in stats.read_text().splitlines()] if stats.exists() else []
    stats.unlink(missing_ok=True)
    none = {"managed_bytes": 0, "peak_resident_bytes": 1}
    most = max(lines, key=lambda line: line["peak_resident_bytes"], default=none)
    if code == far_code and out == plain:
        result = "same"
    elif far_code == 124:
        result = f"not ended in {LONGEST} s"
    elif far_code and not lines and not out and "azekura" in err:
        result = "refused before main"
    else:
        result = f"OTHER (exit {far_code}, plain {code}): {err.strip()[-200:]}"
    return {"program": name, "needs_bytes": need, "local_bytes": local,
            "managed_bytes": most["managed_bytes"],
            "managed_share": most["managed_bytes"] / max(most["peak_resident_bytes"], 1),
            "faults": sum(line["faults"] for line in lines), "plain_s": seconds, "far_s": far_seconds,
            "result": result}


def table(azekura, address, only, options, user, scratch):
    """Prints the table; returns its rows."""
    print("| program | needs MiB | local MiB | far MiB | far % | faults | plain s | far s | ratio | output |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    seen = []
    for program in collection():
        name, _, needs = program
        if only and name not in only:
            continue
        has = lambda program: tools.run(f"command -v {program}", "", user, scratch)[0] == 0
        absent = [program for program in needs if not has(program)]
        if absent:
            print(f"| {name} | | | | | | | | | missing: {' '.join(absent)} |", flush=True)
            continue
        one = row(azekura, address, program, options, user, scratch)
        sizes = [one[key] // tools.MIB for key in ("needs_bytes", "local_bytes", "managed_bytes")]
        cells = [name, *sizes, f"{100 * one['managed_share']:.0f}", one["faults"], f"{one['plain_s']:.2f}",
                 f"{one['far_s']:.2f}", f"{one['far_s'] / max(one['plain_s'], 0.01):.1f}", one["result"]]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        seen.append(one)
    return seen


def main():
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    parser.add_argument("--azekura", default=HERE.parent / "target/release/azekura", type=Path)
    parser.add_argument("--block", default="64", help="smallest block that becomes far memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen there, as JSON")
    parser.add_argument("only", nargs="*", help="names of programs")
    given = parser.parse_args()
    tools.HANGS = LONGEST
    scratch = Path(tempfile.mkdtemp(prefix="azekura-far-collection-"))
    user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    prepare(scratch)
    (scratch / "tmp").mkdir()
    (scratch / f"cache-{user}").mkdir()
    for path in (scratch, scratch / "tmp", scratch / f"cache-{user}"):
        shutil.chown(path, user)
    azekura = shutil.copy(given.azekura, scratch / "azekura")
    if other := os.environ.get("AZEKURA_FAR_PRELOAD"):
        shutil.copy(other, scratch / "library.so")
    server, address = tools.serve(azekura)
    try:
        seen = table(azekura, address, given.only, ["--block", given.block], user, scratch)
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(scratch, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps(seen, indent=1) + "\n")
    sys.exit(any(one["result"].startswith("OTHER") for one in seen))


if __name__ == "__main__":
    main()
