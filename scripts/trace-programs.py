#!/usr/bin/env python3
"""Records real programs with a planted bottleneck, proves the bottleneck, and compares the verdict with it.

    cargo build -p azekura-cli
    scripts/trace-programs.py target/debug/azekura [--json] [--only WORD]

Each program runs three times with the same load: with the bottleneck, without it, and with it under the
recorder. The bottleneck is proven if the run without it does at least half as much again. A verdict is
`right`, `wrong`, or `unknown` as in `scripts/trace-collection.py`; `unproven` if the two runs do not differ
(the disk is in memory, others use the machine), `disturbed` if other programs keep the processors busy, and
`skipped`, with the name of the program, if it is not installed. Exit code 1 if a verdict is wrong, 2 if
nothing was judged.

| program | planted bottleneck | cure | truth |
|---|---|---|---|
| redis-server | `appendfsync always` | `no` | storage device |
| MariaDB | six clients take one user lock and sleep | a lock of each | lock below `MDL_wait` |
| PostgreSQL | a commit for each row | `synchronous_commit=off` | storage device |
| nginx | gzip at level 9 | no gzip | processors |
| Java | six threads in one synchronized method | objects of each | lock |
| CPython | six threads under one `threading.Lock` | a lock of each | lock |
| Go | | | refused before it starts |
"""
import argparse
import concurrent.futures
import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "crates/record/tests/programs"
# Seconds of a load, and the time limit of a start or an end.
LOAD, MOST = 3.0, 90
CLIENTS = 6
# Least ratio of the work without the bottleneck to that with it, as proof of the bottleneck.
PROVEN = 1.5
# Share of the used processor time below which a run is not judged, because other programs kept the processors
# busy.
OWN = 0.5
NOBODY = "nobody"


class Missing(Exception):
    """A program that is not installed."""


def find(*names):
    """Returns the first of the programs that is installed; names may be patterns of paths."""
    for name in names:
        found = shutil.which(name) or next(iter(sorted(glob.glob(name), reverse=True)), None)
        if found:
            return found
    raise Missing(names[0])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def until(is_true):
    end = time.monotonic() + MOST
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            if is_true():
                return
        time.sleep(0.1)
    raise RuntimeError("the program did not start")


@contextlib.contextmanager
def running(command, is_ready, **more):
    """Runs a server until the block ends; SIGTERM ends it, and the recorder passes it on."""
    with tempfile.TemporaryFile() as said:
        server = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, **more)
        try:
            until(lambda: server.poll() is None and is_ready())
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(MOST)
            except subprocess.TimeoutExpired:
                server.kill()
                raise RuntimeError(f"{command[-1]} did not end") from None


def count_calls(work, clients):
    """Calls `work(client)` from so many threads for the time of a load; returns the calls per second."""
    end = time.monotonic() + LOAD

    def client(number):
        calls = 0
        while time.monotonic() < end:
            work(number)
            calls += 1
        return calls

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(client, range(clients))) / LOAD


def redis(prefix, is_planted, directory):
    server, bench = find("redis-server"), find("redis-benchmark")
    port = str(free_port())
    sync = "always" if is_planted else "no"
    command = [server, "--port", port, "--save", "", "--appendonly", "yes", "--appendfsync", sync]
    command += ["--dir", directory]
    ready = lambda: socket.create_connection(("127.0.0.1", int(port)), 1).close() is None
    with running([*prefix, *command], ready):
        begun, sets = time.monotonic(), 0
        while time.monotonic() < begun + LOAD:
            call(bench, "-p", port, "-t", "set", "-n", "500", "-c", "8", "-q")
            sets += 500
        return sets / (time.monotonic() - begun)


