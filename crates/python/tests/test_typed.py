"""Tests of codecs, views, savepoints, tickets and other features that a dict does not have."""

import array
import asyncio
import collections.abc
import ctypes
import errno
import gc
import math
import os
import pathlib
import resource
import subprocess
import sys
import threading
import time
import warnings
import weakref

import azekura
import azekura.dbm
import pytest
from azekura.cache import Cache


@pytest.fixture
def db():
    return azekura.in_memory()


def test_codecs_keep_values_and_the_order_of_keys(db):
    rows = {
        str: ["", "a", "a\0b", "aé", "zz", "日本"],
        int: [-(2**63), -5, 0, 7, 2**63 - 1],
        float: [-math.inf, -1.5, -1e-300, 0.0, 1e-300, 2.5, math.inf],
        bytes: [b"", b"\0", b"\0\xff", b"a", b"\xff"],
        (str, int): [("", 5), ("Nara", -1), ("Nara", 2), ("Nara\0", -9), ("Nara b", 0), ("Osaka", 1)],
        (int, bytes, float): [(-1, b"\0", 0.5), (-1, b"\0\0", -2.0), (3, b"", 1.0), (3, b"x", -1.0)],
    }
    for number, (codec, keys) in enumerate(rows.items()):
        assert keys == sorted(keys)
        table = db.table(f"k{number}", key=codec, value=int)
        table.update((key, at) for at, key in reversed(list(enumerate(keys))))
        assert list(table) == keys and [table[key] for key in keys] == list(range(len(keys)))
        assert list(reversed(table)) == keys[::-1]
        for low in range(len(keys)):
            for high in range(low, len(keys)):
                assert list(table.keys(keys[low], keys[high])) == keys[low:high]
        assert table.first() == (keys[0], 0) and table.last()[0] == keys[-1]
    value = {"a": [1, None, "x"], "b": 0.5}
    for codec, values in ((str, ["", "é"]), (int, [-1]), (float, [-0.0, math.nan]), ("json", [value])):
        table = db.table(f"v{codec}", value=codec)
        for stored in values:
            table[b"k"] = stored
            assert repr(table[b"k"]) == repr(stored)
    table = db.table("pickled", key=int, value="pickle")
    table[1] = {("a", 1), frozenset([2])}
    assert table[1] == {("a", 1), frozenset([2])}


def test_a_missing_key_is_the_argument_of_the_exception(db):
    pairs, names = db.table("pairs", key=(str, int)), db.table("names", key=str)
    for table, key in ((pairs, ("Nara", 1)), (names, "Nara"), (db.snapshot()[pairs], ("Nara", 1))):
        calls = [lambda: table[key]]
        if isinstance(table, azekura.Table):
            calls += [lambda: table.pop(key), lambda: table.__delitem__(key)]
        for call in calls:
            with pytest.raises(KeyError) as caught:
                call()
            assert caught.value.args == (key,)


def test_objects_of_other_types_are_refused(db):
    text = db.table("text", key=str, value=int)
    for key, value, error in (
        (b"a", 1, TypeError),
        (1, 1, TypeError),
        ("a", "1", TypeError),
        ("a", 2**63, OverflowError),
        ("\ud800", 1, ValueError),
    ):
        with pytest.raises(error):
            text[key] = value
    assert b"a" not in text and len(text) == 0
    with pytest.raises(TypeError, match="key=str, value=int"):
        db.table("plain")["text"] = b""
    with pytest.raises(ValueError):
        db.table("floats", key=float)[math.nan] = b""
    floats = db.table("floats", key=float)
    floats[-0.0] = b"zero"
    assert floats[0.0] == b"zero"
    for bad in (list, "json", (str,), (str, "json"), 5):
        with pytest.raises(TypeError, match='table "t": key is bytes, str, int or float'):
            db.table("t", key=bad)
    with pytest.raises(TypeError, match='table "t": value is .*"pickle".*; not .*list'):
        db.table("t", value=list)


