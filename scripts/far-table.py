#!/usr/bin/env python3
"""Runs six programs with random access plainly, under a memory limit with swap on zram, and in far memory
with 75, 50 and 25 % of their data local, and prints a table: seconds, slowdown, misses, context switches.

    cargo build --release -p azekura-cli
    scripts/far-table.py                          # the whole table, some minutes
    scripts/far-table.py --quick                  # less data, half local, one run each
    scripts/far-table.py --share 50 bfs sort      # some programs
    scripts/far-table.py --option=--page --option=4K    # options of `azekura far`
    scripts/far-table.py --json table.json        # as JSON, too

The programs: NPB IS and CG of class W (`eval/kernels`), a breadth-first search of a random graph and a hash
join (`scripts/far-table/*.c`), GNU sort, and SQLite with an index and joins in memory.

A program's data are the local pages that it needs in far memory with room for all of them. `--local` is a
share of these. The limit of the memory cgroup is the most that the plain run is charged in one, less the data
that are not local. A miss is a page that came because the program touched it, from a server or from the
compressed tier. The context switches are the voluntary ones of all threads of the program, and of the memory
server beside it, above those of the plain run. Each cell is the median of `--runs` runs, in turns. Swap is on
zram only, never on a loop device, NBD or FUSE; it needs root, an unused /dev/zram0 and a memory cgroup, and
the column says why it is missing otherwise. What is set up is taken down at the end; after `kill -9` of this
script: `swapoff /dev/zram0; echo 1 >/sys/block/zram0/reset`.

The exit code is 1 if an output differed. A run that does not end in `--longest` seconds is listed as such.
AZEKURA_FAR_PRELOAD names another library, as in `far-programs.py`.
"""

import argparse
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOADER = importlib.machinery.SourceFileLoader("far_programs", str(HERE / "far-programs.py"))
tools = importlib.util.module_from_spec(importlib.util.spec_from_loader("far_programs", LOADER))
LOADER.exec_module(tools)
ZRAM, ZRAM_BLOCK = Path("/dev/zram0"), Path("/sys/block/zram0")
# Least local memory of a region: eight pages.
LEAST = 8 * (64 << 10)

SQL = """pragma journal_mode = off; create table a(n integer primary key, k integer, t text);
create table b(n integer primary key, k integer, t text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})
  insert into a select i, i * 7919 % {rows}, hex(i * 104729) || 'some text of a row' from n;
insert into b select n, k * 31 % {rows}, t from a; create index ak on a(k); create index bk on b(k);
select count(*), sum(a.n * 3 + b.n), min(a.t || b.t) from a join b on a.k = b.k;
select count(*), sum(length(a.t)) from b join a on a.n = b.k where b.n % 3 = 0;"""


def programs(scratch, kernel, share):
    """Name, command, input file, options of `azekura far`."""
    return [
        ("NPB IS W", [kernel, "is.s" if share < 1 else "is.w"], None, []),
        ("NPB CG W", [kernel, "cg.s" if share < 1 else "cg.w"], None, ["--block", "64K"]),
        ("bfs", [scratch / "bfs", str(int(400_000 * share))], None, ["--block", "256K"]),
        ("hash-join", [scratch / "hash-join", str(int(500_000 * share))], None, ["--block", "256K"]),
        ("sort", ["sort", "-S", f"{int(120 * share)}M", "--parallel=2", "-k2,2n", scratch / "lines"], None,
         []),
        ("sqlite", ["sqlite3", ":memory:"], scratch / "sql", ["--block", "64"]),
    ]


def prepare(scratch, share):
    with open(scratch / "lines", "w") as lines:
        for i in range(int(1_200_000 * share)):
            lines.write(f"{i} {i * 7919 % 1_000_003} {i * i % 97:040}\n")
    (scratch / "sql").write_text(SQL.format(rows=int(200_000 * share)))
    for name in ("bfs", "hash-join"):
        subprocess.run(["cc", "-O2", "-o", scratch / name, HERE / f"far-table/{name}.c"], check=True)


def switches_of(server):
    """Ends a process; returns the voluntary context switches of all threads that it ever had."""
    server.terminate()
    _, status, usage = os.wait4(server.pid, 0)
    server.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_nvcsw


