"""Tests of the package: comparison with a dict, errors, threads, snapshots and backup."""

import collections.abc
import contextlib
import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time

import azekura
import pytest


@pytest.fixture
def db(tmp_path):
    with azekura.open(tmp_path / "db.azk", cache_bytes=16 << 20) as db:
        yield db


def test_a_table_is_a_mapping_like_a_dict(db):
    table, model = db.table("t"), {}
    assert isinstance(table, collections.abc.MutableMapping) and table.name == "t"
    rng = random.Random(7)
    with db.begin() as tx:
        rows = tx.table("t")
        for _ in range(3000):
            key = b"%d" % rng.randrange(400)
            if rng.random() < 0.6:
                rows[key] = model[key] = rng.randbytes(rng.randrange(20))
            elif rng.random() < 0.5:
                assert rows.pop(key, None) == model.pop(key, None)
            else:
                assert rows.get(key) == model.get(key) and (key in rows) == (key in model)
    for view in (table, db.snapshot().table("t")):
        assert len(view) == len(model)
        assert list(view) == list(view.keys()) == sorted(model)
        assert list(view.items()) == sorted(model.items())
        assert list(view.items(b"2", b"3", reverse=True)) == sorted(
            ((k, v) for k, v in model.items() if b"2" <= k < b"3"), reverse=True
        )
        assert [v for v in view.values(b"9")] == [model[k] for k in sorted(model) if k >= b"9"]
    del view
    gc.collect()
    with pytest.raises(KeyError):
        table[b"missing"]
    with pytest.raises(KeyError):
        del table[b"missing"]
    assert table.get(b"missing", 5) == 5 and "text" not in table
    table.update({b"x": b"1", b"y": b"2"})
    assert table.setdefault(b"x", b"9") == b"1"
    table.clear()
    assert len(table) == 0 and db.table_names() == ["t"]


def test_an_exception_rolls_back_and_an_ended_transaction_is_closed(db):
    with pytest.raises(ZeroDivisionError):
        with db.begin() as tx:
            tx.table("t")[b"a"] = b"1"
            1 // 0
    assert db.table("t").get(b"a") is None
    tx = db.begin()
    rows = tx.table("t")
    rows[b"a"] = b"1"
    iterator = iter(rows)
    tx.commit()
    for call in (tx.commit, tx.abort, lambda: rows[b"a"], lambda: next(iterator)):
        with pytest.raises(azekura.Closed):
            call()
    assert db.table("t")[b"a"] == b"1"


def test_threads_count_without_a_lost_update(db):
    threads, each = 6, 40

    def add(tx):
        rows = tx.table("counters")
        rows[b"n"] = b"%d" % (int(rows.get(b"n", b"0")) + 1)

    failed = []

    def work():
        try:
            for _ in range(each):
                db.transact(add)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed
    assert db.table("counters")[b"n"] == b"%d" % (threads * each)


def test_consumers_pop_different_rows_without_a_wait(db):
    jobs = db.table("jobs", key=int, value=int)
    jobs.update({n: n for n in range(6)})
    one, other = db.begin(lock_timeout=10), db.begin(lock_timeout=10)
    assert one[jobs].pop_first() == (0, 0) and one[jobs].pop_last() == (5, 5)
    # A row beside a removed one may be locked with it, and is skipped then.
    taken = [other[jobs].pop_first(), other[jobs].pop_last(), jobs.pop_first()]
    rows = [row for row in taken if row is not None]
    assert taken[0] in rows and len(set(rows)) == len(rows) and set(rows) <= {(n, n) for n in range(1, 5)}
    one.abort()
    other.commit()
    assert list(jobs.items()) == [(n, n) for n in range(6) if (n, n) not in rows]


