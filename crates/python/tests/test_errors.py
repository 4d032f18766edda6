"""Tests of error messages, and of tables of other databases and of closed snapshots."""

import importlib.metadata
import math
import re

import azekura
import pytest


@pytest.fixture
def db():
    return azekura.in_memory()


def raised(kind, call):
    with pytest.raises(kind) as found:
        call()
    return found.value


def test_errors_of_codecs_name_the_table_and_the_codec(db):
    class Refusing:
        def __index__(self):
            raise TypeError("no number today")

    stock, pairs = db.table("stock", key=str, value=int), db.table("pairs", key=(str, int), value="json")
    keys, values = 'the keys of table "stock" are str', 'the values of table "stock" are int'
    parts, plain = 'the keys of table "pairs" are (str, int)', db.table("plain")
    for call, text in (
        (lambda: stock.get(5), f"{keys}, not int"),
        (lambda: stock.update({5: 1}), f"{keys}, not int"),
        (lambda: stock.bulk_load([("a", 1.5)]), f"{values}, not float"),
        (lambda: stock.insert_if_absent("a", "1"), f"{values}, not str"),
        (lambda: list(stock.keys(b"a")), f"{keys}, not bytes"),
        (lambda: list(stock.prefix(b"a")), f"{keys}, not bytes"),
        (lambda: stock.read_at("a", 0, 1), f"{values}; only values of bytes are read in parts"),
        (lambda: stock.insert_if_absent("a", Refusing()), f"{values}: no number today"),
        (lambda: pairs.get(("a",)), f"{parts}, not (str,)"),
        (lambda: pairs.get(("a", "b")), f"{parts}, not (str, str)"),
        (lambda: pairs.remove_range(prefix=("a", 1, 2)), f"{parts}, not (str, int, int)"),
        (lambda: pairs.get("a"), f"{parts}, not str"),
        (lambda: pairs.insert_if_absent(("a", 1), {1}), 'of table "pairs" are json: Object of type set'),
        (lambda: db.table("n", key=int).prefix(1), 'the keys of table "n" are int; only keys of str'),
        (lambda: plain.add(b"a"), 'the values of table "plain" are bytes; add() needs int'),
        (lambda: plain.get("a"), 'the keys of table "plain" are bytes, not str; give table() the codecs'),
    ):
        assert text in str(raised(TypeError, lambda: list(call() or ()))), text
    text = str(raised(OverflowError, lambda: stock.setdefault("a", 2**63)))
    assert text.startswith(f"{values}, and this one does not fit into 64 bits: ")
    text = str(raised(ValueError, lambda: db.table("f", key=float).get(math.nan)))
    assert text.startswith('the keys of table "f" are float: NaN')
    cause = raised(TypeError, lambda: stock.insert_if_absent("a", Refusing())).__cause__
    assert isinstance(cause, TypeError)
    assert not stock


def test_messages_name_settings_as_python_does(db, tmp_path):
    key, copy = bytes(32), (tmp_path / "copy", tmp_path / "new")
    with azekura.open(tmp_path / "secret", encryption_key=key) as secret:
        secret.table("t")[b"a"] = b"1"
        secret.backup(tmp_path / "copy")
    calls = (
        lambda: db.archive_log(),
        lambda: azekura.open(tmp_path / "secret"),
        lambda: azekura.restore(*copy, encryption_key=key, to_time=1),
        lambda: azekura.restore(*copy, encryption_key=key, archive=tmp_path / "a"),
        lambda: azekura.open(tmp_path / "secret", encryption_key=b"short"),
        lambda: db.table("b").bulk_load([(b"b", b""), (b"a", b"")]),
    )
    for call in calls:
        assert "::" not in str(raised(azekura.Error, call))
    assert "`archive`" in str(raised(azekura.Invalid, calls[0]))
    assert "`encryption_key`" in str(raised(azekura.Invalid, calls[1]))
    assert "an encryption key has 32 bytes, not 5" in str(raised(ValueError, calls[4]))
    with azekura.open(tmp_path / "secret", encryption_key=key) as secret:
        assert "::" not in str(raised(azekura.Busy, calls[1]))
        for wrong in ("text", 5):
            message = str(raised(TypeError, lambda: secret.change_encryption_key(wrong)))
            assert "an encryption key is 32 bytes, not" in message
        tx = secret.begin()
        assert "1 transaction or snapshot is open" in str(raised(azekura.Busy, secret.close))
        tx.abort()


def test_a_table_belongs_to_its_database(db, tmp_path):
    with azekura.open(tmp_path / "other") as other:
        stock, tags = other.table("stock", key=str, value=int), other.multimap_table("tags")
        stock["rice"] = 1
        with db.begin() as tx, db.snapshot() as snap:
            for scope in (tx, snap):
                for table in (stock, tags):
                    with pytest.raises(azekura.Invalid, match=f"belongs to {re.escape(str(other.path))}"):
                        scope[table]
        with other.begin() as tx, other.snapshot() as snap:
            for table in (tx[stock], snap[stock], tx[tx[stock]], snap[tx[stock]], snap[snap[stock]]):
                assert table["rice"] == 1
    with db.begin() as tx, pytest.raises(azekura.Invalid, match="belongs to"):
        tx[stock]
    assert "stock" not in db.table_names()


def test_the_close_of_a_snapshot_ends_its_tables(tmp_path):
    db = azekura.open(tmp_path / "d")
    stock = db.table("stock", key=int, value=int)
    stock.update((n, n) for n in range(1000))
    with db.snapshot() as snap:
        old, rows, tags = snap[stock], iter(snap[stock].items()), snap.multimap_table("tags")
        assert next(rows) == (0, 0) and not tags
        assert [len(snap[stock]) for _ in range(10)] == [1000] * 10
    for call in (lambda: old[1], lambda: list(rows), lambda: len(tags), lambda: 1 in old):
        with pytest.raises(azekura.Closed, match="the snapshot was closed"):
            call()
    forgotten = db.snapshot()[stock]
    assert forgotten[1] == 1
    with pytest.raises(azekura.Busy):
        db.close()
    del forgotten
    db.close()


def test_the_version_is_that_of_the_package():
    assert azekura.__version__ == importlib.metadata.version("azekura")
