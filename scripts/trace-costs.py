#!/usr/bin/env python3
"""Measures the cost of recording, in pairs with and without a recorder.

    cargo build --release
    scripts/trace-costs.py target/release/azekura [--runs N] [--only WORD] [--json]

Small programs (crates/record/tests/planted/costs.c) run in turn without a recorder, with `azekura trace
record`, and with those of uftrace, `perf trace` and bpftrace (off-CPU stacks) that are installed. The cost is
the CPU time per operation of the program itself.

MariaDB, if it and sysbench are installed: two servers with equal data, one of them recorded, serve slices of
`oltp_read_write` in the order plain, recorded, recorded, plain. The cost is the CPU time of the server per
transaction, and the transactions per second. One plain server beside another plain one shows the error of the
method.

Prints for each pair the median of the ratios to the runs without a recorder, and their quartiles.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "crates/record/tests/planted/costs.c"
# Iterations of each program, and the part of them for recorders that are too slow for all.
PROGRAMS = {"mutex": 20_000_000, "read": 1_000_000, "threads": 5_000, "contended": 1_000_000}
SLOW = 20
OFF_CPU = "tracepoint:sched:sched_switch { @off[tid] = nsecs; @from[args->prev_pid] = nsecs; " \
    "if (@from[args->next_pid]) { @ns[args->next_pid, ustack(8)] = sum(nsecs - @from[args->next_pid]); } }"
TABLES = ["--tables=4", "--table-size=50000"]
SERVER = [
    "--no-defaults", "--user=root", "--skip-networking", "--innodb-buffer-pool-size=512M",
    "--innodb-flush-log-at-trx-commit=2",
]


def recorders(azekura, directory):
    """Returns the commands of the recorders, by name, and whether they get fewer iterations."""
    found = {
        "none": ([], False),
        "azekura": ([azekura, "trace", "record", "-o", f"{directory}/trace", "--"], False),
    }
    if shutil.which("uftrace"):
        found["uftrace"] = (["uftrace", "record", "--force", "-d", f"{directory}/uftrace"], True)
    if shutil.which("perf") and os.geteuid() == 0:
        found["perf trace"] = (["perf", "trace", "-s", "-o", f"{directory}/perf"], True)
    if shutil.which("bpftrace") and os.geteuid() == 0:
        found["bpftrace"] = (["bpftrace", "-o", f"{directory}/bpf", "-e", OFF_CPU, "-c"], False)
    return found


def small_programs(azekura, directory, runs, only, report):
    program = f"{directory}/costs"
    subprocess.run(["cc", "-g", "-O1", "-pthread", "-o", program, SOURCE], check=True)
    for name, count in PROGRAMS.items():
        if only not in name:
            continue
        ratios, costs = {}, {}
        for _ in range(runs):
            plain = None
            for recorder, (command, is_slow) in recorders(azekura, directory).items():
                run = [program, name, str(count // SLOW if is_slow else count)]
                command = [*command, " ".join(run)] if recorder == "bpftrace" else [*command, *run]
                done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
                found = re.search(r"^(\d+\.\d+) (\d+\.\d+)$", done.stdout, re.M)
                if not found:
                    print(f"{recorder}: no result: {done.stderr.strip()[-200:]}", file=sys.stderr)
                    continue
                cpu = float(found[2])
                plain = cpu if recorder == "none" else plain
                costs.setdefault(recorder, []).append(cpu)
                ratios.setdefault(recorder, []).append(cpu / plain)
                shutil.rmtree(f"{directory}/uftrace", ignore_errors=True)
        for recorder, of in ratios.items():
            report(name, recorder, f"{statistics.median(costs[recorder]):.1f} ns", of)


def cpu_seconds(pid):
    """Returns the CPU time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A MariaDB server."""

    def __init__(self, directory, recorder):
        self.directory, self.socket = directory, f"{directory}/socket"
        command = ["mariadbd", *SERVER, f"--datadir={directory}/data", f"--socket={self.socket}"]
        command += [f"--pid-file={directory}/pid", f"--log-error={directory}/log"]
        self.process = subprocess.Popen([*recorder, *command], stderr=subprocess.DEVNULL)
        while not os.path.exists(f"{directory}/pid") or not os.path.exists(self.socket):
            if self.process.poll() is not None:
                sys.exit(f"the server has ended: {pathlib.Path(directory, 'log').read_text()[-500:]}")
            time.sleep(0.1)
        self.pid = int(pathlib.Path(directory, "pid").read_text())

    def sysbench(self, *arguments):
        command = ["sysbench", "--db-driver=mysql", f"--mysql-socket={self.socket}", "--mysql-user=root"]
        command += ["--mysql-db=test", *TABLES, "oltp_read_write", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"sysbench: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout

    def slice(self, seconds):
        """Returns the transactions per second and the CPU time of the server per transaction."""
        before = cpu_seconds(self.pid)
        text = self.sysbench("--threads=16", f"--time={seconds}", "run")
        rate = float(re.search(r"transactions:\s+\d+\s+\(([\d.]+) per sec", text)[1])
        return rate, (cpu_seconds(self.pid) - before) / (rate * seconds)

    def stop(self):
        os.kill(self.pid, signal.SIGTERM)
        self.process.wait()


def mariadb(azekura, directory, blocks, report):
    if not shutil.which("mariadbd") or not shutil.which("sysbench"):
        return
    first = pathlib.Path(directory, "first")
    first.mkdir()
    install = ["mariadb-install-db", "--user=root", f"--datadir={first}/data"]
    install += ["--auth-root-authentication-method=normal"]
    subprocess.run(install, check=True, capture_output=True)
    server = Server(first, [])
    server.sysbench("prepare")
    server.stop()
    record = [azekura, "trace", "record", "-o", f"{directory}/mariadb.trace", "--"]
    for name, recorder in {"azekura": record, "none": []}.items():
        second = pathlib.Path(directory, f"second-{name}")
        shutil.copytree(first, second)
        servers = [Server(first, []), Server(second, recorder)]
        for server in servers:
            server.slice(3)
        rates, costs = [], []
        for _ in range(blocks):
            plain, other, again, last = (servers[of].slice(3) for of in (0, 1, 1, 0))
            rates.append((other[0] + again[0]) / (plain[0] + last[0]))
            costs.append((other[1] + again[1]) / (plain[1] + last[1]))
        for server in servers:
            server.stop()
        shutil.rmtree(second)
        report("MariaDB, CPU time per transaction", name, "", costs)
        report("MariaDB, transactions per second", name, "", rates)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("azekura")
    parser.add_argument("--runs", type=int, default=9, help="pairs of runs")
    parser.add_argument("--only", default="", help="only programs with this text in their name")
    parser.add_argument("--json", action="store_true", help="one JSON object for each line")
    given = parser.parse_args()

    def report(program, recorder, cost, ratios):
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        row = {"program": program, "recorder": recorder, "cost": cost, "ratio": round(middle, 4),
               "quartiles": [round(low, 4), round(high, 4)], "pairs": len(ratios)}
        text = f"{program:34} {recorder:11} {cost:>12} {middle:8.3f} ({low:.3f} to {high:.3f})"
        print(json.dumps(row) if given.json else text, flush=True)

    azekura = os.path.abspath(given.azekura)
    with tempfile.TemporaryDirectory() as directory:
        small_programs(azekura, directory, given.runs, given.only, report)
        if given.only in "mariadb":
            mariadb(azekura, directory, given.runs, report)


if __name__ == "__main__":
    main()
