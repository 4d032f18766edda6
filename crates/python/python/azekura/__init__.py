"""An ordered, transactional, crash-safe key-value store."""

from collections.abc import Mapping as _Mapping
from collections.abc import MutableMapping as _MutableMapping
from types import GenericAlias as _GenericAlias

from . import _awaiting, _multimap, _views
from ._azekura import (
    Database,
    Savepoint,
    Snapshot,
    SnapshotTable,
    Table,
    Ticket,
    Transaction,
    __version__,
    in_memory,
    open,
    restore,
    verify_backup,
)
from ._errors import (
    Busy,
    Closed,
    Conflict,
    Corrupt,
    Error,
    Expired,
    Invalid,
    IoError,
    UndoMemoryExhausted,
)
from ._multimap import MultimapTable, MultimapValues, SnapshotMultimapTable

for _name in ("keys", "values", "items", "prefix"):
    setattr(SnapshotTable, _name, getattr(_views, _name))
for _name in ("pop", "popitem", "clear", "update"):
    setattr(Table, _name, getattr(_views, _name))
del _name
SnapshotTable.__reversed__ = _views.reversed_keys
SnapshotTable.__eq__ = _Mapping.__eq__
SnapshotTable.__hash__ = None
SnapshotTable.__class_getitem__ = classmethod(_GenericAlias)
Ticket.__await__ = _awaiting.ticket_await
Database.transact_async = _awaiting.transact_async
Database.transaction = _awaiting.transaction
Database.multimap_table = _multimap.multimap_table
Transaction.multimap_table = _multimap.multimap_table
Snapshot.multimap_table = _multimap.snapshot_multimap_table
for _class in (MultimapTable, MultimapValues, SnapshotMultimapTable):
    _class.__module__ = "azekura"
    _class.__class_getitem__ = classmethod(_GenericAlias)
del _class
_MutableMapping.register(Table)
_Mapping.register(SnapshotTable)

__all__ = [
    "Busy",
    "Closed",
    "Conflict",
    "Corrupt",
    "Database",
    "Error",
    "Expired",
    "Invalid",
    "IoError",
    "MultimapTable",
    "MultimapValues",
    "Savepoint",
    "Snapshot",
    "SnapshotMultimapTable",
    "SnapshotTable",
    "Table",
    "Ticket",
    "Transaction",
    "UndoMemoryExhausted",
    "in_memory",
    "open",
    "restore",
    "verify_backup",
]
