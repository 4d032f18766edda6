#!/usr/bin/env python3
"""Runs programs of others in far memory, at half of the memory that they need, and compares their output.

    cargo build --release -p azekura-cli
    scripts/far-programs.py                       # all, as this user and, for root, as nobody, too
    scripts/far-programs.py sort redis            # some
    scripts/far-programs.py --quick               # a quarter of the data, the best mechanism only: a minute
    scripts/far-programs.py --azekura target/debug/azekura
    scripts/far-programs.py --kills 200 "C threads"   # kills one of two servers, 200 times
    scripts/far-programs.py --fits 7 sort sqlite      # all is local: the cost of far memory (goal: 3 %)
    scripts/far-programs.py --json programs.json  # what was seen, as JSON, too
    AZEKURA_FAR_PRELOAD=LIBRARY scripts/far-programs.py     # another library

The programs: GNU sort, sqlite3 (in memory), Python with numpy, redis-server (with a child that saves, then
loading the saved file), and C programs with threads, static arrays, children, and system calls of every kind.
A program that is not installed is named and counted as missing, with the command that installs it. numpy is
fetched from PyPI into the scratch directory if Python has none.

Each program runs plainly first, then with each available user and mechanism, with --local at half of the need
of the plain run. Then programs that cannot have far memory must be refused before they begin. The exit code
is 1 if an output differed, a program failed, none of its pages was ever paged out, or a program was not
refused; times do not count.

The need of a program is the greatest resident set of its plain run. A run finds the part that is not far (its
text, small blocks, tables); --local is the rest of half the need.
"""

import argparse
import collections
import json
import os
import pwd
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
MIB = 1 << 20
# A first estimate of a program's memory outside of large blocks.
SMALL = 10 * MIB
# Least local memory for a program's large blocks.
LEAST = 4 * MIB
# Address space of large blocks.
SPACE = "1G"
# Time limit in seconds; a program that takes longer counts as hanging.
HANGS = 600

SQL = """pragma journal_mode = off; create table t(a integer primary key, b text, c blob);
with recursive n(i) as (select 1 union all select i+1 from n where i < {rows})
  insert into t select i, hex(i * 7919), zeroblob(i % 400) from n;
create index u on t(b); update t set c = b || c where a % 3 = 0; delete from t where a % 7 = 0;
select count(*), sum(length(b)), sum(length(c)), min(b), max(b) from t;
select a, b from t order by b limit 2000 offset {offset}; pragma integrity_check;"""

NUMPY = """import numpy as n
a = n.arange({columns} * 1000, dtype=float).reshape(1000, {columns})
b = n.sort(n.sin(a), axis=1); c = n.cumsum(a, axis=0)
print(b.tobytes()[:64].hex(), b.sum(), c[-1, :9], (b @ b[:50].T).sum(), n.linalg.norm(c))
rows = [(i * 7919 % 1000003, str(i)) for i in range({rows})]; rows.sort()
print(rows[:5], sum(hash(r[0]) for r in rows))"""

REDIS = """KEYS={keys}; cd "$(mktemp -d)"
start() { $1 redis-server --port 0 --unixsocket s --save '' --enable-debug-command yes --dir . >log &
  p=$!; until redis-cli -s s ping 2>/dev/null | grep -q PONG; do
    kill -0 $p || { cat log >&2; exit 9; }; sleep 0.1; done; }
start "$FAR"
redis-cli -s s debug populate $KEYS key 500
redis-cli -s s setrange key:77 100000 x
redis-cli -s s bgsave >/dev/null
redis-cli -s s debug populate 5000 more 500 # while the child saves
while redis-cli -s s info persistence | grep -q in_progress:1; do sleep 0.1; done
redis-cli -s s info persistence | grep last_bgsave_status
redis-cli -s s debug digest; redis-cli -s s dbsize; kill $p; wait $p
start "$FAR" # which asks while it loads
redis-cli -s s eval "return #redis.call('keys', 'key:*')" 0
redis-cli -s s getrange key:77 99990 -1; redis-cli -s s debug digest; kill $p; wait $p
rm -rf "$PWD" """


class Program:
    def __init__(self, name, needs, install, script, options=()):
        self.name, self.needs, self.install = name, needs, install
        self.script, self.options = script, list(options)


