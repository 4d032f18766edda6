"""The mapping tests of CPython, run on tables of a database, of a transaction and in `azekura.dbm`."""

import os
import queue
import threading
import unittest

import azekura
import azekura.dbm
import pytest

mapping_tests = pytest.importorskip("test.mapping_tests", reason="this Python has no package `test`")


class TestTableOfDatabase(mapping_tests.BasicTestMappingProtocol):
    def setUp(self):
        self.db, self.number = azekura.in_memory(), 0

    def _empty_mapping(self):
        self.number += 1
        return self.db.table(f"t{self.number}", key=str, value="pickle")


class TestTableOfTransaction(TestTableOfDatabase):
    def setUp(self):
        super().setUp()
        self.tx = self.db.begin()
        self.addCleanup(self.tx.abort)

    def _empty_mapping(self):
        self.number += 1
        return self.tx.table(f"t{self.number}", key=str, value="pickle")


def test_cpythons_tests_of_dbm(tmp_path, monkeypatch):
    tests = pytest.importorskip("test.test_dbm", reason="this Python has no package `test`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tests.dbm, "open", azekura.dbm.open)
    monkeypatch.setattr(tests.dbm, "error", azekura.dbm.error)
    kind = type("TestAzekura", (tests.AnyDBMTestCase, unittest.TestCase), {"module": azekura.dbm})
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    assert result.testsRun >= 10  # CPython 3.10 has 10
    assert result.wasSuccessful(), result.errors + result.failures


def test_popitem_waits_where_all_rows_are_locked(tmp_path):
    with azekura.open(tmp_path / "d") as db:
        rows, popped = db.table("t", key=int, value=int), queue.Queue()
        rows.update({1: 1, 2: 2})
        with pytest.raises(ZeroDivisionError):
            with db.begin() as tx:
                tx[rows].update({1: 3, 2: 4})
                thread = threading.Thread(target=lambda: popped.put(rows.popitem()))
                thread.start()
                with pytest.raises(queue.Empty):
                    popped.get(timeout=0.3)
                1 // 0
        assert popped.get(timeout=60) == (1, 1)
        thread.join()
        assert rows.popitem() == (2, 2)
        with pytest.raises(KeyError):
            rows.popitem()


def test_dbm_in_threads(tmp_path):
    with azekura.dbm.open(tmp_path / "d", "c") as db:
        popped, failed = [], []

        def work(call):
            try:
                for number in range(100):
                    db[str(number % 3)] = "x"
                    popped.append(call())
            except BaseException as error:
                failed.append(error)

        calls = [lambda: db.pop("1", b"none"), lambda: db.pop("1", b"none"), lambda: len(db.keys())]
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed and len(popped) == 300
        while db:
            assert db.popitem()[1] == b"x"
        with pytest.raises(KeyError):
            db.popitem()


def test_a_dbm_close_that_is_refused_can_be_repeated(tmp_path):
    db = azekura.dbm.open(tmp_path / "d", "c")
    snapshot = db._db.snapshot()
    with pytest.raises(azekura.dbm.error, match="in use"):
        db.close()
    db["a"] = "1"
    snapshot.close()
    db.close()
    db.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with azekura.dbm.open(tmp_path / "link", "n") as db:
        db["a"] = "1"
    assert (tmp_path / "link").is_symlink() and (tmp_path / "empty" / "CONTROL").exists()


def test_dbm_iterations_and_blocks_have_its_errors(tmp_path):
    with azekura.dbm.open(tmp_path / "d", "c") as db:
        db["a"] = "1"
        keys = iter(db)
    with pytest.raises(azekura.dbm.error):
        next(keys)
    with pytest.raises(azekura.dbm.error):
        iter(db)
    db = azekura.dbm.open(tmp_path / "d", "w")
    with db._db.begin():
        with pytest.raises(ZeroDivisionError):
            with db:
                1 // 0
        with pytest.raises(azekura.dbm.error), db:
            pass
    assert list(db) == [b"a"]
    db.close()


def test_dbm_empties_no_store_that_is_in_use(tmp_path):
    with azekura.dbm.open(tmp_path / "d", "c") as db:
        db["a"] = "1"
        with pytest.raises(azekura.dbm.error, match="open already"):
            azekura.dbm.open(tmp_path / "d", "n")
        db["b"] = "2"
    with azekura.dbm.open(tmp_path / "d") as db:
        assert db.keys() == [b"a", b"b"]
    (tmp_path / "link").symlink_to(tmp_path / "d")
    with azekura.dbm.open(tmp_path / "link", "n") as db:
        assert len(db) == 0
    (tmp_path / "d" / "CONTROL").write_bytes(b"damaged")
    with azekura.dbm.open(tmp_path / "d", "n") as db:
        assert db.keys() == []


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def of_format_version(control, version):
    """Returns the bytes of CONTROL with a slot of another format version and no content."""
    head = b"AZEKURA\x01" + version.to_bytes(4, "little") + bytes(4)
    slot = head + crc32c(head).to_bytes(4, "little") + bytes(4)
    return slot + control[len(slot) :]


def test_dbm_replaces_only_a_damaged_store(tmp_path):
    def files(path):
        return {found: found.read_bytes() for found in sorted(path.rglob("*")) if found.is_file()}

    def refuses(path, match):
        before = files(path)
        with pytest.raises(azekura.dbm.error, match=match):
            azekura.dbm.open(path, "n")
        assert files(path) == before

    key = bytes(range(32))
    with azekura.open(tmp_path / "encrypted", encryption_key=key) as db:
        db.table("dbm")[b"a"] = b"1"
    refuses(tmp_path / "encrypted", "is encrypted")
    with azekura.open(tmp_path / "encrypted", encryption_key=key) as db:
        assert db.table("dbm")[b"a"] == b"1"

    with azekura.dbm.open(tmp_path / "restored", "c") as db:
        db["a"] = "1"
    (tmp_path / "restored" / "RESTORING").write_bytes(bytes(8))
    refuses(tmp_path / "restored", "did not finish")

    with azekura.dbm.open(tmp_path / "later", "c") as db:
        db["a"] = "1"
    control = tmp_path / "later" / "CONTROL"
    control.write_bytes(of_format_version(control.read_bytes(), 4000))
    refuses(tmp_path / "later", "format version 4000")


def test_dbm_removes_no_file_beside_a_damaged_store(tmp_path):
    path = tmp_path / "d"
    with azekura.dbm.open(path, "c") as db:
        db["a"] = "1"
    (path / "CONTROL").write_bytes(b"damaged")
    (path / "letter").write_text("keep me")
    names = sorted(os.listdir(path))
    with pytest.raises(azekura.dbm.error, match="letter"):
        azekura.dbm.open(path, "n")
    assert sorted(os.listdir(path)) == names
    (path / "letter").unlink()
    with azekura.dbm.open(path, "n") as db:
        assert db.keys() == []


def test_dbm_refuses_other_types_with_its_error(tmp_path):
    with azekura.dbm.open(tmp_path / "d", "c") as db:
        for wrong in (5, True, None, 1.5, [1, 2]):
            for call in (db.__getitem__, db.__contains__, db.get, db.setdefault, db.nextkey):
                with pytest.raises(TypeError):
                    call(wrong)
            with pytest.raises(TypeError):
                db[wrong] = "v"
            with pytest.raises(TypeError):
                db.update({"k": wrong})
        db[memoryview(b"a")], db[bytearray(b"b")] = bytearray(b"1"), memoryview(b"2")
        assert dict(db) == {b"a": b"1", b"b": b"2"}
        long = "k" * 100_000
        for call in (db.__getitem__, db.__delitem__, db.get, db.setdefault, db.__contains__):
            with pytest.raises(azekura.dbm.error):
                call(long)
        with pytest.raises(azekura.dbm.error):
            db.update({long: "1"})
    with azekura.dbm.open(tmp_path / "d") as db:
        for call in (lambda: db.update(a="2"), lambda: db.setdefault("c"), lambda: db.pop("a"), db.clear):
            with pytest.raises(azekura.dbm.error):
                call()


def test_dbm_walks_keys_and_refuses_foreign_directories(tmp_path):
    with azekura.dbm.open(tmp_path / "d", "c") as db:
        db["b"], db["a"], db["é"] = "2", b"1", "3"
        key, found = db.firstkey(), []
        while key is not None:
            found.append(key)
            key = db.nextkey(key)
        assert found == [b"a", b"b", "é".encode()] == db.keys()
        db.update({"c": "4"}, d="5")
        assert db["c"] == b"4" and len(db) == 5
        db.sync()
        db.reorganize()
    with pytest.raises(azekura.dbm.error):
        db["a"]
    with azekura.dbm.open(tmp_path / "d") as db:
        assert db["a"] == b"1"
        with pytest.raises(azekura.dbm.error):
            db["a"] = b"2"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("keep me")
    with pytest.raises(azekura.dbm.error):
        azekura.dbm.open(tmp_path / "home", "n")
    assert os.listdir(tmp_path / "home") == ["letter"]
    with azekura.dbm.open(tmp_path / "d", "n") as db:
        assert db.keys() == []
