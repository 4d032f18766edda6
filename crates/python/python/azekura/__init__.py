"""An ordered, transactional, crash-safe key-value store."""

from collections.abc import MutableMapping as _MutableMapping, Mapping as _Mapping

from ._azekura import (
    Busy,
    Closed,
    Conflict,
    Corrupt,
    Database,
    Error,
    Invalid,
    Snapshot,
    SnapshotTable,
    Table,
    Transaction,
    open,
    restore,
)

# The calls of a mapping that consist of several others. Run them in a transaction to make them atomic.
for _name in ("popitem", "clear", "update", "setdefault"):
    setattr(Table, _name, getattr(_MutableMapping, _name))
del _name

_MISSING = object()


def _pop(self, key, default=_MISSING):
    """Removes a row and returns its value; without the row returns `default` or raises KeyError."""
    try:
        value = self[key]
    except KeyError:
        if default is _MISSING:
            raise
        return default
    del self[key]
    return value


Table.pop = _pop
_MutableMapping.register(Table)
_Mapping.register(SnapshotTable)

__all__ = [
    "Busy",
    "Closed",
    "Conflict",
    "Corrupt",
    "Database",
    "Error",
    "Invalid",
    "Snapshot",
    "SnapshotTable",
    "Table",
    "Transaction",
    "open",
    "restore",
]
