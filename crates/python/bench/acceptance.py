"""Compares the Python package with lmdb, sqlite3 and diskcache, and prints a table in Markdown.

    python bench/acceptance.py [--seconds S] [--rounds N] [--rows N] [--wheel FILE]

Needs the packages azekura, lmdb and diskcache: `scripts/python.sh --bench` creates the environment and
runs this program.
Every store is durable: a write that has returned survives a power loss (sqlite3 and diskcache: WAL mode with
synchronous=FULL). The rounds of the stores alternate; the result is the median of the rounds.
"""

import argparse
import os
import pathlib
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import azekura
import diskcache
import lmdb

VALUE = b"v" * 100


def key(n):
    return b"key%012d" % n


class Azekura:
    name = "azekura"

    def __init__(self, path):
        self.db = azekura.open(path, cache_bytes=256 << 20)
        self.rows = self.db.table("rows")

    def fill(self, count):
        with self.db.begin() as tx:
            rows = tx.table("rows")
            for n in range(count):
                rows[key(n)] = VALUE

    def reader(self):
        self.snap = self.db.snapshot()
        return self.snap.table("rows").get

    def items(self):
        with self.db.snapshot() as snap:
            return sum(len(v) for _, v in snap.table("rows").items())

    def writer(self):
        rows = self.rows
        return lambda k, v: rows.__setitem__(k, v)

    def close(self):
        if hasattr(self, "snap"):
            self.snap.close()
        self.db.close()


class Lmdb:
    name = "lmdb"

    def __init__(self, path):
        self.env = lmdb.open(path, map_size=2 << 30, max_readers=64)

    def fill(self, count):
        with self.env.begin(write=True) as tx:
            for n in range(count):
                tx.put(key(n), VALUE)

    def reader(self):
        self.tx = self.env.begin()
        return self.tx.get

    def items(self):
        with self.env.begin() as tx:
            return sum(len(v) for _, v in tx.cursor())

    def writer(self):
        def put(k, v):
            with self.env.begin(write=True) as tx:
                tx.put(k, v)

        return put

    def close(self):
        if hasattr(self, "tx"):
            self.tx.abort()
        self.env.close()


class Sqlite:
    name = "sqlite3"

    def __init__(self, path):
        os.makedirs(path)
        self.path = os.path.join(path, "rows.db")
        self.db = self.connect()
        self.db.execute("create table rows (k blob primary key, v blob) without rowid")

    def connect(self):
        db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = full")
        db.execute("pragma cache_size = -262144")
        return db

    def fill(self, count):
        self.db.execute("begin")
        self.db.executemany("insert into rows values (?, ?)", ((key(n), VALUE) for n in range(count)))
        self.db.execute("commit")

    def reader(self):
        execute = self.db.execute
        return lambda k: execute("select v from rows where k = ?", (k,)).fetchone()

    def items(self):
        return sum(len(v) for _, v in self.db.execute("select k, v from rows order by k"))

    def writer(self):
        execute = self.connect().execute
        return lambda k, v: execute("insert or replace into rows values (?, ?)", (k, v))

    def close(self):
        self.db.close()


class DiskCache:
    name = "diskcache"

    def __init__(self, path):
        self.cache = diskcache.Cache(
            path, size_limit=8 << 30, eviction_policy="none", sqlite_synchronous=2, timeout=60
        )

    def fill(self, count):
        with self.cache.transact():
            for n in range(count):
                self.cache[key(n)] = VALUE

    def reader(self):
        return self.cache.get

    def items(self):
        return sum(len(self.cache[k]) for k in self.cache.iterkeys())

    def writer(self):
        return self.cache.set

    def close(self):
        self.cache.close()


STORES = [Azekura, Lmdb, Sqlite, DiskCache]


def gets(store, rows, seconds):
    """Returns the cached reads per second of one thread, in scattered key order."""
    get, done, n = store.reader(), 0, 1
    began = time.perf_counter()
    while True:
        for _ in range(500):
            n = (n * 16807) % 2147483647
            if get(b"key%012d" % (n % rows)) is None:
                sys.exit(f"{store.name}: a row is missing")
        done += 500
        spent = time.perf_counter() - began
        if spent >= seconds:
            return done / spent


def iteration(store, rows, seconds):
    """Returns the rows per second of one thread that iterates over all rows."""
    done, began = 0, time.perf_counter()
    while True:
        if store.items() != rows * len(VALUE):
            sys.exit(f"{store.name}: an iteration shows other rows")
        done += rows
        spent = time.perf_counter() - began
        if spent >= seconds:
            return done / spent


