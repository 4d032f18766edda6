"""A pytest plugin that judges redis-py's own tests against a server that claims a part of Redis's commands.

A test fails for one of three reasons, and only the last is an error of the server:

1. it sends something that the server says it does not have: an unknown command or subcommand, another database, a change of settings;
2. it is in the list of deviations, with a reason;
3. the server does something wrong.

So a test that fails while the server had everything it asked for must be in the list of deviations, and a test in the list of those that
are expected to pass must pass: a command that is lost is noticed, too. A deviation that is none any more is an error as well.

Environment: AZEKURA_EXPECTED, AZEKURA_DEVIATIONS (files), AZEKURA_UPDATE=FILE: the tests that passed are appended to FILE, and nothing is judged.
"""

import os
import re

import pytest
from redis._parsers.base import BaseParser

# What the server says about things that it does not claim. The first thing that redis-py itself sends is not the test's.
REFUSED = re.compile(
    r"unknown command|unknown subcommand (?!'MAINT_NOTIFICATIONS')|there is one database|is not offered"
    r"|settings are given when the server starts"
)

refusals = {}
failures = {}
passed = set()
skipped = set()
running = None

parse_error = BaseParser.parse_error.__func__


def note_refusal(parser, response):
    text = response.decode(errors="replace") if isinstance(response, bytes) else str(response)
    if running is not None and REFUSED.search(text):
        refusals.setdefault(running, text.strip())
    return parse_error(parser, response)


BaseParser.parse_error = classmethod(note_refusal)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    global running
    running = item.nodeid
    yield
    running = None


def pytest_runtest_logreport(report):
    if report.failed:
        failures.setdefault(report.nodeid, f"{report.when}: {crash(report)}")
    elif report.skipped:
        skipped.add(report.nodeid)
    elif report.when == "call":
        passed.add(report.nodeid)


def crash(report):
    last = getattr(report.longrepr, "reprcrash", None)
    return (last.message if last else str(report.longrepr)).strip().split("\n")[0][:200]


def read_list(name):
    """The lines of a list: a test each, or what a group of tests begins with and a *; what follows a # is the reason."""
    with open(os.environ[name], encoding="utf-8") as lines:
        tests = (re.split(r"\s+#", line)[0].strip() for line in lines if not line.startswith("#"))
        return [test for test in tests if test]


def is_listed(test, tests):
    return any(test == one or (one.endswith("*") and test.startswith(one[:-1])) for one in tests)


def pytest_sessionfinish(session):
    good = passed - failures.keys()
    if update := os.environ.get("AZEKURA_UPDATE"):
        with open(update, "a", encoding="utf-8") as lines:
            lines.writelines(f"{test}\n" for test in sorted(good))
    expected, deviations = read_list("AZEKURA_EXPECTED"), read_list("AZEKURA_DEVIATIONS")
    ran = good | failures.keys() | skipped
    wrong = []
    for test in [] if update else expected:
        if test not in ran:
            wrong.append(f"{test}: is expected to pass, and was not there")
        elif test not in good:
            wrong.append(f"{test}: is expected to pass: {failures.get(test, 'skipped')}")
    for test, why in failures.items():
        if test not in refusals and not is_listed(test, deviations) and test not in expected:
            wrong.append(f"{test}: {why}")
    if not update:
        wrong += [f"{test}: passes, is no deviation any more" for test in sorted(good) if is_listed(test, deviations)]
    unclaimed = [test for test in failures if test in refusals and not is_listed(test, deviations)]
    if os.environ.get("AZEKURA_VERBOSE"):
        for test in unclaimed:
            print(f"\nunclaimed {test}: {refusals[test]}", end="")
    session.config.verdict = wrong, (
        f"{len(good)} passed ({len(expected)} are expected to), {len(unclaimed)} need what is not claimed, "
        f"{sum(is_listed(test, deviations) for test in failures)} known deviations, {len(skipped)} skipped by redis-py"
    )
    session.exitstatus = 1 if wrong else 0


def pytest_terminal_summary(terminalreporter, config):
    if hasattr(config, "verdict"):
        wrong, summary = config.verdict
        terminalreporter.section("verdict")
        for line in wrong:
            terminalreporter.write_line(f"WRONG {line}")
        terminalreporter.write_line(summary)
