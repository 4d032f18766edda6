"""Views of the rows of a range, like the views of a dict."""

import collections.abc
import itertools

MISSING = object()


class _View:

    def __init__(self, table, start, end, prefix, reverse):
        self._table, self._start, self._end, self._prefix, self._reverse = table, start, end, prefix, reverse

    def _rows(self, part, reverse=None):
        reverse = self._reverse if reverse is None else reverse
        return self._table._rows(part, self._start, self._end, self._prefix, reverse)

    def __len__(self):
        return self._table._count(self._start, self._end, self._prefix)

    def __iter__(self):
        return self._rows(self._part)

    def __reversed__(self):
        return self._rows(self._part, not self._reverse)

    def __repr__(self):
        shown = list(itertools.islice(self, 11))
        rows = ", ".join(map(repr, shown[:10])) + (", …" if len(shown) > 10 else "")
        return f"{type(self).__name__}([{rows}])"

    def _has_key(self, key):
        is_inside = self._table._is_inside(key, self._start, self._end, self._prefix)
        return is_inside and key in self._table


class KeysView(_View, collections.abc.KeysView):
    """The keys of a range."""

    _part = "keys"

    def __contains__(self, key):
        return self._has_key(key)


class ValuesView(_View, collections.abc.ValuesView):
    """The values of a range, in the order of their keys."""

    _part = "values"

    def __contains__(self, value):
        return any(value is found or value == found for found in self)


class ItemsView(_View, collections.abc.ItemsView):
    """The rows of a range as (key, value)."""

    _part = "items"

    def __contains__(self, item):
        # As in a dict, an object that is not a pair is not contained.
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        key, value = item
        return self._has_key(key) and self._table.get(key, MISSING) == value


def _make(kind, table, start, end, reverse):
    if start is None and end is None:
        raise TypeError("None alone is not a range: call it without arguments, or give an end")
    return kind(table, None if start is MISSING else start, end, None, reverse)


def keys(self, start=MISSING, end=None, *, reverse=False):
    """Returns a view of the keys from `start` (inclusive) to `end` (exclusive). None means no bound."""
    return _make(KeysView, self, start, end, reverse)


def values(self, start=MISSING, end=None, *, reverse=False):
    """Returns a view of the values of a range, as `keys` does for the keys."""
    return _make(ValuesView, self, start, end, reverse)


def items(self, start=MISSING, end=None, *, reverse=False):
    """Returns a view of the rows of a range as (key, value), as `keys` does for the keys."""
    return _make(ItemsView, self, start, end, reverse)


def prefix(self, prefix, *, reverse=False):
    """Returns a view of the rows as (key, value) with keys that begin with `prefix`: a string, bytes, or the
    first parts of a tuple."""
    if prefix is None:
        raise TypeError("a prefix is text, bytes or a tuple, not None")
    return ItemsView(self, None, None, prefix, reverse)


def reversed_keys(self):
    """Iterates over all keys, greatest first."""
    return self._rows("keys", None, None, None, True)


def pop(self, key, default=MISSING):
    """Removes a row and returns its value. If there is no row, returns `default` or raises KeyError."""
    found = self._take(key)
    if found is not None:
        return found[1]
    if default is MISSING:
        raise KeyError(key)
    return default


def popitem(self):
    """Removes the row with the least key that no other transaction has locked; returns it as (key, value).
    Waits if there are only locked rows, and raises KeyError if there are none."""
    row = self.pop_first()
    while row is None:
        least = next(iter(self), MISSING)
        if least is MISSING:
            raise KeyError("the table is empty")
        row = self._take(least)
    return row


def clear(self):
    """Removes all rows, in one transaction."""
    self.remove_range()


def update(self, other=(), /, **rows):
    """Stores the rows of a mapping or of an iterable of (key, value), in one transaction."""
    if isinstance(other, collections.abc.Mapping):
        pairs = list(other.items())
    elif hasattr(other, "keys"):
        pairs = [(key, other[key]) for key in other.keys()]
    else:
        pairs = [(key, value) for key, value in other]
    self._insert(pairs + list(rows.items()))