def commits(store, threads, seconds):
    """Returns the durable commits of one row per second, by threads that write different keys."""
    counts, errors, barrier = [0] * threads, [], threading.Barrier(threads + 1)
    end = [0.0]

    def run(number):
        try:
            put = store.writer()
            barrier.wait()
            while time.perf_counter() < end[0]:
                put(b"thread%02d%012d" % (number, counts[number]), VALUE)
                counts[number] += 1
        except Exception as error:  # for example "database is locked"
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    end[0] = time.perf_counter() + seconds
    barrier.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    spent = time.perf_counter() - began
    if errors:
        print(f"{store.name}: {len(errors)} of {threads} threads ended: {errors[0]!r}", file=sys.stderr)
    return sum(counts) / spent


def measure(arguments, directory):
    """Returns the median of each figure for each store."""
    figures = {}
    for number in range(arguments.rounds):
        for kind in STORES:
            store = kind(os.path.join(directory, f"{kind.name}-{number}"))
            store.fill(arguments.rows)
            for figure, value in [
                ("cached `get`, 1 thread", gets(store, arguments.rows, arguments.seconds)),
                ("iteration, rows, 1 thread", iteration(store, arguments.rows, arguments.seconds)),
                ("durable commits of one row, 1 thread", commits(store, 1, arguments.seconds)),
                ("… 8 threads", commits(store, 8, arguments.seconds)),
            ]:
                figures.setdefault(figure, {}).setdefault(kind.name, []).append(value)
            store.close()
    return {
        figure: {name: statistics.median(values) for name, values in of.items()}
        for figure, of in figures.items()
    }


def gets_in_turns(arguments, directory):
    """Returns the ratios of the cached reads beside lmdb, from pairs of runs in turns, in ascending order."""
    own, peer = (kind(os.path.join(directory, f"{kind.name}-pairs")) for kind in (Azekura, Lmdb))
    for store in (own, peer):
        store.fill(arguments.rows)
    ratios = [
        gets(own, arguments.rows, arguments.seconds) / gets(peer, arguments.rows, arguments.seconds)
        for _ in range(12)
    ]
    own.close()
    peer.close()
    return sorted(ratios)


def import_ms():
    """Returns the time in ms to import the package in a new process, without the start of the interpreter."""
    def run(code):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - began) * 1000

    pairs = [(run("import azekura"), run("pass")) for _ in range(9)]
    return statistics.median(a - b for a, b in pairs)


def number(value):
    return f"{value / 1000:,.1f} k" if value >= 1000 else f"{value:,.0f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--wheel", type=pathlib.Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:
        figures = measure(arguments, directory)
        ratios = gets_in_turns(arguments, directory)
    names = [kind.name for kind in STORES]
    versions = f"lmdb {lmdb.__version__}, sqlite {sqlite3.sqlite_version}, diskcache {diskcache.__version__}"
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    print(f"{now} UTC; Python {platform.python_version()}, {versions};")
    print(f"{os.cpu_count()} processors, load {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end;")
    print(f"{arguments.rows:,} rows of {len(VALUE)} B, {arguments.seconds} s for each cell,", end=" ")
    print(f"median of {arguments.rounds} rounds.\n")
    print(f"| per second | {' | '.join(names)} | beside | ratio | goal |")
    print("|---|" + "---|" * (len(names) + 3))
    goals = {"cached `get`, 1 thread": 0.9, "iteration, rows, 1 thread": 0.9, "… 8 threads": 3.0}
    for figure, of in figures.items():
        peers = ["lmdb"] if figure in list(figures)[:2] else names[1:]
        peer = max(peers, key=lambda name: of[name])
        ratio, goal = of["azekura"] / of[peer], goals.get(figure)
        verdict = "" if goal is None else f"≥ {goal}: {'met' if ratio >= goal else '**not met**'}"
        cells = " | ".join(number(of[name]) for name in names)
        print(f"| {figure} | {cells} | {peer} | {ratio:.2f} | {verdict} |")
    print("\n| figure | value | goal |\n|---|---|---|")
    middle, quarters = statistics.median(ratios), statistics.quantiles(ratios)
    verdict = "met" if middle >= 0.9 else "**not met**"
    print(f"| cached `get` beside lmdb, 12 pairs in turns | median {middle:.2f}, quartiles", end=" ")
    print(f"{quarters[0]:.2f} and {quarters[2]:.2f} | ≥ 0.9: {verdict} |")
    spent = import_ms()
    print(f"| import | {spent:.0f} ms | ≤ 20 ms: {'met' if spent <= 20 else '**not met**'} |")
    if arguments.wheel:
        mib = arguments.wheel.stat().st_size / (1 << 20)
        print(f"| wheel | {mib:.1f} MiB | ≤ 4 MB: {'met' if mib * 1.048576 <= 4 else '**not met**'} |")


if __name__ == "__main__":
    main()