def programs(scratch, python, share):
    small = ["--block", "256K"]
    compiled = lambda name: f"$FAR {scratch}/{name}"
    return [
        Program("sort", "sort --version | grep -q GNU", "apt-get install coreutils",
                f"LC_ALL=C $FAR sort -S 120M --parallel=2 -k2,2n {scratch}/lines | sha256sum"),
        Program("sqlite", "sqlite3 --version", "apt-get install sqlite3",
                f"$FAR sqlite3 -pagecache 4400 {int(24_000 * share)} :memory: <{scratch}/sql | sha256sum"),
        Program("numpy", f"{python} -c 'import numpy'", "pip install numpy",
                f"OPENBLAS_NUM_THREADS=2 $FAR {python} {scratch}/model.py", ["--block", "1M"]),
        Program("redis", "redis-server --version && redis-cli --version", "apt-get install redis",
                REDIS.replace("{keys}", str(int(60_000 * share))), ["--block", "256K"]),
        *[Program(f"C {name}", f"test -x {scratch}/{name}", "apt-get install gcc libc6-dev", compiled(name),
                  small)
          for name in ("threads", "statics", "children", "forks", "calls", "streams",
                       "streams-with-allocator",
                       "owners-with-allocator")],
    ]


def prepare(scratch, share):
    with open(scratch / "lines", "w") as lines:
        # With fewer lines, the local half is smaller than the program's text: see docs/testing.md.
        for i in range(1_200_000):
            lines.write(f"{i} {i * 7919 % 1_000_003} {i * i % 97:040}\n")
    (scratch / "sql").write_text(SQL.format(rows=int(250_000 * share), offset=int(100_000 * share)))
    (scratch / "model.py").write_text(NUMPY.format(columns=3000, rows=200_000))
    (scratch / "plain.c").write_text("int puts(const char *); int main(void) { return puts(\"ran\") < 0; }")
    make = lambda *arguments: subprocess.run(["cc", "-O1", "-pthread", "-w", *arguments], check=False)
    sources = HERE / "crates/far-preload/tests/programs"
    library = scratch / "liballocator.so"
    make("-shared", "-fPIC", "-fno-builtin", sources / "allocator.c", "-o", library)
    for source in sources.glob("*.c"):
        if source.stem not in ("allocator", "owners"):
            make(source, "-o", scratch / source.stem)
    make("-static", scratch / "plain.c", "-o", scratch / "statically-linked")
    for name in ("streams", "owners"):
        make(sources / f"{name}.c", library, f"-Wl,-rpath,{scratch}", "-o",
             scratch / f"{name}-with-allocator")


def with_numpy(scratch):
    """A Python that nobody can run, too, and that has numpy; and how to call it."""
    for python in ("/usr/bin/python3", sys.executable):
        if not os.path.exists(python):
            continue
        if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
            return python
        target = scratch / "site"
        version = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                                 capture_output=True, text=True).stdout.strip()
        got = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--retries", "1",
                              "--timeout", "10", "--only-binary=:all:", "--python-version", version,
                              "--target", target, "numpy"], capture_output=True, text=True)
        call = f"env PYTHONPATH={target} {python}"
        if got.returncode == 0 and subprocess.run(f"{call} -c 'import numpy'", shell=True,
                                                  capture_output=True).returncode == 0:
            return call
    return sys.executable


def run(script, far, user, scratch):
    """Exit code (124 after a hang), output, messages, seconds, and the greatest resident set of a process."""
    environment = {"PATH": os.environ["PATH"], "FAR": far, "HOME": "/nonexistent",
                   "XDG_CACHE_HOME": str(scratch / f"cache-{user}"),
                   "TMPDIR": str(scratch / "tmp"), "LC_ALL": "C"}
    if (scratch / "library.so").exists():
        environment["AZEKURA_FAR_PRELOAD"] = str(scratch / "library.so")
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        who = pwd.getpwnam(user)
        if os.getuid() == 0 and who.pw_uid != 0:
            os.setgroups([]), os.setgid(who.pw_gid), os.setuid(who.pw_uid)
        done = subprocess.run(["timeout", "-k", "5", str(HANGS), "bash", "-o", "pipefail", "-c", script],
                              env=environment, stdin=subprocess.DEVNULL,
                              stdout=open(scratch / "tmp/out", "wb"), stderr=open(scratch / "tmp/err", "wb"))
        rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        Path(scratch / "tmp/rss").write_text(json.dumps([done.returncode, rss]))
        os._exit(0)
    os.waitpid(child, 0)
    seconds = time.monotonic() - begun
    code, rss = json.loads((scratch / "tmp/rss").read_text())
    out, err = (scratch / "tmp/out").read_bytes(), (scratch / "tmp/err").read_bytes().decode(errors="replace")
    for name in ("out", "err", "rss"):
        (scratch / "tmp" / name).unlink()
    return code, out, err, seconds, rss