def test_buffers_are_stored_as_their_bytes(db):
    table = db.table("buffers")
    numbers = array.array("H", [1, 2, 3])
    for buffer in (bytearray(b"abc"), memoryview(b"abcdef")[::2], memoryview(b"abc"), numbers):
        table[buffer] = buffer
        assert table[bytes(buffer)] == bytes(buffer) and buffer in table
    parts = db.table("parts", key=(bytes, int))
    parts[memoryview(b"a"), 1] = b""
    assert list(parts) == [(b"a", 1)]
    for other in ("text", 5, None, [1]):
        with pytest.raises(TypeError, match="are bytes, not"):
            table[b"a"] = other


def test_integers_with_index_are_integers(db):
    class Integer:
        def __init__(self, number):
            self.number = number

        def __index__(self):
            return self.number

    table = db.table("t", key=int, value=int)
    table[Integer(5)] = Integer(-7)
    assert Integer(5) in table and table[Integer(5)] == table[5] == -7 and Integer(6) not in table
    assert list(table.items(Integer(4), Integer(6))) == [(5, -7)]
    pairs = db.table("pairs", key=(str, int), value=int)
    pairs["a", Integer(1)] = 2
    assert list(pairs) == [("a", 1)]
    for refused in (1.0, "1", None):
        assert refused not in table
        with pytest.raises(TypeError):
            table[refused] = 1
        with pytest.raises(TypeError):
            table[1] = refused
    with pytest.raises(OverflowError):
        table[Integer(2**63)] = 1


def test_objects_of_ctypes_are_refused_as_bytes(db):
    fields = [("Old", ctypes.c_uint8), ("O", ctypes.py_object)]
    whole = type("Whole", (ctypes.Structure,), {"_fields_": fields})
    part = type("Part", (ctypes.Structure,), {"_fields_": fields[:1]})
    table = db.table("t")
    for refused in ((ctypes.py_object * 2)("x", "y"), whole(1, "x")):
        with pytest.raises(TypeError, match="are bytes, not"):
            table[b"a"] = refused
    table[b"a"] = part(7)
    assert table[b"a"] == b"\7"


def test_arrays_of_objects_are_refused_as_bytes(db):
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="are bytes, not"):
        db.table("t")[b"a"] = numpy.array(["a", None], dtype=object)


def test_handles_have_weak_references(db):
    table = db.table("t")
    tx = db.begin()
    for handle in (db, table, tx, tx[table], db.snapshot(), db.snapshot()[table]):
        assert weakref.ref(handle)() is handle
    assert weakref.ref(tx.commit_nowait()) is not None
    gone = weakref.ref(db.table("t"))  # pytest would keep the handle of an expression in the assertion
    assert gone() is None


def test_paths_of_all_kinds(tmp_path):
    for number, path in enumerate((str, os.fsencode, pathlib.Path)):
        place = tmp_path / f"{number}é\udcff"
        with azekura.open(path(place)) as db:
            db.table("t")[b"a"] = b"1"
            assert db.backup(path(tmp_path / f"copy{number}")) == 1
            assert db.compact_into(path(tmp_path / f"small{number}")) == 1
        assert azekura.restore(path(tmp_path / f"copy{number}"), path(tmp_path / f"new{number}")) == 1
        assert place.is_dir()
    with pytest.raises(TypeError, match="PathLike"):
        azekura.open(5)