def mariadb(prefix, is_planted, directory):
    server, client, install = find("mariadbd"), find("mariadb"), find("mariadb-install-db")
    data, place = f"{directory}/data", f"{directory}/socket"
    common = ["--no-defaults", f"--datadir={data}", "--user=root"]
    call(install, *common, "--auth-root-authentication-method=normal")
    command = [server, *common, f"--socket={place}", "--skip-networking"]
    connect = [client, "--no-defaults", f"--socket={place}", "--user=root", "-N", "-s"]
    rounds = 150

    def session(number):
        lock = "bank" if is_planted else f"bank{number}"
        post = f"SELECT GET_LOCK('{lock}', 60); DO SLEEP(0.004); DO RELEASE_LOCK('{lock}');\n"
        call(*connect, input=post * rounds)

    with running([*prefix, *command], lambda: call(*connect, "-e", "SELECT 1")):
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(session, range(CLIENTS)))
        return CLIENTS * rounds / (time.monotonic() - begun)


def postgres(prefix, is_planted, directory):
    pattern = "/usr/lib/postgresql/*/bin/"
    server, make = find(pattern + "postgres"), find(pattern + "initdb")
    client = find(pattern + "psql", "psql")
    # The server refuses to run as root. A recorder of the same user records it.
    other = [find("setpriv"), f"--reuid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
    if other:
        shutil.chown(directory, NOBODY)
    data = f"{directory}/data"
    environment = dict(os.environ, TMPDIR=directory, HOME=directory)
    call(*other, make, "-D", data, "-U", "bank", "-A", "trust", env=environment, cwd=directory)
    commit = "on" if is_planted else "off"
    port = str(free_port())
    options = {"unix_socket_directories": directory, "listen_addresses": "", "port": port,
               "synchronous_commit": commit}
    settings = (word for name, value in options.items() for word in ("-c", f"{name}={value}"))
    command = [server, "-D", data, *settings]
    connect = [client, "-h", directory, "-p", port, "-U", "bank", "-q", "-t", "bank"]
    first = [*connect[:-1], "postgres"]
    is_up = lambda: call(*first, "-c", "SELECT 1")
    with running([*other, *prefix, *command], is_up, env=environment, cwd=directory):
        call(*first, "-c", "CREATE DATABASE bank")
        call(*connect, "-c", "CREATE TABLE posted (n int)")
        rows, begun = 0, time.monotonic()
        while time.monotonic() < begun + LOAD:
            call(*connect, input="INSERT INTO posted VALUES (1);\n" * 1000)
            rows += 1000
        return rows / (time.monotonic() - begun)


def nginx(prefix, is_planted, directory):
    server, port = find("nginx"), free_port()
    pathlib.Path(directory, "page.txt").write_text(" ".join(str(n * n) for n in range(150_000)))
    os.chmod(directory, 0o755)
    gzip = "gzip on; gzip_comp_level 9; gzip_types text/plain;" if is_planted else "gzip off;"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds)
    pathlib.Path(directory, "conf").write_text(
        f"daemon off; worker_processes 1; pid {directory}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {gzip} {paths} types {{ text/plain txt; }}\n"
        f"server {{ listen 127.0.0.1:{port}; root {directory}; }} }}\n"
    )
    request = urllib.request.Request(f"http://127.0.0.1:{port}/page.txt", headers={"Accept-Encoding": "gzip"})

    def get(_):
        with urllib.request.urlopen(request, timeout=MOST) as reply:
            while reply.read(1 << 20):
                pass

    ready = lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None
    with running([*prefix, server, "-p", directory, "-c", f"{directory}/conf"], ready):
        return count_calls(get, 2)


def bank(command, prefix, is_planted):
    said = call(*prefix, *command, "shared" if is_planted else "own", str(LOAD))
    return int(re.search(r"^\d+$", said, re.MULTILINE).group())


def java(prefix, is_planted, directory):
    # The virtual machine itself, because a wrapper script would be recorded too.
    compiler, machine = find("javac"), os.path.realpath(find("java"))
    call(compiler, "-d", directory, str(SOURCES / "Bank.java"))
    return bank([machine, "-Xmx64m", "-XX:+UseSerialGC", "-cp", directory, "Bank"], prefix, is_planted)