def serve(azekura):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    server = subprocess.Popen([azekura, "memory-server", "--capacity", "4G", "--listen", address,
                               "--with-parent", str(os.getpid())],
                              stdout=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(address.split(":")).close()
            return server, address
        except OSError:
            if server.poll() is not None:
                sys.exit("the memory server did not begin")
            time.sleep(0.05)


FarRun = collections.namedtuple("FarRun", "code out err seconds resident away mechanism")


def far_run(azekura, address, program, local, mechanism, user, scratch):
    """A run in far memory, with its last message; the resident set is that of the largest process."""
    far = [azekura, "far", "--local", local, "--max-far", SPACE, "--server", address, "--mechanism",
           mechanism, *program.options, "--"]
    code, out, err, seconds, _ = run(program.script, " ".join(map(str, far)), user, scratch)
    away = [line for line in err.splitlines() if " faults, " in line]
    resident = max((int(line.split(" at most ")[1].split()[0]) for line in away if " at most " in line),
                   default=0) * MIB
    name = next((line.split(" by ")[1].split(",")[0] for line in err.splitlines() if " by " in line),
                mechanism)
    return FarRun(code, out, err, seconds, resident, away, name)


def whole_pages(size):
    return max(size, LEAST) // 4096 * 4096


def half_of(need, local, resident):
    """What is left of half the need for large blocks, by a run that had `resident` with `local`."""
    return whole_pages(need // 2 - max(resident - local, 0))


def kill_trials(azekura, program, plain, seconds, local, trials, user, scratch, draw):
    """Two servers, two copies; one is killed at a random moment. Returns the number of wrong trials."""
    wrong = 0
    for trial in range(trials):
        servers = [serve(azekura) for _ in range(2)]
        victim, after = draw.randrange(2), draw.uniform(0, 2 * seconds + 0.3)
        killer = threading.Timer(after, servers[victim][0].kill)
        killer.start()
        far = [azekura, "far", "--local", local, "--max-far", SPACE, "--copies", 2, "--server",
               ",".join(s[1] for s in servers),
               *program.options, "--"]
        code, out, err, took, _ = run(program.script, " ".join(map(str, far)), user, scratch)
        killer.cancel()
        for server, _ in servers:
            server.kill()
            server.wait()
        if code or out != plain:
            wrong += 1
            same = "same" if out == plain else "other"
            print(f"  trial {trial}: server {victim} killed after {after:.2f} s: exit {code}, "
                  f"{same} output\n{err}")
    print(f"  {trials} kills: {wrong} wrong or without end", flush=True)
    return wrong


def compare_times(azekura, address, program, need, runs, user, scratch):
    """All fits: plain and far in turn; the ratio of the medians is what far memory costs."""
    far = [azekura, "far", "--quiet", "--local", 4 * need // MIB * MIB + 64 * MIB, "--max-far", SPACE,
           "--server", address, *program.options, "--"]
    times = [[run(program.script, command, user, scratch)[3] for command in ("", " ".join(map(str, far)))]
             for _ in range(runs)]
    plain, ours = (statistics.median(column) for column in zip(*times))
    spread = [f"{min(column):.3f}..{max(column):.3f}" for column in zip(*times)]
    goal = "within 3 %" if ours <= 1.03 * plain else "NOT within 3 %"
    print(f"  all local: plain {plain:.3f} s ({spread[0]}), far {ours:.3f} s ({spread[1]}), "
          f"ratio {ours / plain:.3f}: {goal}", flush=True)
    return {"plain_s": plain, "far_s": ours, "ratio": ours / plain, "runs": runs, "spread": spread}


def refusals(azekura, address, scratch, user):
    """Programs that cannot have far memory: the number that was not refused with a message at the start."""
    wrong = 0
    set_id = next((path for name in ("passwd", "su", "sudo", "mount")
                   if (path := shutil.which(name)) and os.stat(path).st_mode & 0o4000), None)
    for why, program in (("statically linked", scratch / "statically-linked"), ("set-user-id", set_id)):
        if program is None or not os.path.exists(program):
            print(f"{why}: none here to be refused")
            continue
        code, out, err, _, _ = run(f"{azekura} far --server {address} -- {program} --help", "", user, scratch)
        refused = code != 0 and not out and str(program) in err
        wrong += not refused
        print(f"{why} ({program}): {'refused' if refused else 'NOT REFUSED'}: {err.strip()}", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azekura", default=HERE / "target/release/azekura", type=Path)
    parser.add_argument("--mechanisms", default="auto,user-mode-move,user-mode-copy,sigsegv")
    parser.add_argument("--kills", type=int, default=0,
                        help="instead: N trials, in which one of two servers is killed")
    parser.add_argument("--fits", type=int, default=0,
                        help="instead: time N runs of each, plainly and with all memory local")
    parser.add_argument("--quick", action="store_true",
                        help="a quarter of the data, and the best mechanism only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen there, as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of the kills' moments")
    parser.add_argument("only", nargs="*", help="programs with names that begin so")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is in `finally` is done
    share = 0.25 if given.quick else 1
    mechanisms = ["auto"] if given.quick else given.mechanisms.split(",")
    seen = []
    scratch = Path(tempfile.mkdtemp(prefix="azekura-far-programs-"))
    os.chmod(scratch, 0o755)
    (scratch / "tmp").mkdir()
    os.chmod(scratch / "tmp", 0o777)
    azekura = shutil.copy(given.azekura, scratch / "azekura")
    if other := os.environ.get("AZEKURA_FAR_PRELOAD"):
        shutil.copy(other, scratch / "library.so")
    users = [pwd.getpwuid(os.getuid()).pw_name] + (["nobody"] if os.getuid() == 0 else [])
    for user in users:
        (scratch / f"cache-{user}").mkdir(mode=0o700)
        shutil.chown(scratch / f"cache-{user}", user)
    prepare(scratch, share)
    wanted = lambda program: not given.only or any(program.name.startswith(name) for name in given.only)
    server, address = serve(azekura)
    wrong = missing = 0
    try:
        for program in filter(wanted, programs(scratch, with_numpy(scratch), share)):
            if run(program.needs, "", users[0], scratch)[0]:
                print(f"{program.name}: MISSING here ({program.install})")
                missing += 1
                seen.append({"program": program.name, "missing": program.install})
                continue
            code, plain, err, seconds, need = run(program.script, "", users[0], scratch)
            failed = f", exits with {code}: {err}" if code else ""
            print(f"{program.name}: needs {need // MIB} MiB, {seconds:.1f} s{failed}", flush=True)
            seen.append(told := {"program": program.name, "needs_bytes": need, "plain_s": seconds,
                                 "runs": []})
            local = whole_pages((need - SMALL) // 2)
            if given.kills:
                bad = kill_trials(azekura, program, plain, seconds, local, given.kills, users[-1], scratch,
                                  random.Random(given.seed))
                told["kills"] = {"trials": given.kills, "wrong": bad, "seed": given.seed}
                wrong += bad
            if given.fits:
                told["fits"] = compare_times(azekura, address, program, need, given.fits, users[0], scratch)
            if given.kills or given.fits:
                continue
            local = half_of(need, local, far_run(azekura, address, program, local, "auto", users[0],
                                                 scratch).resident)
            for user in users:
                chosen = None
                for mechanism in mechanisms:
                    if mechanism == "sigsegv" and program.name in ("redis", "C forks", "C statics"):
                        # sigsegv does not support child processes and static arrays, and reports this.
                        continue
                    if mechanism == chosen:
                        continue
                    code, out, err, seconds, resident, away, name = far_run(
                        azekura, address, program, local, mechanism, user, scratch)
                    chosen = name if mechanism == "auto" else chosen
                    fits = code == 0 and out == plain and any(" 0 out" not in line for line in away)
                    wrong += not fits
                    told["runs"].append({"user": user, "mechanism": name, "local_bytes": local,
                                         "resident_bytes": resident, "seconds": seconds,
                                         "identical": fits, "said": away})
                    same = "same" if out == plain else "other"
                    result = "identical" if fits else f"WRONG (exit {code}, {same} output)\n{err}"
                    print(f"  {user:8} {name:15} {local // MIB} MiB local, {resident // MIB} MiB resident "
                          f"({100 * resident // need} %), {seconds:.1f} s: {result}", flush=True)
                    if out != plain:
                        print(f"expected: {plain[-600:]}\nfound:    {out[-600:]}")
                    for line in away:
                        print(f"           {line.removeprefix('azekura far: ')}")
        if not given.only and not given.kills and not given.fits:
            wrong += refusals(azekura, address, scratch, users[-1])
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(scratch, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps({"wrong": wrong, "missing": missing, "programs": seen},
                                         indent=1) + "\n")
    print(f"{wrong} wrong, {missing} missing")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