def test_empty_paths_are_refused(db, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for empty in ("", b""):
        for call in (azekura.open, db.backup, db.compact_into, Cache):
            with pytest.raises(azekura.Invalid, match="^the path is empty"):
                call(empty)
        for source, path in ((empty, "new"), ("copy", empty)):
            with pytest.raises(azekura.Invalid, match="^the path is empty"):
                azekura.restore(source, path)
        for flag in "rwcn":
            with pytest.raises(azekura.dbm.error, match="^the path is empty"):
                azekura.dbm.open(empty, flag)
    assert os.listdir() == []


def test_the_catalog_knows_the_codecs(db):
    db.table("t", key=str, value=int)["a"] = 1
    for other in ({"key": int, "value": int}, {"key": str}, {"value": int}):
        with pytest.raises(azekura.Invalid, match="has keys str, values i64"):
            db.table("t", **other).get("a" if other.get("key") is str else 1 if "key" in other else b"a")
    with db.snapshot() as snap:
        with pytest.raises(azekura.Invalid, match="has keys str, values i64"):
            snap.table("t", key=str, value="json")["a"]
        assert snap.table("t", key=str, value=int)["a"] == 1
    # Without codecs, a table with any types opens, as bytes.
    assert db.table("t")[b"a"] == (1).to_bytes(8, "little")


def test_views_are_those_of_a_dict(db):
    table, model = db.table("t", key=str, value=int), {f"{n:03}": n for n in range(700)}
    table.update(model)
    assert isinstance(table.keys(), collections.abc.KeysView)
    assert isinstance(table.items(), collections.abc.ItemsView)
    assert isinstance(table.values(), collections.abc.ValuesView)
    assert table == model and table.keys() == model.keys() and dict(table.items()) == model
    keys = table.keys("100", "400")
    assert len(keys) == 300 and "100" in keys and "400" not in keys and 5 not in keys
    assert list(keys) == list(keys) and list(reversed(keys)) == list(keys)[::-1]
    assert keys & {"099", "100", "399", "x"} == {"100", "399"}
    assert 250 in table.values("200", "300") and 350 not in table.values("200", "300")
    assert ("250", 250) in table.items("2", "3") and ("250", 251) not in table.items("2", "3")
    assert list(table.items(None, "002")) == [("000", 0), ("001", 1)]
    assert list(table.keys("698", reverse=True)) == ["699", "698"]
    assert "'000', '001'" in repr(table.keys()) and "…" in repr(table.keys())
    assert list(table.prefix("69", reverse=True))[0] == ("699", 699) and len(table.prefix("6")) == 100
    for call in (table.keys, table.values, table.items):
        with pytest.raises(TypeError):
            call(None)
    pairs = db.table("pairs", key=(str, int), value=str)
    pairs.update({(name, n): name * n for name in ("Nara", "Osaka") for n in range(3)})
    assert [n for (_, n), _ in pairs.prefix(("Nara",))] == [0, 1, 2]
    assert list(pairs.keys(("Nara", 1), ("Osaka",))) == [("Nara", 1), ("Nara", 2)]
    assert list(db.table("bytes", key=bytes).prefix(b"\xff")) == []


def test_large_values_come_one_by_one(db):
    table = db.table("t", key=int)
    for n in range(40):
        table[n] = bytes([n]) * (1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(len(value) for value in table.values()) == 40 << 20
    assert len(list(table.keys())) == 40
    # If each batch had 256 rows, all 40 MiB would be in memory at once.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10


def test_calls_of_several_rows_are_one_transaction(db):
    table = db.table("t", key=str, value=int)
    with pytest.raises(TypeError):
        table.update([("a", 1), ("b", "not a number")])
    with pytest.raises(ValueError):
        table.update([("a", 1), ("b", 2, 3)])
    assert len(table) == 0
    table.update({"a": 1}, b=2)
    assert table.get_many(["b", "x", "a"]) == [2, None, 1] and table.get_many(["x"], 0) == [0]
    assert table.setdefault("a", 9) == 1 and table.setdefault("c", 3) == 3
    with pytest.raises(TypeError):
        table.setdefault("d")
    assert table.add("a") == 2 and table.add("new", -5) == -5
    with pytest.raises(OverflowError):
        table.add("a", 2**63 - 1)
    assert table["a"] == 2
    with pytest.raises(TypeError, match="needs int"):
        db.table("other").add(b"a")
    assert table.popitem() == ("a", 2) and table.pop_last() == ("new", -5)
    assert table.remove_range("b", "c") == 1 and list(table) == ["c"]
    assert table.pop("x", None) is None and table.pop("c") == 3 and table.pop_first() is None
    assert not table and not db.snapshot()[table]


def test_threads_add_without_a_lost_update_and_a_queue_gives_each_job_once(db):
    counts, jobs = db.table("counts", key=str, value=int), db.table("jobs", key=int, value=str)
    jobs.update((n, "job") for n in range(300))
    taken, failed = [], []

    def work():
        try:
            for _ in range(50):
                counts.add("n")
            while (job := jobs.pop_first()) is not None:
                taken.append(job[0])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and counts["n"] == 300 and sorted(taken) == list(range(300))


def test_savepoints(db):
    stock = db.table("stock", key=str, value=int)
    with db.begin() as tx:
        rows = tx[stock]
        rows["rice"] = 1
        with pytest.raises(ZeroDivisionError):
            with tx.savepoint():
                rows["rice"] = 2
                rows["tea"] = 2
                1 // 0
        assert dict(rows) == {"rice": 1}
        with tx.savepoint():
            rows["soy"] = 3
        before = tx.savepoint()
        rows.clear()
        tx.rollback_to(before)
    assert dict(stock) == {"rice": 1, "soy": 3}
    with pytest.raises(azekura.Closed):
        tx.savepoint()


def test_tables_of_the_database_open_in_transactions_and_snapshots(db):
    stock = db.table("stock", key=str, value=int)
    stock["rice"] = 120

    @db.transaction
    def sell(tx, name, *, count):
        """Sells some."""
        rows = tx[stock]
        if rows.get_for_update(name, 0) < count:
            raise LookupError(name)
        return rows.add(name, -count)

    assert sell("rice", count=20) == 100 and sell.__doc__ == "Sells some."
    with pytest.raises(LookupError):
        sell("rice", count=500)
    with db.snapshot() as snap:
        stock["rice"] = 0
        assert snap[stock]["rice"] == 100 and snap[stock].prefix("r")
        with pytest.raises(TypeError):
            snap[stock]["rice"] = 1
    assert db.rename_table("stock", "old") and not db.rename_table("stock", "old")
    with db.begin() as tx:
        assert tx.rename_table("old", "older")
    assert db.table_names() == ["older"] and db.drop_table("older") and not db.drop_table("older")


def test_views_contain_what_those_of_a_dict_would(db):
    table = db.table("t", key=str, value=int)
    table.update(a=1, b=2)
    for foreign in (5, None, "ab", ["a", 1], ("a", 1, 2), ("a",), (b"a", 1)):
        assert foreign not in table.items() and foreign not in dict(table).items()
    assert ("a", 1) in table.items()
    with pytest.raises(TypeError):
        table.prefix(None)
    assert azekura.Table[str, int] and azekura.SnapshotTable[str, int]  # in annotations
def test_a_row_that_cannot_be_decoded_is_not_removed(db):
    jobs, raw = db.table("jobs", key=int, value="json"), db.table("jobs")
    jobs[1] = {"mail": 1}
    key = raw.first()[0]
    raw[key] = b"{"
    for call in (jobs.pop_first, jobs.pop_last, jobs.popitem, lambda: jobs.pop(1)):
        with pytest.raises(ValueError, match="property name"):
            call()
        with pytest.raises(ValueError, match="property name"):
            with db.begin() as tx:
                tx[jobs].pop_first()
        assert raw[key] == b"{"
    with db.begin() as tx:
        for call in (tx[jobs].pop_first, tx[jobs].popitem, lambda: tx[jobs].pop(1)):
            with pytest.raises(ValueError, match="property name"):
                call()
    assert raw[key] == b"{", "the transaction has committed, but no row was returned"
    jobs[1] = 7
    assert jobs.pop(1) == 7 and jobs.pop(1, 8) == 8 and jobs.pop_first() is jobs.pop_last() is None


def test_prefixes_and_items_contain_what_a_dict_would(db):
    pairs = db.table("pairs", key=(int, str), value=int)
    pairs.update({(1, ""): 0, (1, "ab"): 1, (1, "abc"): 2, (1, "b"): 3, (2, "ab"): 4})
    assert list(pairs.prefix((1, "ab"))) == [((1, "ab"), 1)] and (1, "abc") not in pairs.prefix((1, "ab"))
    assert list(pairs.prefix((1, ""))) == [((1, ""), 0)] and len(pairs.prefix((1,))) == 4
    assert len(pairs.prefix((1, "ab"), reverse=True)) == 1 and len(pairs.prefix((1, "a"))) == 0
    with pytest.raises(TypeError):
        pairs.prefix(None)
    for foreign in (5, None, "ab", [(1, "ab"), 1], ((1, "ab"), 1, 2), ((1, "ab"),)):
        assert foreign not in pairs.items() and foreign not in dict(pairs).items()
    assert ((1, "ab"), 1) in pairs.items()
    assert azekura.Table[str, int] and azekura.SnapshotTable[str, int]  # in annotations


def test_a_with_block_does_not_wait_for_itself(db):
    stock = db.table("stock", key=str, value=int)
    stock["rice"] = 1
    with db.begin() as tx:
        tx[stock]["rice"] += 1
        with pytest.raises(azekura.Invalid, match="same thread"):
            stock["rice"] = 9  # not tx[stock]
        assert tx[stock]["rice"] == 2
    with pytest.raises(azekura.Invalid, match="same thread"):
        db.transact(lambda tx: (tx[stock].add("rice"), stock.add("rice")))
    assert stock["rice"] == 2
    # Without `with`, too. Before, the call waited without end.
    tx = db.begin()
    tx[stock]["rice"] = 3
    with pytest.raises(azekura.Invalid, match="same thread"):
        stock.add("rice")
    other = db.begin()
    with pytest.raises(azekura.Invalid, match="same thread"):
        other[stock].add("rice")
    other.abort()
    # A transaction that another thread ends is waited for.
    tx.detach_from_thread()
    threading.Timer(0.2, tx.commit).start()
    assert stock.add("rice") == 4
    with db.begin() as tx:
        thread = threading.Thread(target=lambda: tx[stock].add("rice"))
        thread.start()
        thread.join()
        threading.Timer(0.2, tx.commit).start()
        assert stock.add("rice") == 6


def test_threads_that_share_an_iterator_get_its_rows_or_a_named_error(db):
    table = db.table("t", key=int, value=int)
    table.update((n, n) for n in range(3000))
    rows, found, errors = iter(table), [], set()

    def work():
        while True:
            try:
                found.append(next(rows))
            except RuntimeError as error:
                errors.add(str(error))
            except StopIteration:
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(3000))
    assert errors <= {"another thread uses this iterator"}


def test_reports(tmp_path):
    with azekura.open(tmp_path / "db", close_time=1) as db:
        table = db.table("t", key=int)
        table.update((n, b"x" * 100) for n in range(5000))
        assert db.stats()["cache"]["frames"] > 0
        report = db.check()
        assert report["findings"] == [] and report["tables"][0]["rows"] == 5000
        db.checkpoint()
        assert db.compact_into(tmp_path / "small") == 5000
    with azekura.open(tmp_path / "small", read_only=True) as db:
        assert len(db.table("t", key=int)) == 5000


def test_errors_have_the_bases_that_python_expects(tmp_path):
    assert issubclass(azekura.Invalid, ValueError) and issubclass(azekura.IoError, OSError)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        azekura.open(tmp_path / "file" / "db")
    assert isinstance(caught.value, azekura.IoError) and caught.value.errno == errno.ENOTDIR
    with pytest.raises(azekura.Invalid):
        azekura.open(tmp_path / "db", transaction_timeout=-1)


def test_a_limit_ends_waiting_and_long_transactions(tmp_path):
    with azekura.open(tmp_path / "db") as db:
        table = db.table("t", key=int, value=int)
        table[1] = 1
        holder = db.begin()
        holder[table][1] = 2
        holder.detach_from_thread()
        with pytest.raises(azekura.Conflict):
            with db.begin(lock_timeout=0.01) as tx:
                tx[table][1] = 3
        holder.abort()
    with azekura.open(tmp_path / "db", transaction_timeout=1) as db:
        table = db.table("t", key=int, value=int)
        holder, end = db.begin(), time.monotonic() + 60
        with pytest.raises(azekura.Busy):
            while time.monotonic() < end:
                holder[table][1] = 4
                time.sleep(0.05)
        assert table[1] == 1
        holder.abort()
    with pytest.raises(ZeroDivisionError):
        with azekura.open(tmp_path / "db") as db:
            tx = db.begin()
            1 // 0  # more informative than the error that an open transaction causes at close
    tx.abort()
    for bad in (-1, math.nan):
        with pytest.raises(azekura.Invalid, match="not a number of seconds"):
            azekura.open(tmp_path / "db", lock_timeout=bad)


def test_a_call_of_a_table_ends_after_the_lock_timeout(tmp_path):
    with azekura.open(tmp_path / "db", lock_timeout=0.2) as db:
        table = db.table("t", key=int, value=int)
        table[1] = 1
        holder = db.begin()
        holder[table][1] = 2
        holder.detach_from_thread()
        began = time.monotonic()
        calls = [lambda: table.get(1), lambda: table.add(1), lambda: list(table), lambda: table.pop(1)]
        for call in calls:
            with pytest.raises(azekura.Conflict, match="waited"):
                call()
        assert time.monotonic() - began < 50
        holder.abort()
        assert table.add(1) == 2


def test_the_search_for_a_key_hides_no_other_exception(tmp_path):
    class Stopped:
        def __index__(self):
            raise KeyboardInterrupt

    with azekura.open(tmp_path / "db") as db:
        table = db.table("t", key=int, value=int)
        table[1] = 1
        for never in ("1", 2**70, None, 1.5, b"1"):
            assert never not in table and never not in table.keys()
        for rows in (table, table.keys()):
            with pytest.raises(KeyboardInterrupt):
                Stopped() in rows


def test_a_transaction_with_a_hidden_conflict_runs_again(tmp_path):
    def returns(error):
        return None

    def raises_another(error):
        raise LookupError("hides the conflict") from error

    with azekura.open(tmp_path / "db", lock_timeout=0.01) as db:
        table = db.table("t", key=int, value=int)
        table[1] = 1
        for hide in (returns, raises_another):
            holder, runs = db.begin(), []
            holder[table][1] = 2
            holder.detach_from_thread()

            def body(tx):
                runs.append(tx)
                tx[table][2] = len(runs)
                try:
                    tx[table][1] = 3
                except azekura.Conflict as error:
                    holder.abort()
                    hide(error)

            db.transact(body)
            assert (len(runs), table[1], table[2]) == (2, 3, 2)
        holder, runs = db.begin(), []
        holder[table][1] = 2
        holder.detach_from_thread()

        def is_stopped(tx):
            runs.append(tx)
            try:
                tx[table][1] = 4
            except azekura.Conflict:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            db.transact(is_stopped)
        assert len(runs) == 1
        with pytest.raises(azekura.Conflict, match="waited"):
            with db.begin() as tx:
                try:
                    tx[table][1] = 4
                except azekura.Conflict:
                    pass
        holder.abort()
        assert table[1] == 3


def test_no_run_of_a_transaction_begins_after_the_retry_time(tmp_path):
    with azekura.open(tmp_path / "db", lock_timeout=0.05) as db:
        table = db.table("t", key=int, value=int)
        table[1] = 1
        holder = db.begin()
        holder[table][1] = 2
        holder.detach_from_thread()
        runs = []

        def add(tx):
            runs.append(time.monotonic())
            return tx[table].add(1)

        for retry_time, most in ((0, 1), (0.5, 50)):
            runs.clear()
            with pytest.raises(azekura.Conflict, match="waited"):
                db.transact(add, retry_time=retry_time)
            assert 1 <= len(runs) <= most
            assert runs[-1] - runs[0] < 0.5
        with pytest.raises(azekura.Conflict, match="waited"):
            asyncio.run(db.transact_async(add, retry_time=0))
        with pytest.raises(azekura.Invalid, match="not a number of seconds"):
            db.transact(add, retry_time=-1)
        holder.abort()
        assert db.transact(add, retry_time=None) == 2


def test_an_async_function_is_no_body_of_a_transaction(db):
    table = db.table("t", key=int, value=int)

    async def add(tx):
        tx[table][1] = 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_loop = lambda: asyncio.run(db.transact_async(add))
        for call in (lambda: db.transact(add), db.transaction(add), in_loop):
            with pytest.raises(TypeError, match="plain function"):
                call()
    assert len(table) == 0


def test_a_forgotten_transaction_warns_and_holds_no_lock(db):
    table = db.table("t", key=int, value=int)
    tx = db.begin()
    tx[table][1] = 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del tx
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    table[1] = 2
    assert table[1] == 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        db.begin()[table][1] = 3  # the table lives longer than the transaction
        iterator = iter(db.begin()[table])
        assert next(iterator) == 1
        del iterator
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning] * 2
    assert table[1] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with db.begin() as tx:
            tx[table][1] = 3
        db.begin().abort()
        del tx
        gc.collect()


