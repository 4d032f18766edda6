"""The mapping tests of CPython, run on tables of a database, of a transaction and in `azekura.dbm`."""

import os
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
    assert result.testsRun >= 12
    assert result.wasSuccessful(), result.errors + result.failures


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
