#!/usr/bin/env python3
"""Measures `azekura serve` beside redis-server by redis-benchmark, and prints a table with the lowest ratios
first.

    cargo build --release -p azekura-cli
    scripts/server-table.py --quick                        # the main rows once, about four minutes
    scripts/server-table.py --markdown table.md            # all rows, three rounds, about forty minutes
    scripts/server-table.py --rows 'GET.*1 MB'             # rows with a matching name
    scripts/server-table.py --sections durable,one-node    # some sections

| section | server | compared with |
|---|---|---|
| durable | `azekura serve` | Redis, `appendfsync always` |
| relaxed | `azekura serve --durability relaxed`, writes | Redis, `appendfsync everysec` |
| unix | `azekura serve --listen unix:PATH` | Redis with `appendfsync always` by its own Unix socket |
| unix-tcp | `azekura serve --listen unix:PATH` | `azekura serve` by TCP |
| one-node | a cluster of one node, which has all keys | `azekura serve` |
| three-nodes | a cluster of three nodes on this machine; all clients at the first one | `azekura serve` |

The servers of a section run side by side with the same keys, and are asked in turns: each round measures
each of them once. The number of requests of a row is that of `--seconds` at the slower server. A cell is the
median of the rounds. The CPU time of a request is that of all threads of the server; where redis-benchmark is
the limit, it says more than the rate. The keys are random ones of a fixed set. A SCAN is `SCAN 0 COUNT 100`,
an MGET has ten keys, and a DEL removes keys that were loaded before, or were removed already.

It needs redis-server and redis-benchmark 7, and starts and stops its own servers. Redis saves no snapshots.
Rows with more than 128 MiB in flight are left out.
"""

import argparse
import csv
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = [100, 4 << 10, 64 << 10, 1_000_000]
KEYS = {100: 100_000, 4 << 10: 10_000, 64 << 10: 1_000, 1_000_000: 50}
MAX_IN_FLIGHT = 128 << 20
MGET_KEYS = 10
# CPUCLOCK_SCHED: the clock that counts scheduled nanoseconds.
CPU_CLOCK = 2
WRITES = ("SET", "INCR", "DEL")


def key_name(number):
    return f"key:{number:012}"


def size_name(size):
    return {100: "100 B", 4 << 10: "4 KiB", 64 << 10: "64 KiB", 1_000_000: "1 MB"}[size]


class Row:
    def __init__(self, command, connections, pipeline, size):
        self.command, self.connections, self.pipeline, self.size = command, connections, pipeline, size

    @property
    def name(self):
        pipelines = f", pipelines of {self.pipeline}" if self.pipeline > 1 else ""
        plural = "s" if self.connections > 1 else ""
        size = f" {size_name(self.size)}" if self.command in ("SET", "GET", "MGET") else ""
        return f"{self.command}{size}, {self.connections} connection{plural}{pipelines}"

    def fits(self):
        values = MGET_KEYS if self.command == "MGET" else 1
        return values * self.size * self.connections * self.pipeline <= MAX_IN_FLIGHT

    def arguments(self):
        keys = KEYS[self.size]
        own = {
            "SET": ["-t", "set", "-d", str(self.size)],
            "GET": ["-t", "get"],
            "INCR": ["-t", "incr"],
            "MGET": ["MGET"] + ["key:__rand_int__"] * MGET_KEYS,
            "DEL": ["DEL", "key:__rand_int__"],
            "SCAN": ["SCAN", "0", "COUNT", "100"],
        }[self.command]
        return ["-c", str(self.connections), "-P", str(self.pipeline), "-r", str(keys), "--csv"], own


def rows_of(section, quick):
    """The rows of a section, by value size: the servers load the keys of a size once."""
    is_beside_plain = section in ("one-node", "three-nodes", "unix", "unix-tcp")
    connections = [1, 50, 1000] if quick else [1, 50, 200, 1000]
    if section in ("unix", "unix-tcp"):
        connections = [1, 50]
    sizes = [100] if is_beside_plain or (quick and section == "relaxed") else SIZES
    for size in sizes:
        commands = ["GET", "MGET", "SCAN", "SET", "INCR", "DEL"] if size == 100 else ["GET", "MGET", "SET"]
        if section == "relaxed":
            commands = [command for command in commands if command in WRITES]
        elif section in ("unix", "unix-tcp"):
            commands = ["GET", "SET"]
        for command in commands:
            for count in [50] if quick and size > 100 else connections:
                for pipeline in [1] if quick and size > 100 else [1, 16]:
                    row = Row(command, count, pipeline, size)
                    if row.fits():
                        yield row


class Failed(Exception):
    """redis-benchmark ended at an error of the server; the row has no figures."""