def test_a_thread_that_waits_for_a_lock_holds_no_gil(db):
    db.table("t")[b"a"] = b"0"
    holder = db.begin()
    holder.table("t")[b"a"] = b"1"
    begun = threading.Event()

    def wait():
        begun.set()
        db.table("t")[b"a"] = b"2"

    waiter = threading.Thread(target=wait)
    waiter.start()
    begun.wait()
    # If the waiter held the GIL, this would never return.
    assert sum(range(100_000)) == 4_999_950_000
    holder.commit()
    waiter.join()
    assert db.table("t")[b"a"] == b"2"


def test_a_body_error_leaves_transact_and_rolls_back(db):
    def body(tx):
        tx.table("t")[b"a"] = b"1"
        raise ValueError("no")

    with pytest.raises(ValueError):
        db.transact(body)
    assert db.table("t").get(b"a") is None
    assert db.transact(lambda tx: len(tx.table("t"))) == 0


def test_a_body_error_leaves_transact_although_a_thread_uses_the_transaction(db):
    table = db.table("t")
    holder = db.begin()
    holder[table][b"a"] = b"1"
    threads = []

    def wait(rows):
        while True:
            # The other thread may be inside `savepoint`.
            with contextlib.suppress(RuntimeError):
                return rows.get(b"a")

    def body(tx):
        threads.append(threading.Thread(target=wait, args=(tx[table],)))
        threads[0].start()
        with pytest.raises(RuntimeError, match="another thread"):
            while True:
                time.sleep(0.01)
                tx.savepoint()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.transact(body)
    holder.commit()
    threads.pop().join()
    gc.collect()


def test_a_snapshot_does_not_change(db):
    table = db.table("t")
    table[b"a"] = b"1"
    with db.snapshot() as snap:
        table[b"a"] = b"2"
        assert snap.table("t")[b"a"] == b"1" and snap.table_names() == ["t"]
        with pytest.raises(azekura.Busy):
            db.close()
    with pytest.raises(azekura.Closed):
        snap.table("t")


