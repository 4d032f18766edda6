"""Settings of all tests."""

import signal

import pytest


@pytest.fixture(autouse=True)
def sigint_raises_keyboard_interrupt():
    """Sets Python's handler of SIGINT, which is missing if the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