class Server:
    """A running server; `at` has the options of redis-benchmark for its address."""

    def __init__(self, scratch, name, command=None, unix=None, cluster=None):
        self.name, self.unix, self.port, self.process, self.pids = name, unix, None, None, []
        self.scratch, self.cluster = scratch / name, cluster
        self.scratch.mkdir()
        if cluster:
            self.start_cluster(command)
        else:
            self.process = subprocess.Popen(command(self), stdout=(self.scratch / "out").open("w"),
                                            stderr=(self.scratch / "err").open("w"))
            self.pids = [self.process.pid]
        self.wait()

    def start_cluster(self, azekura):
        self.azekura, self.dir = azekura, self.scratch / "cluster"
        firsts = [key_name(KEYS[100] * i // self.cluster) for i in range(1, self.cluster)]
        split = [f"--split-at={','.join(firsts)}"] if firsts else []
        command = [azekura, "cluster", "start", "--dir", self.dir, "--nodes", str(self.cluster)]
        started = subprocess.run(command + split, capture_output=True, text=True)
        found = re.search(r"serves clients on [0-9.]*:(\d+)", started.stdout)
        if not found:
            sys.exit(f"the cluster does not start: {started.stdout}{started.stderr}")
        self.port = int(found[1])
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(self.dir) in words and int(process.name) != os.getpid():
                self.pids.append(int(process.name))

    def connect(self):
        if self.unix:
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(self.unix))
        else:
            client = socket.create_connection(("127.0.0.1", self.port))
        client.settimeout(120)
        return client

    def wait(self):
        for _ in range(200):
            try:
                with self.connect() as client:
                    client.sendall(b"PING\r\n")
                    if client.recv(100).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.05)
        sys.exit(f"{self.name} does not start: {(self.scratch / 'err').read_text()[-500:]}")

    @property
    def at(self):
        return ["-s", str(self.unix)] if self.unix else ["-p", str(self.port)]

    def cpu(self):
        """Returns the processor time of all threads so far, in seconds, by the CPU clock of each process."""
        return sum(time.clock_gettime((~pid << 3) | CPU_CLOCK) for pid in self.pids)

    def ask(self, client, request, replies):
        """Sends requests without values in their replies, and waits for all replies."""
        client.sendall(request)
        while replies > 0:
            got = client.recv(1 << 16)
            if not got or b"-" in got:
                sys.exit(f"{self.name} replied {got[:200]!r}")
            replies -= got.count(b"\n")

    def load(self, size, fresh=True):
        with self.connect() as client:
            if fresh:
                self.ask(client, b"FLUSHALL\r\n", 1)
            value = b"$%d\r\n%s\r\n" % (size, b"x" * size)
            step = max(1, min(1000, (1 << 20) // size))
            for first in range(0, KEYS[size], step):
                numbers = range(first, min(first + step, KEYS[size]))
                names = [key_name(number).encode() for number in numbers]
                sets = [b"*3\r\n$3\r\nSET\r\n$16\r\n%s\r\n%s" % (name, value) for name in names]
                self.ask(client, b"".join(sets), len(sets))

    def benchmark(self, row, requests):
        """Returns the rate, p50 and p99 in milliseconds, and the CPU time of a request in microseconds."""
        common, own = row.arguments()
        before = self.cpu()
        done = subprocess.run(["redis-benchmark", *self.at, *common, "-n", str(requests), *own],
                              capture_output=True, text=True, timeout=600)
        spent = self.cpu() - before
        lines = [line for line in csv.reader(done.stdout.splitlines()) if len(line) == 8]
        if done.returncode or len(lines) != 2 or "rror" in done.stdout + done.stderr:
            raise Failed(f"{row.name}, {self.name}: {done.stdout[-300:]}{done.stderr[-300:]}")
        _, rate, _, _, p50, _, p99, _ = lines[1]
        return float(rate), float(p50), float(p99), spent * 1e6 / requests

    def stop(self):
        if self.cluster:
            subprocess.run([self.azekura, "cluster", "stop", "--dir", self.dir], capture_output=True)
        else:
            self.process.terminate()
            self.process.wait(60)
        shutil.rmtree(self.scratch, ignore_errors=True)


def redis(sync, unix=False):
    def start(scratch):
        name = f"redis {sync}{' unix' if unix else ''}"

        def command(server):
            server.port = free_port()
            server.unix = server.scratch / "socket" if unix else None
            place = ["--port", "0", "--unixsocket", server.unix] if unix else ["--port", str(server.port)]
            # 1,000 connections at once need a longer queue than the default.
            return ["redis-server", *place, "--dir", server.scratch, "--save", "", "--appendonly", "yes",
                    "--appendfsync", sync, "--tcp-backlog", "1024"]

        return Server(scratch, name, command)

    return start


def plain(azekura, *options, unix=False):
    def start(scratch):
        def command(server):
            server.port = free_port()
            server.unix = server.scratch / "socket" if unix else None
            address = f"unix:{server.unix}" if unix else f"127.0.0.1:{server.port}"
            return [azekura, "serve", server.scratch / "db", "--listen", address, "--max-clients", "1100",
                    *options]

        return Server(scratch, "azekura unix" if unix else "azekura", command)

    return start


def nodes(azekura, count):
    return lambda scratch: Server(scratch, f"{count} nodes", azekura, cluster=count)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def sections(azekura):
    return {
        "durable": (plain(azekura), redis("always")),
        "relaxed": (plain(azekura, "--durability", "relaxed"), redis("everysec")),
        "unix": (plain(azekura, unix=True), redis("always", unix=True)),
        "unix-tcp": (plain(azekura, unix=True), plain(azekura)),
        "one-node": (nodes(azekura, 1), plain(azekura)),
        "three-nodes": (nodes(azekura, 3), plain(azekura)),
    }


def measure(servers, row, rounds, seconds):
    probe = max(row.connections * row.pipeline * 2, 200)
    slowest = min(server.benchmark(row, probe)[0] for server in servers)
    requests = max(int(slowest * seconds), probe)
    if row.command == "DEL":
        requests = min(requests, KEYS[row.size])
    results = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers if number % 2 == 0 else reversed(servers):
            if row.command == "DEL":
                server.load(row.size, fresh=False)
            results[server.name].append(server.benchmark(row, requests))
    return [results[server.name] for server in servers]


def median(results, at):
    return statistics.median(result[at] for result in results)


def line_of(section, row, own, other):
    ratio = statistics.median(mine[0] / peer[0] for mine, peer in zip(own, other))
    spent, peer_spent = median(own, 3), median(other, 3)
    cpu = peer_spent / spent if spent > 0 else float("nan")
    return {"section": section, "row": row.name, "ratio": ratio, "cpu": cpu, "own": own, "other": other}


def bold(ratio):
    return f"**{ratio:.2f}**" if ratio < 1 else f"{ratio:.2f}"


def table(lines):
    yield "| section | row | rate | CPU | requests/s | p50 ms | p99 ms | CPU µs of a request |"
    yield "|---|---|---|---|---|---|---|---|"
    for line in sorted(lines, key=lambda line: line["ratio"]):
        own, other = line["own"], line["other"]
        pairs = [f"{median(own, at):,.{digits}f} : {median(other, at):,.{digits}f}"
                 for at, digits in ((0, 0), (1, 2), (2, 2), (3, 1))]
        cells = [line["section"], line["row"], bold(line["ratio"]), bold(line["cpu"]), *pairs]
        yield f"| {' | '.join(cells)} |"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def report(lines, options, load):
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), "unknown processor")
    commit, version = output("git", "-C", HERE, "rev-parse", "--short", "HEAD"), output("redis-server", "-v")
    yield f"{cpu}, {os.cpu_count()} cores, Linux {os.uname().release}; {time.strftime('%Y-%m-%d')}, commit " \
          f"`{commit.strip()}`, Redis {version.split()[2][2:]}."
    yield f"{options.rounds} rounds of {options.seconds} s. Load average {load} before and " \
          f"{os.getloadavg()[0]:.1f} at the end; the servers and redis-benchmark alone make 2 to 3."
    yield ""
    yield "*rate*: requests per second divided by those of the compared server. *CPU*: CPU time of a request"
    yield "of the compared server divided by that of Azekura. Below 1, in bold, Azekura is behind."
    yield "Pairs: Azekura : compared."
    yield ""
    yield from table(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--azekura", type=Path, default=HERE.parent / "target/release/azekura")
    parser.add_argument("--quick", action="store_true", help="fewer rows, one round of 0.4 s")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--sections", default="", help="comma-separated names")
    parser.add_argument("--rows", default="", help="regular expression for the names of rows")
    parser.add_argument("--markdown", type=Path, help="writes the table to this file, too")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.4 if options.quick else 1.5)
    for program in ("redis-server", "redis-benchmark"):
        if not shutil.which(program):
            sys.exit(f"{program} is missing; Debian has it in redis-server and redis-tools")
    azekura = options.azekura.resolve()
    if not azekura.exists():
        sys.exit(f"{azekura} is missing; cargo build --release -p azekura-cli makes it")
    every, load, lines, failures = sections(azekura), f"{os.getloadavg()[0]:.1f}", [], []
    for section in options.sections.split(",") if options.sections else every:
        if section not in every:
            sys.exit(f"no section {section!r}; there are {', '.join(every)}")
        rows = [row for row in rows_of(section, options.quick) if re.search(options.rows, row.name)]
        if not rows:
            continue
        with tempfile.TemporaryDirectory(prefix="server-table.") as scratch:
            servers = []
            try:
                for start in every[section]:
                    servers.append(start(Path(scratch)))
                loaded = None
                for row in rows:
                    if row.size != loaded:
                        for server in servers:
                            server.load(row.size)
                        loaded = row.size
                    try:
                        own, other = measure(servers, row, options.rounds, options.seconds)
                    except Failed as failure:
                        failures.append(f"{section}: {failure}")
                        print(f"failed: {failures[-1]}", file=sys.stderr, flush=True)
                        continue
                    lines.append(line_of(section, row, own, other))
                    print(f"{section}: {row.name}: {lines[-1]['ratio']:.2f}", file=sys.stderr, flush=True)
            finally:
                for server in servers:
                    server.stop()
    text = "\n".join(report(lines, options, load))
    print(text)
    if options.markdown:
        options.markdown.write_text(f"# The server beside Redis\n\n{text}\n")
    sys.exit(f"{len(failures)} rows without figures" if failures else 0)


if __name__ == "__main__":
    main()