def cpython(prefix, is_planted, directory):
    return bank([os.path.realpath(sys.executable), str(SOURCES / "bank.py")], prefix, is_planted)


def refuses_go(azekura, directory):
    """Returns whether a program of Go is refused before it starts, and what the recorder says."""
    program = f"{directory}/bank"
    environment = dict(os.environ, GOCACHE=f"{directory}/cache", GOFLAGS="-mod=mod", CGO_ENABLED="0")
    call(find("go"), "build", "-o", program, str(SOURCES / "bank.go"), env=environment, cwd=directory)
    command = [azekura, "trace", "record", "-o", f"{directory}/run.trace", "--", program, "shared", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST)
    said = done.stderr.strip()
    return done.returncode != 0 and done.stdout == "" and "Go" in said, said


def is_storage(verdict):
    return verdict["what"] == "io" and verdict["kind"] == "device"


def is_processors(verdict):
    return verdict["what"] == "cpu"


def is_lock(word):
    return lambda verdict: verdict["what"] == "lock" and word in verdict["site"]


PROGRAMS = {
    "redis-server": (redis, is_storage),
    "mariadb": (mariadb, is_lock("MDL_wait")),
    "postgres": (postgres, is_storage),
    "nginx": (nginx, is_processors),
    "java": (java, is_lock("")),
    "cpython": (cpython, is_lock("PyThread_acquire_lock_timed")),
}


def main_analysis(azekura, directory):
    """Returns the analysis of the process that used most: of a server with several, the one with the load."""
    analyses = []
    for trace in pathlib.Path(directory).glob("run.trace*"):
        analyses.append(json.loads(call(azekura, "trace", "report", "--format", "json", str(trace))))
    waits = lambda analysis: sum(site["net_ns"] for site in analysis["sites"] if site["kind"] != "idle")
    return max(analyses, key=lambda analysis: analysis["recorded"]["process_cpu_ns"] + waits(analysis))


def judge(is_right, verdict):
    if is_right(verdict):
        return "right"
    if verdict["what"] == "cpu" and verdict["own"] < OWN:
        return "disturbed"
    return "unknown" if verdict["what"] in ("waits", "off_cpu") else "wrong"


def run(azekura, name):
    """Returns the result for a program and what was seen."""
    if name == "go":
        with tempfile.TemporaryDirectory() as directory:
            refused, said = refuses_go(azekura, directory)
            return ("right" if refused else "wrong"), said
    work, is_right = PROGRAMS[name]
    rates = []
    for is_planted in (True, False):
        with tempfile.TemporaryDirectory() as directory:
            rates.append(work([], is_planted, directory))
    ratio = rates[1] / max(rates[0], 1e-9)
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        prefix = [azekura, "trace", "record", "-o", f"{directory}/run.trace", "--"]
        recorded = work(prefix, True, directory)
        analysis = main_analysis(azekura, directory)
    verdict = analysis["verdict"]
    seen = f"{ratio:.1f} times without; {rates[0]:.0f}/s, {recorded:.0f}/s recorded; {json.dumps(verdict)}"
    return ("unproven" if ratio < PROVEN else judge(is_right, verdict)), seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("azekura")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--only", default="", help="only programs with this text in their name")
    given = parser.parse_args()
    azekura = os.path.abspath(given.azekura)
    results = {}
    for name in [*PROGRAMS, "go"]:
        if given.only not in name:
            continue
        try:
            result, seen = run(azekura, name)
        except Missing as missing:
            result, seen = "skipped", f"{missing} is not installed"
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            result, seen = "wrong", f"{type(error).__name__}: {error}"
        results[name] = {"result": result, "seen": seen}
        if not given.json:
            print(f"{result:9} {name:13} {seen}", flush=True)
    if given.json:
        print(json.dumps(results, ensure_ascii=False))
    outcomes = [result["result"] for result in results.values()]
    if not {"right", "wrong", "unknown"} & set(outcomes):
        return 2
    return int("wrong" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
