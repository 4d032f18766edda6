"""A pytest plugin that judges redis-py's own tests against a server that claims a part of Redis's commands.

A test fails for one of three reasons, and only the last is an error of the server:

1. it asks for something that the server says it does not have: an unknown command or subcommand, another
   database, a change of settings;
2. it is in the list of deviations, with a reason; such tests are not run;
3. the server does something wrong.

So a test that fails although the server had everything it asked for is an error. A test in the list of the
expected ones must pass: a lost command is noticed too.

Environment: AZEKURA_LISTS, the directory of the two lists. AZEKURA_WRONG, a file of the wrong tests, one on
each line; if it has lines at the beginning, only these tests are run. AZEKURA_PASSED, a file: the tests that
passed are written there, and nothing is judged.
"""

import os
import re

import pytest
from redis._parsers.base import BaseParser

# Server messages for unsupported features. redis-py itself requests MAINT_NOTIFICATIONS with every
# connection.
REFUSED = re.compile(
    r"unknown command|unknown subcommand (?!'MAINT_NOTIFICATIONS')|DB index is out of range|is not offered"
    r"|settings cannot be changed while the server runs"
)

refusals = {}
failures = {}
passed = set()
left_out = set()
ran = set()
running = None
parse_error = BaseParser.parse_error.__func__


def note_refusal(parser, response):
    text = response.decode(errors="replace") if isinstance(response, bytes) else str(response)
    if running is not None and REFUSED.search(text):
        refusals.setdefault(running, text.strip())
    return parse_error(parser, response)


BaseParser.parse_error = classmethod(note_refusal)


def read_list(name):
    """The lines below each heading `[FILE::CLASS]`, as (FILE::CLASS, first word, rest)."""
    found, group = [], None
    with open(os.path.join(os.environ["AZEKURA_LISTS"], name), encoding="utf-8") as lines:
        for line in (line.strip() for line in lines):
            if line.startswith("["):
                group = line[1:-1]
            elif line and not line.startswith("#"):
                found.append((group, *line.split(maxsplit=1)))
    return found


def deviations():
    return [f"{group}::{test}" for group, test, _reason in read_list("deviations.txt")]


def expected(config):
    """The tests that pass with this version of the protocol."""
    version = config.getoption("--protocol")
    listed = read_list("expected.txt")
    return {f"{group}::{test}" for group, versions, test in listed if version in versions}


def only():
    name = os.environ.get("AZEKURA_WRONG")
    if not name or not os.path.exists(name):
        return set()
    with open(name, encoding="utf-8") as lines:
        return {line.rstrip("\n") for line in lines}


def pytest_collection_modifyitems(items):
    others, wanted = deviations(), only()
    items[:] = [
        item
        for item in items
        if not any(item.nodeid == one or item.nodeid.startswith(f"{one}[") for one in others)
        and (not wanted or item.nodeid in wanted)
    ]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    global running
    running = item.nodeid
    ran.add(running)
    yield
    running = None


def pytest_runtest_logreport(report):
    if report.failed:
        failures.setdefault(report.nodeid, f"{report.when}: {crash(report)}")
    elif report.skipped or hasattr(report, "wasxfail"):
        left_out.add(report.nodeid)
    elif report.when == "call":
        passed.add(report.nodeid)


def crash(report):
    last = getattr(report.longrepr, "reprcrash", None)
    return (last.message if last else str(report.longrepr)).strip().split("\n")[0][:200]


def judge(config, good):
    wrong = {test: why for test, why in failures.items() if test not in refusals}
    wanted = expected(config) & (only() or expected(config))
    for test in wanted - good:
        missing = "was left out by redis-py" if test in ran else "is not there"
        wrong.setdefault(test, failures.get(test, missing))
    return wrong


def pytest_sessionfinish(session):
    good = passed - failures.keys() - left_out
    if name := os.environ.get("AZEKURA_PASSED"):
        with open(name, "w", encoding="utf-8") as lines:
            lines.writelines(f"{test}\n" for test in sorted(good))
        wrong = {}
    else:
        wrong = judge(session.config, good)
        with open(os.environ["AZEKURA_WRONG"], "w", encoding="utf-8") as lines:
            lines.writelines(f"{test}\n" for test in sorted(wrong))
    unclaimed = [test for test in failures if test in refusals and test not in wrong]
    session.config.verdict = [f"WRONG {test}: {why}" for test, why in sorted(wrong.items())] + [
        f"RESP{session.config.getoption('--protocol')}: {len(good)} passed, "
        f"{len(unclaimed)} ask for what is not claimed, {len(left_out)} were left out by redis-py, "
        f"{len(wrong)} wrong"
    ]
    session.exitstatus = 1 if wrong else 0


def pytest_terminal_summary(terminalreporter, config):
    for line in getattr(config, "verdict", ["nothing was run"]):
        terminalreporter.write_line(line)
