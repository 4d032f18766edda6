#!/usr/bin/env python3
"""Records small programs with a known bottleneck, and compares the verdict of the report with the truth.

    cargo build -p azekura-cli
    scripts/trace-collection.py target/debug/azekura [--json] [--only WORD] [--repeat N]

The sources and the table of truths are in crates/record/tests/collection. A verdict is `right`, `wrong`, or
`unknown` (the report says that the bottleneck is not known, and names the waits). A right verdict names the
lock's site and the operation as the truth does. A program whose compiler
or interpreter is not installed is skipped. Exit code 1 if fewer than 90 % of the verdicts are right or more
than 3 % are wrong, 2 if nothing could be judged. Where other programs use most of the processor time, "the
processors are busy" can be the truth of any program: such a run is `disturbed`, and is counted apart.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "crates/record/tests/collection"
MOST_SECONDS = 120
LEAST_RIGHT, MOST_WRONG = 0.90, 0.03
# Least share of the time in idle waits for which a report of idle threads is right.
IDLE = 0.5
# Least share of the wake-ups in vain for a thundering herd.
HERD = 0.5
# Share of the used processor time below which a run is not judged, because other programs kept the processors
# busy.
OWN = 0.5
COMPILERS = {
    ".c": ["cc", "-std=gnu11", "-g", "-O1", "-pthread"],
    ".cpp": ["c++", "-std=c++20", "-g", "-O1", "-pthread"],
    ".rs": ["rustc", "--edition", "2024", "-g", "-O"],
    ".java": ["javac"],
}
# Compiler options of single sources.
OPTIONS = {"mixed.cpp": ["-fopenmp"]}
INTERPRETERS = {".py": sys.executable, ".pl": "perl", ".rb": "ruby", ".js": "node"}


def commands(directory):
    """Returns the command of each source that can run here."""
    found = {}
    for source in sorted(SOURCES.glob("*.*")):
        if source.suffix not in (*INTERPRETERS, *COMPILERS):
            continue
        compiler = COMPILERS.get(source.suffix, [INTERPRETERS.get(source.suffix)])
        if shutil.which(compiler[0]) is None:
            continue
        if source.suffix in INTERPRETERS:
            # The interpreter itself, because a wrapper script would be recorded too.
            found[source.name] = [os.path.realpath(shutil.which(compiler[0])), str(source)]
            continue
        program = directory / source.name.replace(".", "-")
        if source.suffix == ".java":
            subprocess.run([*compiler, "-d", str(program), str(source)], check=True)
            # A compiled class and a small heap, so that the start of the virtual machine takes little time.
            java = os.path.realpath(shutil.which("java"))
            found[source.name] = [java, "-Xmx64m", "-XX:+UseSerialGC", "-cp", str(program), source.stem]
        else:
            options = OPTIONS.get(source.name, [])
            subprocess.run([*compiler, *options, "-o", str(program), str(source)], check=True)
            found[source.name] = [str(program)]
    return found


def recorded(azekura, directory, command):
    """Returns the analysis of one run, or a text that says why there is none."""
    trace = directory / "run.trace"
    run = [azekura, "trace", "record", "-o", str(trace), "--", *command]
    report = [azekura, "trace", "report", "--format", "json", str(trace)]
    try:
        done = subprocess.run(run, cwd=directory, capture_output=True, text=True, timeout=MOST_SECONDS)
        if done.returncode != 0:
            return f"the recorded program ended with {done.returncode}: {done.stderr.strip()[-200:]}"
        done = subprocess.run(report, capture_output=True, text=True, timeout=MOST_SECONDS)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()[-200:]
    except subprocess.TimeoutExpired:
        return f"no end after {MOST_SECONDS} s"


def judge(truth, verdict):
    """Returns the result for a verdict.

    Truths are words as `lock`, or `lock:WORD` for a site; `herd` is a lock that wakes all of its waiters.
    """
    what = verdict["what"]
    truth, _, word = truth.partition(":")
    if what == "cpu" and truth != "cpu" and verdict["own"] < OWN:
        return "disturbed"
    if truth == "idle":
        if what == "waits":
            return "right" if verdict["idle"] >= IDLE else "unknown"
        return "unknown" if what == "off_cpu" else "wrong"
    if what in ("waits", "off_cpu"):
        return "unknown"
    if truth in ("herd", "lock") and what == "lock" and (verdict["vain"] > HERD) != (truth == "herd"):
        return "wrong"
    truth = "lock" if truth == "herd" else truth
    if truth == "network":
        return "right" if what == "io" and verdict["kind"] == "network" else "wrong"
    if truth == "io":
        return "right" if what == "io" and verdict["kind"] == "device" else "wrong"
    return "right" if what == truth and word in verdict.get("site", "") else "wrong"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("azekura")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--only", default="", help="only programs with this text in their name")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each program")
    given = parser.parse_args()
    azekura = os.path.abspath(given.azekura)
    totals, results = {"right": 0, "wrong": 0, "unknown": 0, "disturbed": 0, "skipped": 0}, []
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        available = commands(directory)
        for line in (SOURCES / "truth.txt").read_text().splitlines():
            source, *arguments, truth, operation = line.split() if line[0] != "#" else [None] * 3
            name = " ".join([source or "", *arguments])
            if source is None or given.only not in name:
                continue
            for _ in range(given.repeat):
                said, busy = "", None
                if source not in available:
                    result = "skipped"
                else:
                    analysis = recorded(azekura, directory, [*available[source], *arguments])
                    if isinstance(analysis, str):
                        result, said = "wrong", analysis
                    else:
                        said = json.dumps(analysis["verdict"], ensure_ascii=False)
                        result = judge(truth, analysis["verdict"])
                        if result == "right" and operation != "-" and operation not in analysis["operation"]:
                            result = "wrong"
                        said += f" of {analysis['operation']}"
                        busy = analysis["machine_utilisation"]
                totals[result] += 1
                results.append(
                    {"program": name, "truth": truth, "result": result, "verdict": said, "machine_busy": busy}
                )
                if not given.json:
                    print(f"{result:9} {name:42} truth {truth:8} {said}", flush=True)
    judged = totals["right"] + totals["wrong"] + totals["unknown"]
    if given.json:
        print(json.dumps({"totals": totals, "programs": results}, ensure_ascii=False))
    else:
        print(", ".join(f"{count} {result}" for result, count in totals.items()))
    if judged == 0:
        return 2
    return int(totals["right"] < LEAST_RIGHT * judged or totals["wrong"] > MOST_WRONG * judged)


if __name__ == "__main__":
    sys.exit(main())