class Ran:
    """One run of a program: the digest of its output, its exit code (`None` if it did not end), its times."""

    def __init__(self, command, source, longest, environment=None, group=None):
        enters = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        began = time.monotonic()
        process = subprocess.Popen(list(map(str, command)), stdin=open(source or os.devnull), stdout=out,
                                   stderr=err, preexec_fn=enters, start_new_session=True,
                                   env={**os.environ, "LC_ALL": "C", **(environment or {})})
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, longest)
        _, status, usage = os.wait4(process.pid, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds = time.monotonic() - began
        self.code = None if process.returncode == -signal.SIGKILL else process.returncode
        self.resident = usage.ru_maxrss * 1024
        self.switches = usage.ru_nvcsw
        self.cpu = usage.ru_utime + usage.ru_stime
        out.seek(0), err.seek(0)
        self.output = hashlib.sha256(out.read()).hexdigest()
        self.error = err.read().decode(errors="replace").strip()
        self.ended = self.seconds < longest


class Swap:
    """Swap on zram, and a memory cgroup for each run."""

    def __init__(self, size):
        root = Path("/sys/fs/cgroup/memory")
        self.root, self.file, self.peak = root, "memory.limit_in_bytes", "memory.max_usage_in_bytes"
        if not (root / self.file).exists():
            self.root, self.file, self.peak = Path("/sys/fs/cgroup"), "memory.max", "memory.peak"
        if os.getuid() != 0:
            raise OSError("swap needs root")
        if (ZRAM_BLOCK / "disksize").read_text().strip() != "0":
            raise OSError(f"{ZRAM} is in use")
        self.run(["true"], None, 10, 1 << 30)  # fails if there is no memory cgroup
        (ZRAM_BLOCK / "disksize").write_text(str(size))
        for command in (["mkswap", ZRAM], ["swapon", "-p", "1", ZRAM]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                self.off()
                raise OSError(f"{command[0]}: {done.stderr.strip()}")

    def run(self, command, source, longest, limit):
        group = self.root / f"azekura-far-table-{os.getpid()}"
        group.mkdir()
        try:
            (group / self.file).write_text(str(limit))
            ran = Ran(command, source, longest, group=group)
            ran.charged = int((group / self.peak).read_text())
            return ran
        finally:
            for _ in range(100):
                try:
                    group.rmdir()
                    break
                except OSError:  # the kernel is still removing the group's last process
                    time.sleep(0.05)

    @staticmethod
    def off():
        subprocess.run(["swapoff", ZRAM], capture_output=True, check=False)
        (ZRAM_BLOCK / "reset").write_text("1")


class Table:
    def __init__(self, given, scratch, swap):
        self.given, self.scratch, self.swap = given, scratch, swap
        self.wrong = 0

    def far(self, program, local):
        _, command, source, options = program
        stats = self.scratch / "stats"
        stats.unlink(missing_ok=True)
        server, address = tools.serve(self.given.azekura)
        far = [self.given.azekura, "far", "--quiet", "--local", local, "--max-far", "1G", "--server",
               address, *options, *self.given.option, "--stats-json", stats, "--"]
        ran = Ran([*far, *command], source, self.given.longest)
        ran.server_switches = switches_of(server)
        lines = [json.loads(line) for line in stats.read_text().splitlines()] if stats.exists() else []
        ran.stats = {key: sum(line.get(key, 0) for line in lines)
                     for key in ("faults", "swap_ins", "prefetches", "prefetch_hits", "swap_outs",
                                 "clean_drops", "swap_ns", "peak_local_bytes", "compressed_ins",
                                 "compressed_outs")}
        return ran

    def cell(self, runs, plain):
        """The median run as a row of the table's JSON, and whether all outputs are right."""
        ended = [run for run in runs if run.ended]
        if len(ended) < len(runs):
            return {"result": f"not ended in {self.given.longest} s", "seconds": None}
        bad = next((run for run in ended if run.code != 0 or run.output != plain.output), None)
        if bad is not None:
            killed = bad.code is None
            self.wrong += not killed
            why = "killed: out of memory" if killed else f"OTHER (exit {bad.code}): {bad.error[-200:]}"
            return {"result": why, "seconds": None}
        middle = sorted(ended, key=lambda run: run.seconds)[len(ended) // 2]
        row = {"result": "same", "seconds": middle.seconds, "slowdown": middle.seconds / plain.seconds,
               "cpu_seconds": middle.cpu, "all_seconds": sorted(run.seconds for run in ended)}
        if hasattr(middle, "stats"):
            misses = middle.stats["swap_ins"] + middle.stats["compressed_ins"]
            row |= middle.stats | {"misses": misses}
            if misses:
                row["switches_per_miss"] = max(middle.switches - plain.switches, 0) / misses
                row["server_switches_per_miss"] = middle.server_switches / misses
                row["us_per_miss"] = (middle.seconds - plain.seconds) * 1e6 / misses
        return row

    def of(self, program):
        name, command, source, _ = program
        plain = [Ran(command, source, self.given.longest) for _ in range(max(self.given.runs, 3))]
        seconds = statistics.median(run.seconds for run in plain)
        plain = min(plain, key=lambda run: abs(run.seconds - seconds))
        if plain.code != 0:
            sys.exit(f"{name}: exit {plain.code}: {plain.error}")
        whole = self.far(program, max(2 * plain.resident, 64 << 20))
        if whole.code != 0 or whole.output != plain.output:
            self.wrong += 1
            print(f"| {name} | OTHER with all local (exit {whole.code}): {whole.error[-200:]} |", flush=True)
            return {"program": name, "result": "OTHER"}
        data = whole.stats["peak_local_bytes"]
        charged = self.swap.run(command, source, self.given.longest, 1 << 40).charged if self.swap else 0
        told = {"program": name, "data_bytes": data, "resident_bytes": plain.resident,
                "plain_seconds": plain.seconds, "all_local_seconds": whole.seconds, "shares": []}
        for share in self.given.share:
            local = max(data * share // 100, LEAST) // 65536 * 65536
            limit = max(charged - data, 0) + local
            swap, far = [], []
            for _ in range(self.given.runs):  # swap and far memory alternate
                if self.swap:
                    swap.append(self.swap.run(command, source, self.given.longest, limit))
                far.append(self.far(program, local))
            row = {"share": share, "local_bytes": local, "limit_bytes": limit, "far": self.cell(far, plain),
                   "zram": self.cell(swap, plain) if swap else None}
            told["shares"].append(row)
            self.print_row(name, data, plain, row)
        return told

    def print_row(self, name, data, plain, row):
        far, zram = row["far"], row["zram"]
        seconds = lambda cell: f"{cell['seconds']:.2f}" if cell["seconds"] else cell["result"]
        number = lambda key, form: format(far[key], form) if key in far else ""
        cells = [name, f"{data / tools.MIB:.1f}", row["share"], f"{plain.seconds:.2f}",
                 seconds(zram) if zram else "", seconds(far), number("slowdown", ".1f"),
                 number("misses", "d"),
                 number("us_per_miss", ".0f"), number("switches_per_miss", ".1f"),
                 number("server_switches_per_miss", ".1f"),
                 far["result"] if far["seconds"] else ""]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main():
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    parser.add_argument("--azekura", default=HERE.parent / "target/release/azekura", type=Path)
    parser.add_argument("--kernel", type=Path, help="example `kernel` of eval/kernels; built unless given")
    parser.add_argument("--share", type=int, action="append",
                        help="local share in percent; several may be given")
    parser.add_argument("--option", action="append", default=[], help="one more argument of `azekura far`")
    parser.add_argument("--runs", type=int, default=3, help="runs of each cell")
    parser.add_argument("--longest", type=int, default=120, help="seconds of a run at most")
    parser.add_argument("--quick", action="store_true",
                        help="a quarter of the data, half local, one run each")
    parser.add_argument("--no-zram", action="store_true", help="without the column of swap on zram")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen there, as JSON")
    parser.add_argument("only", nargs="*", help="programs with names that begin so")
    given = parser.parse_args()
    given.share = given.share or ([50] if given.quick else [75, 50, 25])
    given.runs = 1 if given.quick else given.runs
    share = 0.25 if given.quick else 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is in `finally` is done
    scratch = Path(tempfile.mkdtemp(prefix="azekura-far-table-"))
    swap = None
    try:
        if given.kernel is None:
            build = ["cargo", "build", "--quiet", "--release", "-p", "azekura-kernels", "--example", "kernel"]
            target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")).absolute()
            subprocess.run(build, cwd=HERE.parent / "eval", check=True,
                           env={**os.environ, "CARGO_TARGET_DIR": str(target)})
            given.kernel = target / "release/examples/kernel"
        given.azekura = shutil.copy(given.azekura, scratch / "azekura")
        prepare(scratch, share)
        if not given.no_zram:
            try:
                swap = Swap(2 << 30)
            except OSError as why:
                print(f"no swap on zram here: {why}")
        table = Table(given, scratch, swap)
        print(f"load of the machine at the start: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors\n")
        print("| program | data MiB | local % | plain s | zram s | far s | slowdown | misses | us per miss "
              "| switches per miss | of the server | output |\n" + "|---" * 12 + "|")
        wanted = lambda name: not given.only or any(name.lower().startswith(o.lower()) for o in given.only)
        seen = [table.of(program) for program in programs(scratch, given.kernel, share) if wanted(program[0])]
        print(f"\nload of the machine at the end: {os.getloadavg()[0]:.1f}")
    finally:
        if swap:
            swap.off()
        shutil.rmtree(scratch, ignore_errors=True)
    if given.json:
        told = {"options": given.option, "runs": given.runs, "programs": seen}
        given.json.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(table.wrong > 0)


if __name__ == "__main__":
    main()
