"""Threads share each kind of object, and close it meanwhile: rows are right, and refusals are exceptions of
the package. Made for free-threaded Python; with a GIL, threads switch often."""

import gc
import sys
import threading
import time

import azekura
import pytest
from azekura.cache import Cache, Timeout

THREADS = 6
# A refused call of an object that another thread uses or has closed.
REFUSED = (azekura.Closed, azekura.Busy, azekura.Conflict, RuntimeError)


@pytest.fixture(autouse=True)
def switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def db(tmp_path):
    db = azekura.open(tmp_path / "db.azk", cache_bytes=16 << 20)
    yield db
    gc.collect()
    db.close()


def together(*calls, seconds=1.0):
    """Runs each call repeatedly, at least once, in a thread of its own. A call that returns `False` ends its
    thread."""
    start, end = threading.Barrier(len(calls)), time.monotonic() + seconds
    failed = []

    def work(call):
        try:
            start.wait()
            while call() is not False and time.monotonic() < end and not failed:
                pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def or_refused(call):
    """Returns a call that returns `None` where the package refuses `call`."""

    def run():
        try:
            return call()
        except REFUSED:
            return None

    return run


def test_one_table_object(db):
    numbers = db.table("numbers", key=int, value=int)
    numbers.update({n: 0 for n in range(500)})
    objects = db.table("objects", key=(str, int), value="pickle")

    def move():
        def body(tx):
            tx[numbers].add(1, -1)
            tx[numbers].add(2, 1)

        db.transact(body)

    def read():
        one, two = numbers.get_many([1, 2])
        assert one + two == 0 and len(numbers.keys(0, 500)) == 500

    def queue():
        objects[("a", threading.get_ident())] = {"n": [1, 2]}
        row = objects.pop_first()
        assert row is None or row[1] == {"n": [1, 2]}

    together(move, move, read, read, queue, queue)
    assert numbers[1] == -numbers[2]


def test_one_transaction(db):
    rows = db.table("t", key=int, value=int)
    tx = db.begin()
    shared = tx[rows]
    written = []

    def write():
        number = len(written)
        try:
            shared[number] = number
        except RuntimeError:
            return
        written.append(number)

    together(*[write] * THREADS)
    tx.commit()
    assert written and set(rows) == set(written)


def test_a_transaction_that_one_of_the_threads_ends(db):
    rows = db.table("t", key=int, value=int)
    rows[0] = 0
    for _ in range(20):
        tx = db.begin()
        shared, savepoint, ends = tx[rows], tx.savepoint(), []
        iterator = iter(shared.items())

        def end():
            tx.commit()
            ends.append(1)
            return False

        together(
            or_refused(lambda: shared.add(0)),
            or_refused(lambda: list(shared.items())),
            or_refused(lambda: next(iterator, None)),
            or_refused(lambda: tx.rollback_to(savepoint)),
            or_refused(end),
            or_refused(end),
            seconds=0.05,
        )
        assert len(ends) <= 1
        if not ends:
            tx.abort()
        with pytest.raises(azekura.Closed):
            shared[0]
    assert rows[0] >= 0


def test_one_iterator_returns_each_row_once(db):
    rows = db.table("t", key=int, value=int)
    rows.update({n: n for n in range(5000)})
    with db.snapshot() as snap:
        for source in (rows, snap[rows]):
            iterator, found = iter(source), []

            def take():
                try:
                    number = next(iterator, None)
                except RuntimeError:
                    return None
                if number is None:
                    return False
                found.append(number)

            together(*[take] * THREADS, seconds=120)
            assert sorted(found) == list(range(5000))


def test_the_last_object_of_a_snapshot_closes_the_store(tmp_path):
    def snapshot():
        return azekura.open(tmp_path / "db").snapshot()

    with azekura.open(tmp_path / "db") as db:
        db.table("t")[b"key"] = b"value"
    for use in (
        lambda snap: snap.table("t"),
        lambda snap: iter(snap.table("t")),
        lambda snap: snap.table("t").items(),
        lambda snap: snap,
    ):
        last = use(snapshot())
        with pytest.raises(azekura.Busy):
            azekura.open(tmp_path / "db")
        del last
        azekura.open(tmp_path / "db").close()
    closed = snapshot()
    closed.close()
    azekura.open(tmp_path / "db").close()


def test_a_snapshot_that_one_of_the_threads_closes(db):
    rows = db.table("t", key=int, value=int)
    rows[1] = 1
    for _ in range(20):
        snap = db.snapshot()
        table = snap[rows]

        def read():
            assert snap[rows][1] == 1

        def read_table():
            assert dict(table) == {1: 1}

        together(*[or_refused(read)] * 2, or_refused(read_table), snap.close, snap.close, seconds=0.05)
        with pytest.raises(azekura.Closed):
            snap.table_names()


def test_a_database_that_one_of_the_threads_closes(tmp_path):
    for turn in range(8):
        db = azekura.open(tmp_path / "db.azk", cache_bytes=16 << 20)
        rows = db.table("t", key=int, value=int)
        rows[0] = turn

        def use():
            with db.begin() as tx:
                tx[rows].add(1)
            with db.snapshot() as snap:
                assert snap[rows][0] == turn

        def commit_later():
            tx = db.begin()
            tx[rows].add(2)
            ticket = tx.commit_nowait()
            assert ticket.durable in (True, False)
            ticket.wait()

        together(
            *[or_refused(use)] * 2,
            or_refused(lambda: list(rows.items())),
            or_refused(commit_later),
            or_refused(db.close),
            or_refused(db.close),
            seconds=0.1,
        )
        gc.collect()
        db.close()
    with azekura.open(tmp_path / "db.azk", create=False) as db:
        assert not db.check()["findings"]


def test_objects_that_several_threads_create_and_free(db):
    rows = db.table("t", key=str, value="json")

    def begin_and_forget():
        tx = db.begin()
        tx[rows].get("a")
        iter(tx[rows].values())
        tx.abort()

    def cycles():
        cyclic = [db.snapshot(), db.table("t"), iter(rows.items())]
        cyclic.append(cyclic)

    def buffers():
        data = bytearray(b"x" * 1000)
        resize = threading.Thread(target=lambda: data.extend(b"y" * 100_000))
        resize.start()
        db.table("b")[b"a"] = data
        resize.join()
        assert len(db.table("b")[b"a"]) in (1000, 101_000)

    together(begin_and_forget, begin_and_forget, cycles, cycles, buffers, gc.collect)
    gc.collect()


def test_one_cache_object_that_is_closed_and_opened_again(tmp_path):
    cache = Cache(tmp_path / "cache", statistics=True)

    def count():
        with cache.transact(retry=True):
            cache["a"] = cache.get("a", 0) + 1
            counted.append(1)

    counted = []
    together(*[count] * 3, lambda: cache.get("a"), lambda: list(cache), seconds=1)
    assert cache["a"] == len(counted)

    def use():
        cache.incr("b")
        assert cache.get("a") == len(counted)

    def close():
        try:
            cache.close()
        except azekura.Busy:
            pass

    def open_another():
        with Cache(tmp_path / "cache") as other:
            other.get("a")

    together(*[or_refused(use)] * 3, close, close, or_refused(open_another))
    gc.collect()
    cache.close()
    azekura.open(tmp_path / "cache", create=False).close()
    with pytest.raises(Timeout), cache.transact():
        together(lambda: Cache(tmp_path / "cache", timeout=0).set("c", 1), seconds=0.1)
    assert cache.check() == []
    cache.close()
