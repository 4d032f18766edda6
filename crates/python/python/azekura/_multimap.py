"""Multimap tables: an ordered set of values for each key.

A multimap table is stored as a table with the pair of key and value as its key, as in Rust programs.
"""

import collections.abc
import itertools

from . import _views


class MultimapValues(collections.abc.Collection, collections.abc.Reversible):
    """A view of the values of one key."""

    def __init__(self, pairs, key, reverse):
        self._pairs, self._key, self._reverse = pairs, key, reverse

    def _iterate(self, reverse):
        return (pair[1] for pair in self._pairs._rows("keys", None, None, (self._key,), reverse))

    def __iter__(self):
        return self._iterate(self._reverse)

    def __reversed__(self):
        return self._iterate(not self._reverse)

    def __len__(self):
        return self._pairs._count(None, None, (self._key,))

    def __contains__(self, value):
        return (self._key, value) in self._pairs

    def __repr__(self):
        shown = list(itertools.islice(self, 11))
        values = ", ".join(map(repr, shown[:10])) + (", …" if len(shown) > 10 else "")
        return f"<values of {self._key!r}: [{values}]>"


class SnapshotMultimapTable:
    """A multimap table in a snapshot: iterates over its (key, value) pairs, in order."""

    __slots__ = ("_pairs", "__weakref__")

    def __init__(self, pairs):
        self._pairs = pairs

    def _in(self, transaction):
        """Returns the table in a transaction; for `transaction[table]`."""
        return MultimapTable(transaction[self._pairs])

    def _at(self, snapshot):
        """Returns the table in a snapshot; for `snapshot[table]`."""
        return SnapshotMultimapTable(snapshot[self._pairs])

    @property
    def name(self):
        """The table's name."""
        return self._pairs.name

    def __repr__(self):
        return f"<azekura multimap table {self.name!r}>"

    def __iter__(self):
        return iter(self._pairs)

    def __reversed__(self):
        return reversed(self._pairs)

    def __len__(self):
        return len(self._pairs)

    def __bool__(self):
        return bool(self._pairs)

    def __contains__(self, item):
        """Returns True if the table has a pair, or, for an object that is not a tuple, any value of a key."""
        if isinstance(item, tuple):
            return item in self._pairs
        try:
            pairs = self._pairs._rows("keys", None, None, (item,), False)
        except (TypeError, ValueError, OverflowError):
            return False  # as in a dict: an object that cannot be a key is not contained
        return next(pairs, None) is not None

    def get(self, key, *, reverse=False):
        """Returns a view of the values of a key, in order; it is empty if the key has none."""
        return MultimapValues(self._pairs, key, reverse)

    def items(self, start=_views.MISSING, end=None, *, reverse=False):
        """Returns a view of the (key, value) pairs with keys from `start` (inclusive) to `end` (exclusive).
        None means no bound."""
        start = start if start is None or start is _views.MISSING else (start,)
        return self._pairs.keys(start, None if end is None else (end,), reverse=reverse)

    def first(self):
        """Returns the least pair, or None."""
        row = self._pairs.first()
        return row and row[0]

    def last(self):
        """Returns the greatest pair, or None."""
        row = self._pairs.last()
        return row and row[0]


class MultimapTable(SnapshotMultimapTable):
    """A multimap table of a database, where each call is one transaction, or of a transaction."""

    __slots__ = ()

    def add(self, key, value):
        """Adds a value to the set of a key. Returns True if the set did not have it."""
        return self._pairs.insert_if_absent((key, value), ())

    def remove(self, key, value):
        """Removes a value from the set of a key. Returns True if the set had it."""
        return self._pairs.compare_and_set((key, value), (), None)

    def remove_all(self, key):
        """Removes all values of a key, in one transaction; returns their number."""
        return self._pairs.remove_range(prefix=(key,))

    def clear(self):
        """Removes all pairs, in one transaction."""
        self._pairs.clear()

    def update(self, pairs):
        """Adds the pairs of an iterable of (key, value), in one transaction."""
        self._pairs.update((pair, ()) for pair in pairs)

    def bulk_load(self, pairs, *, is_sorted=True):
        """Fills an empty table with an iterable of (key, value), in ascending order; returns their number. As
        `bulk_load` of a table."""
        return self._pairs.bulk_load(((pair, ()) for pair in pairs), is_sorted=is_sorted)


def _pairs(scope, name, key, value):
    for codec in (key, value):
        if codec not in (bytes, str, int, float):
            raise TypeError(f"multimap table {name!r}: a codec is bytes, str, int or float, not {codec!r}")
    return scope.table(name, key=(key, value), value=())


def multimap_table(self, name, *, key=bytes, value=bytes):
    """Returns a multimap table, which has an ordered set of values for each key. The codecs `key` and `value`
    are bytes, str, int or float."""
    return MultimapTable(_pairs(self, name, key, value))


def snapshot_multimap_table(self, name, *, key=bytes, value=bytes):
    """Returns a multimap table of the snapshot, as `Database.multimap_table` does."""
    return SnapshotMultimapTable(_pairs(self, name, key, value))
