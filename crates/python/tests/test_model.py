"""Compares a table with a dict, for sequences of calls that hypothesis generates."""

import azekura
import pytest

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule  # noqa: E402

KEYS = st.one_of(st.sampled_from(["", "a", "b", "ab"]), st.text(max_size=6))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.lists(st.integers(), max_size=3)
)


class TableBesideDict(RuleBasedStateMachine):
    """Changes a table and a dict: by the database, or by a transaction that commits, rolls back or aborts."""

    @initialize()
    def begin(self):
        self.db = azekura.in_memory()
        self.table = self.db.table("t", key=str, value="json")
        self.model, self.kept, self.tx, self.mark = {}, None, None, None
        self.snaps = []

    def rows(self):
        return self.table if self.tx is None else self.tx[self.table]

    @rule(key=KEYS, value=VALUES)
    def store(self, key, value):
        self.rows()[key] = value
        self.model[key] = value

    @rule(rows=st.dictionaries(KEYS, VALUES, max_size=5))
    def update(self, rows):
        self.rows().update(rows)
        self.model.update(rows)

    @rule(key=KEYS)
    def remove(self, key):
        assert self.rows().pop(key, "none") == self.model.pop(key, "none")

    @rule(key=KEYS, value=VALUES)
    def default(self, key, value):
        assert self.rows().setdefault(key, value) == self.model.setdefault(key, value)

    @rule(low=KEYS, high=KEYS)
    def remove_range(self, low, high):
        gone = [key for key in self.model if low <= key < high]
        assert self.rows().remove_range(low, high) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(low=KEYS, high=KEYS, reverse=st.booleans())
    def read_range(self, low, high, reverse):
        inside = [(key, self.model[key]) for key in sorted(self.model) if low <= key < high]
        expected = inside[::-1] if reverse else inside
        assert list(self.rows().items(low, high, reverse=reverse)) == expected
        assert len(self.rows().keys(low, high)) == len(expected)

    @rule(prefix=st.text(max_size=2))
    def read_prefix(self, prefix):
        expected = sorted(key for key in self.model if key.startswith(prefix))
        assert [key for key, _ in self.rows().prefix(prefix)] == expected

    @rule()
    def begin_transaction(self):
        if self.tx is None:
            self.tx, self.kept, self.mark = self.db.begin(), dict(self.model), None

    @rule()
    def mark_savepoint(self):
        if self.tx is not None:
            self.mark = (self.tx.savepoint(), dict(self.model))

    @rule()
    def undo(self):
        if self.mark is not None:
            self.tx.rollback_to(self.mark[0])
            self.model, self.mark = dict(self.mark[1]), None

    @rule(commits=st.booleans())
    def end_transaction(self, commits):
        if self.tx is not None:
            self.tx.commit() if commits else self.tx.abort()
            self.model = self.model if commits else self.kept
            self.tx = self.mark = None

    @rule()
    def take_snapshot(self):
        if self.tx is None:
            self.snaps.append((self.db.snapshot(), dict(self.model)))

    @invariant()
    def all_rows_are_equal(self):
        assert dict(self.rows().items()) == self.model
        assert list(self.rows()) == sorted(self.model)
        for snap, model in self.snaps[-2:]:
            assert snap[self.table] == model

    def teardown(self):
        if getattr(self, "tx", None) is not None:
            self.tx.abort()


TestTableBesideDict = TableBesideDict.TestCase
# On a busy machine the generation of an example may take long.
TestTableBesideDict.settings = hypothesis.settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
