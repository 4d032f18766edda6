"""Measures backups under writers, compaction and encryption, and prints a table in Markdown.

    python bench/copies.py PART [--mib N] [--seconds S]

PART is `backup`, `compaction` or `encryption`. Needs only the package azekura. The stores are in the working
directory. Every commit is durable.
"""

import argparse
import os
import random
import statistics
import tempfile
import threading
import time

import azekura

VALUE = b"v" * 1000


def key(n):
    return b"key%012d" % n


def filled(path, mib, value=VALUE, **options):
    """Returns a store with about `mib` MiB of rows, and their number."""
    rows = mib * (1 << 20) // (len(value) + len(key(0)))
    db = azekura.open(path, **options)
    db.table("rows").bulk_load((key(n), value) for n in range(rows))
    db.checkpoint()
    return db, rows


def written(db, rows, threads, until):
    """Returns the durable updates of one row per second by threads, until an event is set."""
    counts, barrier = [0] * threads, threading.Barrier(threads + 1)

    def run(number):
        table, chance = db.table("rows"), random.Random(number)
        barrier.wait()
        while not until.is_set():
            table[key(chance.randrange(rows))] = VALUE
            counts[number] += 1

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


def for_seconds(db, rows, threads, seconds):
    end = threading.Event()
    timer = threading.Timer(seconds, end.set)
    timer.start()
    return written(db, rows, threads, end)


def device_mib(path):
    """Returns the MiB per second of a sequential read of the page file past the page cache of the system."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    began, read = time.perf_counter(), 0
    while piece := os.read(file, 1 << 20):
        read += len(piece)
    os.close(file)
    return read / (1 << 20) / (time.perf_counter() - began)


def backup(directory, mib, seconds):
    db, rows = filled(os.path.join(directory, "db"), mib, cache_bytes=256 << 20, version_bytes=1 << 30)
    alone = for_seconds(db, rows, 8, seconds)
    end, spent = threading.Event(), []

    def back_up():
        began = time.perf_counter()
        db.backup(os.path.join(directory, "backup"))
        spent.append(time.perf_counter() - began)
        end.set()

    thread = threading.Thread(target=back_up)
    thread.start()
    beside = written(db, rows, 8, end)
    thread.join()
    device = device_mib(os.path.join(directory, "db", "pages"))
    rate = mib / spent[0]
    db.close()
    return [
        ("8 writers beside a backup, commits/s", f"{beside:,.0f} of {alone:,.0f} alone", beside / alone, 0.9),
        (f"backup of {mib} MiB, MiB/s", f"{rate:.0f}; device reads {device:.0f}", rate / device, 0.5),
    ]


def size(path):
    return sum(os.stat(os.path.join(at, name)).st_size for at, _, names in os.walk(path) for name in names)


def compaction(directory, mib, _seconds):
    db, rows = filled(os.path.join(directory, "db"), mib, b"v" * 100, cache_bytes=256 << 20)
    with db.begin() as tx:  # leaves that are not full
        table = tx.table("rows")
        for n in range(0, rows, 50):
            table.remove_range(key(n), key(n + 20))
    left = len(db.table("rows"))
    began = time.perf_counter()
    db.compact_into(os.path.join(directory, "small"))
    spent = time.perf_counter() - began
    db.close()
    ratio = size(os.path.join(directory, "small")) / (left * (len(key(0)) + 100))
    return [
        ("compact_into, M rows/s", f"{left / spent / 1e6:.2f} ({left:,} rows)", left / spent / 1e6, 3.0),
        ("size of the compacted store beside its rows", f"{ratio:.3f}", 1 / ratio, 1 / 1.15),
    ]


def encryption(directory, mib, seconds):
    options = {"plain": {}, "encrypted": {"encryption_key": b"k" * 32}}
    figures = {name: {"U-1": [], "cold": []} for name in options}
    stores = {}
    for name, more in options.items():
        path = os.path.join(directory, name)
        db, rows = filled(path, mib, b"v" * 100, cache_bytes=256 << 20, **more)
        db.close()
        stores[name] = path
    for _ in range(3):
        for name, more in options.items():
            with azekura.open(stores[name], cache_bytes=256 << 20, **more) as db:
                table, chance, done = db.table("rows"), random.Random(7), 0
                for n in range(0, rows, 50):
                    table.get(key(n))
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    table[key(chance.randrange(rows))] = b"w" * 100
                    done += 1
                figures[name]["U-1"].append(done / seconds)
            with azekura.open(stores[name], cache_bytes=2 << 20, direct_pages=True, **more) as db:
                with db.snapshot() as snap:
                    get, chance, done = snap.table("rows").get, random.Random(8), 0
                    end = time.perf_counter() + seconds
                    while time.perf_counter() < end:
                        get(key(chance.randrange(rows)))
                        done += 1
                    del get  # it keeps the snapshot open
                figures[name]["cold"].append(done / seconds)
    result = []
    for what, goal in [("U-1", 0.9), ("cold", 0.85)]:
        plain, sealed = (statistics.median(figures[name][what]) for name in options)
        label = "durable updates of one row" if what == "U-1" else "cold reads"
        value = f"{sealed:,.0f} of {plain:,.0f}"
        result.append((f"encrypted {label}, 1 thread", value, sealed / plain, goal))
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["backup", "compaction", "encryption"])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as directory:
        rows = globals()[arguments.part](directory, arguments.mib, arguments.seconds)
    for figure, value, ratio, goal in rows:
        verdict = "met" if ratio >= goal else "**not met**"
        print(f"| {figure} | {value} | {ratio:.2f} | ≥ {goal:.2f}: {verdict} |")


if __name__ == "__main__":
    main()
