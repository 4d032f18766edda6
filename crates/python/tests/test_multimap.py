"""Tests of multimap tables."""

import azekura
import pytest


@pytest.fixture
def db(tmp_path):
    with azekura.open(tmp_path / "db.azk") as db:
        yield db


def test_a_key_has_an_ordered_set_of_values(db):
    tags = db.multimap_table("tags", key=str, value=int)
    assert not tags and tags.first() is None and tags.last() is None
    assert tags.add("tea", 3) and not tags.add("tea", 3) and tags.add("tea", -1)
    tags.update([("rice", 7), ("teapot", 1), ("", 2**63 - 1)])
    values = tags.get("tea")
    assert list(values) == [-1, 3] and list(reversed(values)) == [3, -1] and len(values) == 2
    assert 3 in values and 4 not in values and "text" not in values
    assert list(tags.get("tea", reverse=True)) == [3, -1]
    assert list(tags.get("missing")) == [] and not tags.get("missing")
    assert list(tags) == [("", 2**63 - 1), ("rice", 7), ("tea", -1), ("tea", 3), ("teapot", 1)]
    assert list(reversed(tags)) == list(tags)[::-1]
    assert list(tags.items("rice", "teapot")) == [("rice", 7), ("tea", -1), ("tea", 3)]
    assert list(tags.items("tea", reverse=True)) == [("teapot", 1), ("tea", 3), ("tea", -1)]
    assert list(tags.items(None, "rice")) == list(tags)[:1] and len(tags.items()) == 5
    assert ("tea", 3) in tags and ("tea", 4) not in tags and "te" not in tags
    assert tags.first() == ("", 2**63 - 1) and tags.last() == ("teapot", 1)
    assert tags.remove("tea", 3) and not tags.remove("tea", 3)
    tags.add("tea", 4)
    assert tags.remove_all("tea") == 2 and tags.remove_all("tea") == 0
    assert len(tags) == 3 and tags
    tags.clear()
    assert not tags
    assert "-1" not in repr(tags) and "tea" in repr(tags.get("tea"))


def test_the_table_is_that_of_a_program_in_rust(db):
    tags = db.multimap_table("tags", key=str, value=int)
    tags.add("tea", 3)
    assert db.tables() == {"tags": ("(str, i64)", "()")}
    rows = db.table("tags", key=(str, int), value=())
    assert list(rows.items()) == [(("tea", 3), ())]
    with pytest.raises(TypeError, match="are \\(\\), not"):
        rows[("tea", 4)] = (1,)
    with pytest.raises(azekura.Invalid, match="stored types"):
        db.multimap_table("tags").add(b"a", b"b")
    for refused in ({"key": (str, int)}, {"value": "json"}, {"value": ()}):
        with db.begin() as tx, db.snapshot() as snap:
            for scope in (db, tx, snap):
                with pytest.raises(TypeError, match="'more': a codec is bytes, str, int or float") as error:
                    scope.multimap_table("more", **refused)
                assert "tuple of these" not in str(error.value)
    with pytest.raises(TypeError):
        tags.add("tea", "text")


def test_keys_and_pairs_are_contained(db):
    tags = db.multimap_table("tags", key=str, value=int)
    tags.add("tea", 3)
    assert "tea" in tags and ("tea", 3) in tags
    for absent in ("te", "tea ", 5, None, b"tea", ("tea", 4), ("tea",), ("tea", "3"), []):
        assert absent not in tags
    tags.remove("tea", 3)
    assert "tea" not in tags


def test_in_transactions_and_snapshots(db):
    tags = db.multimap_table("tags")
    with pytest.raises(LookupError), db.begin() as tx:
        tx[tags].add(b"a", b"\0")
        tx[tags].add(b"a\0", b"")
        tx[tags].add(b"a", b"")
        assert list(tx[tags].get(b"a")) == [b"", b"\0"]
        assert list(tx.multimap_table("tags").get(b"a\0")) == [b""]
        raise LookupError
    assert not tags
    with db.begin() as tx:
        tx[tags].update((b"k%d" % (n % 3), b"v%04d" % n) for n in range(3000))
    with db.snapshot() as snap:
        assert tags.remove_all(b"k1") == 1000
        old = snap[tags]
        assert len(old) == 3000 and len(old.get(b"k1")) == 1000 and len(tags) == 2000
        assert list(old.get(b"k2"))[-1] == b"v2999" and len(snap.multimap_table("tags")) == 3000
        with pytest.raises(AttributeError):
            old.add(b"a", b"b")
    for scope in (db.begin(), db.snapshot()):
        with scope, pytest.raises(TypeError):
            scope["tags"]
    more = db.multimap_table("more", key=int, value=float)
    assert more.bulk_load((n, n / 2) for n in range(1000)) == 1000
    assert list(more.get(-1)) == [] and list(more.get(7)) == [3.5]
    more.add(2**63 - 1, float("inf"))
    assert more.remove_all(2**63 - 1) == 1


def test_a_prefix_of_keys_is_removed(db):
    table = db.table("t", key=str, value=int)
    table.update({"a": 1, "ab": 2, "abc": 3, "b": 4})
    with pytest.raises(TypeError, match="prefix"):
        table.remove_range("a", prefix="ab")
    assert table.remove_range(prefix="ab") == 2 and dict(table) == {"a": 1, "b": 4}