def test_backup_and_restore(db, tmp_path):
    rows = {b"%05d" % n: b"x" * n for n in range(500)}
    with db.begin() as tx:
        tx.table("t").update(rows)
    seen = []
    assert db.backup(tmp_path / "copy", rate=1 << 30, progress=lambda *now: seen.append(now)) == 500
    assert seen[-1][0] == 500
    with pytest.raises(azekura.Invalid, match="holds a backup already"):
        db.backup(tmp_path / "copy")
    calls = []
    with pytest.raises(ZeroDivisionError):
        db.backup(tmp_path / "copy2", progress=lambda *now: calls.append(now) or 1 // 0)
    assert len(calls) == 1 and not (tmp_path / "copy2" / "backup.azk").exists()
    assert db.backup(tmp_path / "copy2") == 500
    assert azekura.restore(tmp_path / "copy", tmp_path / "new.azk", verify=True) == 500
    with azekura.open(tmp_path / "new.azk", create=False) as copy:
        assert dict(copy.table("t").items()) == rows
    file = tmp_path / "copy" / "backup.azk"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(azekura.Corrupt, match="damaged at byte"):
        azekura.restore(tmp_path / "copy", tmp_path / "new2.azk")
    with pytest.raises(azekura.Invalid, match="did not finish"):
        azekura.open(tmp_path / "new2.azk")


def test_the_backup_of_an_encrypted_store_is_restored_with_its_key(tmp_path):
    key = bytes(range(32))
    with azekura.open(tmp_path / "secret.azk", encryption_key=key) as db:
        db.table("t")[b"a"] = b"1"
        assert db.backup(tmp_path / "copy") == 1
    with pytest.raises(azekura.Invalid, match="encrypted"):
        azekura.restore(tmp_path / "copy", tmp_path / "new1.azk")
    assert azekura.restore(tmp_path / "copy", tmp_path / "new2.azk", verify=True, encryption_key=key) == 1
    with azekura.open(tmp_path / "new2.azk", create=False, encryption_key=key) as copy:
        assert dict(copy.table("t")) == {b"a": b"1"}


def test_a_function_returns_the_key_with_the_id_in_the_store(tmp_path):
    path, asked = tmp_path / "secret.azk", []

    def key_of(id):
        asked.append(id)
        return {"one": b"1" * 32, "two": b"2" * 32}[id]

    with azekura.open(path, encryption_key=key_of, encryption_key_id="one") as db:
        db.table("t")[b"a"] = b"1"
        db.change_encryption_key(key_of("two"), id="two")
    asked.clear()
    with azekura.open(path, encryption_key=key_of) as db:
        assert dict(db.table("t")) == {b"a": b"1"}
        db.backup(tmp_path / "copy")
    assert asked == ["two"]
    with pytest.raises(azekura.Error, match="KeyError"):
        azekura.open(path, encryption_key=lambda id: {}[id])
    with pytest.raises(azekura.Invalid, match='give the key "two"'):
        azekura.open(path, encryption_key=b"1" * 32)
    azekura.restore(tmp_path / "copy", tmp_path / "new", encryption_key=key_of, encryption_key_id="one")
    with azekura.open(tmp_path / "new", encryption_key=b"1" * 32) as db:
        assert dict(db.table("t")) == {b"a": b"1"}


def test_errors_have_types(db, tmp_path):
    with pytest.raises(azekura.Invalid):
        azekura.open(tmp_path / "missing", create=False)
    with pytest.raises(azekura.Busy):
        azekura.open(tmp_path / "db.azk")
    with pytest.raises(azekura.Invalid):
        db.table("")[b"a"] = b""
    with pytest.raises(TypeError):
        db.table("t")["text"] = b""
    assert issubclass(azekura.Conflict, azekura.Error)


def test_a_signal_stops_a_slow_backup(db, tmp_path):
    with db.begin() as tx:
        tx.table("t").update({b"%05d" % n: random.Random(n).randbytes(1000) for n in range(3000)})
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()  # the signal may arrive before the backup begins
        db.backup(tmp_path / "copy", rate=30_000)
    assert time.monotonic() - began < 80  # the whole backup takes 100 s


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused(db):
    db.table("t")[b"a"] = b"1"
    child = os.fork()
    if child == 0:
        try:
            db.table("t")[b"a"]
        except azekura.Closed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def raised_in(seconds, call):
    """Returns the time that `call` takes until SIGINT, which arrives after `seconds`, stops it."""
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()  # the signal may arrive before the call
        call()
        time.sleep(60)  # the call has ended before the signal
    timer.join()
    return time.monotonic() - began


def test_a_signal_ends_a_wait_for_a_lock_and_the_transaction_continues(db):
    rows = db.table("t")
    rows[b"a"] = b"1"
    holder = db.begin()
    tx = db.begin()
    tx.table("t")[b"b"] = b"2"
    holder.table("t")[b"a"] = b"3"
    holder.detach_from_thread()
    assert raised_in(0.2, lambda: tx.table("t").get(b"a")) < 30
    assert raised_in(0.2, lambda: rows.pop(b"a")) < 30
    assert raised_in(0.2, lambda: db.transact(lambda own: own[rows].pop(b"a"))) < 30

    def block():
        with db.begin() as own:
            own[rows][b"c"] = b"4"
            own[rows].pop(b"a")

    assert raised_in(0.2, block) < 30
    holder.commit()
    tx.commit()
    assert dict(rows) == {b"a": b"3", b"b": b"2"}


def test_a_signal_handler_that_raises_nothing_does_not_end_a_wait(db):
    rows = db.table("t")
    holder = db.begin()
    holder.table("t")[b"a"] = b"3"
    holder.detach_from_thread()  # the signal handler ends it
    ran = []

    def handler(*_):
        # A handler may use the store.
        db.table("other")[b"x"] = b"y"
        ran.append(holder.commit())

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert rows.pop(b"a") == b"3"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ran == [None] and not rows and len(db.table("other")) == 1


def test_a_thread_that_is_not_the_main_one_waits_through_signals(db):
    rows = db.table("t")
    holder = db.begin()
    holder.table("t")[b"a"] = b"3"
    found = queue.Queue()
    thread = threading.Thread(target=lambda: found.put(rows.get(b"a")))
    thread.start()
    # An exception inside `Thread.join` makes later joins return at once (CPython before 3.13).
    assert raised_in(0.3, lambda: found.get(timeout=60)) < 30
    holder.commit()
    assert found.get(timeout=60) == b"3"
    thread.join(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_signal_ends_a_wait_in_a_child_that_a_thread_has_forked(db, tmp_path):
    rows = db.table("t", key=int)
    rows.update((n, b"") for n in range(5000))

    def wait_in_child():
        with azekura.open(tmp_path / "child") as own:
            holder = own.begin()
            holder.table("t")[b"a"] = b"1"
            holder.detach_from_thread()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raised_in(0.2, lambda: own.table("t").get(b"a"))
            holder.abort()

    def fork():
        assert len(rows) == 5000  # this call asks whether the thread is the main one
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                wait_in_child()
                os._exit(7)
            finally:
                os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    codes = []
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert codes == [7]


def test_a_signal_ends_long_calls(db, tmp_path):
    rows = db.table("t", key=int)
    for first in range(0, 200_000, 20_000):
        rows.update((n, b"x" * 20) for n in range(first, first + 20_000))
    db.backup(tmp_path / "whole")

    def again(call):
        def calls():
            while True:
                call()

        return calls

    number = iter(range(10**9))
    for call in (
        lambda: len(rows),
        lambda: list(rows),
        lambda: sum(1 for _ in rows.values()),
        lambda: db.check(),
        lambda: db.compact_into(tmp_path / f"small{next(number)}"),
        lambda: azekura.restore(tmp_path / "whole", tmp_path / f"new{next(number)}"),
    ):
        assert raised_in(0.2, again(call)) < 30
    assert len(rows) == 200_000 and not db.check()["findings"]


def test_a_second_interpreter_cannot_import_the_package():
    program = """
import azekura
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
try:
    failed = interpreters.run_string(interpreters.create(), "import azekura")
except interpreters.RunFailedError as error:
    failed = error
print("ImportError" in str(failed))
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_part_of_a_large_value_is_read(db):
    photos = db.table("photos", key=str)
    photo = bytes(n * 7 // 3 & 255 for n in range(300_000))
    photos["large"], photos["small"], photos["empty"] = photo, b"abc", b""
    with db.begin() as tx, db.snapshot() as snap:
        for table in (photos, tx[photos], snap[photos]):
            assert table.value_length("large") == 300_000 and table.value_length("none") is None
            assert table.value_length("empty") == 0 and table.read_at("empty", 0, 9) == b""
            parts = [(0, 10), (8191, 20_000), (299_990, 10**12), (300_000, 1), (2**64 - 1, 1), (5, 0)]
            for at, length in parts:
                assert table.read_at("large", at, length) == photo[at : at + length]
            assert table.read_at("small", 1, 1) == b"b" and table.read_at("none", 0, 1) is None
        with pytest.raises(OverflowError):
            photos.read_at("large", -1, 1)
    with pytest.raises(TypeError, match="bytes"):
        db.table("names", value=str).read_at(b"a", 0, 1)


def test_the_function_of_a_transaction_has_no_yield(db):
    table = db.table("t", key=int, value=int)

    def body(tx):
        tx[table][1] = 1
        yield 1

    async def later(tx):
        tx[table][1] = 1
        yield 1

    class Program:
        def body(self, tx):
            yield tx

    for function in (body, later, Program().body):
        with pytest.raises(TypeError, match="yield"):
            db.transact(function)
        with pytest.raises(TypeError, match="yield"):
            db.transaction(function)
    assert len(table) == 0
    assert list(db.transact(lambda tx: (n for n in range(3)))) == [0, 1, 2]
    assert db.transact(dict.fromkeys([1]).get) is None
