#!/usr/bin/env python3
"""Measures the rate of `azekura serve` while its data grow beyond its page cache or its memory, as a table.

    cargo build --release -p azekura-cli
    scripts/server-growth.py                                  # default settings, one minute
    scripts/server-growth.py --cache 256M                     # a page cache that the data exceed
    scripts/server-growth.py --memory 256 --markdown out.md   # MiB, in a memory control group (root)

redis-benchmark sends SETs of random keys with values of 400 bytes, 50 connections, pipelines of 64, and
durable writes. Each line has the rate since the line before, the number of keys, the server's processor time,
the bytes that it has read from the device, and the bytes of its write calls. The last line compares the last
quarter of the time with the first one.

It needs redis-benchmark 7. It starts and stops its own server, and removes its files and its control group.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VALUE_BYTES = 400
CONNECTIONS, PIPELINE = 50, 64
PERIOD = 5


class Group:
    """A memory control group, of version 1 or 2."""

    def __init__(self, mib):
        root = Path("/sys/fs/cgroup")
        version_1 = (root / "memory").is_dir()
        self.path = (root / "memory" if version_1 else root) / f"azekura-growth-{os.getpid()}"
        try:
            self.path.mkdir()
            limit = "memory.limit_in_bytes" if version_1 else "memory.max"
            (self.path / limit).write_text(str(mib << 20))
        except OSError as error:
            sys.exit(f"no memory control group: {error}; run as root, or without --memory")

    def enter(self):
        (self.path / "cgroup.procs").write_text("0")

    def remove(self):
        for _ in range(100):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.05)


def ask(port, *words):
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        client.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        reply = client.makefile("rb")
        head = reply.readline().strip()
        if head[:1] == b"-":
            sys.exit(f"{words[0].decode()}: {head.decode()}")
        if head[:1] == b"$":
            return reply.read(int(head[1:])).decode()
        return head[1:].decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, options, scratch, group):
        self.port, errors = free_port(), scratch / "err"
        command = [options.azekura.resolve(), "serve", scratch / "db", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--cache", options.cache] if options.cache else []
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors.open("w"),
                                        preexec_fn=group.enter if group else None)
        for _ in range(200):
            try:
                ask(self.port, b"PING")
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"the server does not start: {errors.read_text()[-500:]}")

    def now(self):
        """Returns time, commands, keys, CPU seconds, bytes read from the device, and bytes of write calls."""
        info = dict(line.split(":", 1) for line in ask(self.port, b"INFO").splitlines() if ":" in line)
        proc = Path(f"/proc/{self.process.pid}")
        ticks = (proc / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
        io = dict(line.split(": ") for line in (proc / "io").read_text().splitlines())
        cpu = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        keys = int(ask(self.port, b"DBSIZE"))
        return (time.monotonic(), int(info["total_commands_processed"]), keys, cpu, int(io["read_bytes"]),
                int(io["wchar"]))


def measure(options, server):
    load = ["redis-benchmark", "-p", str(server.port), "-t", "set", "-d", str(VALUE_BYTES), "-r",
            str(options.keys), "-n", "1000000000", "-c", str(CONNECTIONS), "-P", str(PIPELINE)]
    begin = last = server.now()
    clients = subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = []
    try:
        while last[0] - begin[0] < options.seconds:
            time.sleep(PERIOD)
            if clients.poll() is not None or server.process.poll() is not None:
                sys.exit(f"ended early: clients {clients.poll()}, server {server.process.poll()}")
            now = server.now()
            time_spent = now[0] - last[0]
            rates = [(after - before) / time_spent for after, before in zip(now[1:], last[1:])]
            line = dict(zip(("rate", "new", "cpu", "read", "written"), rates))
            lines.append(line | {"seconds": now[0] - begin[0], "keys": now[2]})
            seconds, rate = lines[-1]["seconds"], line["rate"] / 1e3
            print(f"{seconds:.0f} s: {rate:.1f} k/s", file=sys.stderr, flush=True)
            last = now
    finally:
        clients.terminate()
        clients.wait()
    return lines


def table(options, lines):
    memory = f"control group of {options.memory} MiB" if options.memory else "no control group"
    cache = f"page cache of {options.cache}" if options.cache else "default page cache"
    yield f"{cache}, {memory}; {options.keys:,} possible keys. Load average {os.getloadavg()[0]:.1f} at the"
    yield "end; server and clients alone make 2 to 3."
    yield ""
    yield "| s | SETs/s | keys | processors | read MB/s | written MB/s |"
    yield "|---|---|---|---|---|---|"
    for line in lines:
        yield f"| {line['seconds']:.0f} | {line['rate']:,.0f} | {line['keys']:,} | {line['cpu']:.2f} " \
              f"| {line['read'] / 1e6:.1f} | {line['written'] / 1e6:.1f} |"
    quarter = max(1, len(lines) // 4)
    parts = lines[:quarter], lines[-quarter:]
    first, last = (sum(line["rate"] for line in part) / quarter for part in parts)
    yield ""
    yield f"Last quarter of the time: {last:,.0f} SETs/s, {last / first:.2f} of the first one."


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--azekura", type=Path, default=HERE.parent / "target/release/azekura")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keys", type=int, default=3_000_000, help="number of possible keys")
    parser.add_argument("--cache", help="page cache of the server, such as 256M")
    parser.add_argument("--memory", type=int, help="limit of a memory control group, in MiB")
    parser.add_argument("--markdown", type=Path, help="writes the table to this file, too")
    options = parser.parse_args()
    if not shutil.which("redis-benchmark"):
        sys.exit("redis-benchmark is missing; Debian has it in redis-tools")
    if not options.azekura.exists():
        sys.exit(f"{options.azekura} is missing; cargo build --release -p azekura-cli makes it")
    group = Group(options.memory) if options.memory else None
    try:
        with tempfile.TemporaryDirectory(prefix="server-growth.") as scratch:
            server = Server(options, Path(scratch), group)
            try:
                lines = measure(options, server)
            finally:
                server.process.terminate()
                server.process.wait(120)
    finally:
        if group:
            group.remove()
    text = "\n".join(table(options, lines))
    print(text)
    if options.markdown:
        options.markdown.write_text(f"# The server while its data grow\n\n{text}\n")


if __name__ == "__main__":
    main()
