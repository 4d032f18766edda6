"""Tests of bulk loads, conditional writes, and the copies and options of stores."""

import datetime
import os
import stat

import azekura
import pytest


@pytest.fixture
def db(tmp_path):
    with azekura.open(tmp_path / "db.azk", archive=tmp_path / "archive") as db:
        yield db


def test_a_bulk_load_takes_rows_of_any_iterable(db):
    squares = db.table("squares", key=int, value=int)
    assert squares.bulk_load((n, n * n) for n in range(10_000)) == 10_000
    assert (squares[99], len(squares)) == (9801, 10_000)
    with pytest.raises(azekura.Invalid, match="rows already"):
        squares.bulk_load([(10_001, 1)])
    assert squares.bulk_load([(7, 0), (20_000, 2), (20_000, 3)], is_sorted=False) == 2
    assert (squares[7], squares[20_000], len(squares)) == (0, 3, 10_001)
    assert db.table("none").bulk_load([]) == 0


def test_a_failed_bulk_load_changes_nothing(db):
    table = db.table("t")

    def rows():
        yield b"a", b"1"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        table.bulk_load(rows())
    with pytest.raises(azekura.Invalid, match="not above"):
        table.bulk_load([(b"b", b""), (b"a", b"")])
    for wrong in ([(b"a", 1)], [(b"a",)], [1], 7):
        with pytest.raises((TypeError, ValueError)):
            table.bulk_load(wrong)
    assert dict(table) == {}
    with db.begin() as tx:
        inside = tx[table]

        def uses_the_transaction():
            yield b"a", b"1"
            inside[b"b"] = b"2"

        with pytest.raises(RuntimeError, match="uses this transaction"):
            inside.bulk_load(uses_the_transaction())
        assert inside.bulk_load([(b"c", b"3")]) == 1
    assert dict(table) == {b"c": b"3"}


def test_conditional_writes(db):
    stock = db.table("stock", key=str, value=int)
    assert stock.insert_if_absent("rice", 1) and not stock.insert_if_absent("rice", 2)
    assert not stock.compare_and_set("rice", 2, 3)
    assert stock.compare_and_set("rice", 1, 3) and stock["rice"] == 3
    assert not stock.compare_and_set("rice", None, 4)
    assert stock.compare_and_set("rice", 3, None) and "rice" not in stock
    assert stock.compare_and_set("tea", None, 4) and dict(stock) == {"tea": 4}
    assert db.tables() == {"stock": ("str", "i64")}


def test_a_transaction_without_waits(db):
    table = db.table("t")
    table[b"a"] = b"1"
    with db.begin() as first:
        first[table][b"a"] = b"2"
        with db.begin(nowait=True) as second:
            with pytest.raises(azekura.Busy):
                second[table][b"a"]
            assert second[table].pop_first() is None
            with pytest.raises(azekura.Busy):
                second[table].pop_first(skip_locked=False)


def test_incremental_backups_and_a_restore_to_a_time(db, tmp_path):
    table = db.table("t", key=int, value=int)
    table.update((n, n) for n in range(1000))
    assert db.backup(tmp_path / "full") == 1000
    before = db.archive_log()
    assert before.tzinfo == datetime.timezone.utc
    assert abs(datetime.datetime.now(datetime.timezone.utc) - before) < datetime.timedelta(hours=1)
    table[1000] = 1000
    db.archive_log()
    db.backup(tmp_path / "more", since=tmp_path / "full")
    assert azekura.verify_backup(tmp_path / "full") == 1000
    with pytest.raises(azekura.Invalid, match="incremental"):
        azekura.restore(tmp_path / "more", tmp_path / "copy.azk")
    azekura.restore(tmp_path / "more", tmp_path / "copy.azk", bases=[tmp_path / "full"], verify=True)
    archive = tmp_path / "archive"
    azekura.restore(tmp_path / "full", tmp_path / "past.azk", archive=archive, to_time=before)
    azekura.restore(tmp_path / "full", tmp_path / "also.azk", archive=archive, to_time=before.timestamp())
    azekura.restore(tmp_path / "full", tmp_path / "now.azk", archive=archive)
    for name, rows in {"copy": 1001, "past": 1000, "also": 1000, "now": 1001}.items():
        with azekura.open(tmp_path / f"{name}.azk", create=False) as copy:
            assert len(copy.table("t", key=int, value=int)) == rows, name
    for wrong in (-1, float("nan"), "noon"):
        with pytest.raises((azekura.Invalid, TypeError)):
            azekura.restore(tmp_path / "full", tmp_path / "no.azk", archive=archive, to_time=wrong)


def test_compaction_with_another_page_size_and_key(db, tmp_path):
    table = db.table("t", key=int, value=str)
    table.bulk_load((n, "x" * 100) for n in range(20_000))
    seen = []
    to = tmp_path / "small.azk"
    rows = db.compact_into(
        to, page_size=4096, encryption_key=b"k" * 32, progress=lambda *now: seen.append(now)
    )
    assert rows == 20_000 and seen[-1][0] == 20_000 and seen == sorted(seen)
    with azekura.open(to, encryption_key=b"k" * 32) as small:
        assert (small.page_size, small.path, len(small.table("t", key=int, value=str))) == (4096, to, 20_000)

    def stop(*_):
        raise ZeroDivisionError

    for call in (db.check, lambda progress: db.compact_into(tmp_path / "other.azk", progress=progress)):
        with pytest.raises(ZeroDivisionError):
            call(progress=stop)
    assert db.check(repair=True, progress=lambda *now: seen.append(now))["findings"] == []
    assert 1024 <= db.max_key_bytes < db.page_size


def test_options_of_durability_and_files(tmp_path):
    path = tmp_path / "db.azk"
    with azekura.open(path, durable=False, file_mode=0o640, version_bytes=1 << 20) as db:
        db.table("t")[b"a"] = b"1"
        with db.begin(durable=True) as tx:
            tx.table("t")[b"b"] = b"2"
    assert stat.S_IMODE(os.stat(path / "CONTROL").st_mode) == 0o640
    with azekura.open(path, log_sync_interval=0.1) as db:
        with db.snapshot(durable=True) as snap:
            assert dict(snap.table("t")) == {b"a": b"1", b"b": b"2"}
            snap.wait_durable()
            assert 0 <= snap.age < 3600
    with azekura.in_memory() as db, pytest.raises(azekura.Invalid, match="archive"):
        db.archive_log()


def test_a_call_beyond_the_limit_of_undo_memory_is_undone(tmp_path):
    with azekura.open(tmp_path / "db.azk", memory_bytes=32 << 20, undo_bytes=1 << 20) as db:
        table = db.table("t", key=int)
        table.bulk_load((n, bytes(1000)) for n in range(5000))
        assert issubclass(azekura.UndoMemoryExhausted, azekura.Busy)
        with pytest.raises(azekura.UndoMemoryExhausted, match="commit after fewer changes"):
            table.clear()
        assert len(table) == 5000
        with db.begin() as tx:
            rows = tx[table]
            del rows[0]
            with pytest.raises(azekura.UndoMemoryExhausted):
                rows.clear()
            assert len(rows) == 4999 and rows.remove_range(1, 100) == 99
        assert len(table) == 4900
    with pytest.raises(azekura.Invalid, match="memory"):
        azekura.open(tmp_path / "db.azk", memory_bytes=1 << 20)