def test_the_warning_about_a_forgotten_transaction_replaces_no_exception(db):
    def forget(*_):
        pass

    for action in ("always", "error"):
        ignored = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            hook, sys.unraisablehook = sys.unraisablehook, ignored.append
            try:
                with pytest.raises(ZeroDivisionError):
                    forget(db.begin(), 1 // 0)
            finally:
                sys.unraisablehook = hook
        seen = [entry.category for entry in caught] + [entry.exc_type for entry in ignored]
        assert seen == [ResourceWarning]


def test_several_tasks_await_one_ticket(tmp_path):
    async def main():
        with azekura.open(tmp_path / "db") as db:
            table = db.table("t", key=int, value=int)

            async def wait(ticket):
                await ticket

            for n in range(30):
                tx = db.begin()
                tx[table][n] = n
                ticket = tx.commit_nowait()
                await asyncio.wait_for(asyncio.gather(*(wait(ticket) for _ in range(5))), 30)

    asyncio.run(main())


def test_commits_are_awaited_together(tmp_path):
    async def main():
        with azekura.open(tmp_path / "db") as db:
            table = db.table("t", key=int, value=int)

            async def one(n):
                tx = db.begin()
                tx[table][n] = n
                ticket = tx.commit_nowait()
                await ticket
                assert ticket.durable
                await ticket  # again

            await asyncio.gather(*map(one, range(200)))
            assert len(table) == 200

            async def add():
                return await db.transact_async(lambda tx: tx[table].add(0))

            assert sorted(await asyncio.gather(*(add() for _ in range(40)))) == list(range(1, 41))
            with pytest.raises(ZeroDivisionError):
                await db.transact_async(lambda tx: 1 // 0)
            tx = db.begin(durable=False)
            tx[table][-2] = -2
            tx.commit_nowait().wait()

    asyncio.run(main())
    with azekura.open(tmp_path / "db", create=False) as db:
        assert db.table("t", key=int, value=int)[-2] == -2


def test_a_loop_that_is_closed_disturbs_no_later_one(tmp_path):
    program = f"""
import asyncio, azekura
db = azekura.open({str(tmp_path / "db")!r})
table = db.table("t", key=int, value=int)

async def leave():
    tx = db.begin()
    tx[table][1] = 1
    asyncio.ensure_future(wait(tx.commit_nowait()))

async def wait(ticket):
    await ticket

async def stay():
    tx = db.begin()
    tx[table][2] = 2
    await tx.commit_nowait()
    print("durable")

for _ in range(20):
    asyncio.run(leave())
asyncio.run(stay())
db.close()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "durable\n", "")


def test_calls_while_the_interpreter_ends_neither_panic_nor_end_the_process(tmp_path):
    program = f"""
import time
import azekura

class Last:
    def __init__(self):
        self.db, self.closed = azekura.open({str(tmp_path / "db")!r}), azekura.in_memory()
        self.sleep = time.sleep
        self.rows, self.copy = self.db.table("t"), {str(tmp_path / "copy")!r}
        self.rows[b"a"] = b"1"
        self.closed.close()

    def __del__(self):
        # No module can be imported any more, and no other thread can run Python code.
        backup = lambda: self.db.backup(self.copy, progress=max)
        for call in (self.closed.table_names, self.rows.pop_first, backup):
            try:
                call()
            except Exception:
                pass
        tx = self.db.begin()
        tx[self.rows][b"b"] = b"2"
        ticket = tx.commit_nowait()
        ticket._notify(int)
        ticket.wait()
        self.sleep(0.2)  # meanwhile the thread of the callback finds that it cannot run it
        assert b"b" in self.rows
        print("ended", flush=True)

last = Last()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_rust_program_reads_the_same_rows(tmp_path):
    """The encodings are those in the documentation of `azekura::Key` and `azekura::Value`."""
    with azekura.open(tmp_path / "db") as db:
        db.table("t", key=(str, int), value=float)[("Nara", -2)] = 0.5
        rows = list(db.table("t").items())
        assert rows == [(b"Nara\0\0" + (2**63 - 2).to_bytes(8, "big"), bytes([0, 0, 0, 0, 0, 0, 0xE0, 0x3F]))]
