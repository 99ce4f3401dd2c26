"""Any order of operations, refusals and repetitions ends where the server is."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from expunge import Statistics
from expunge.client import ClientStore, Selection
from expunge.client.outbox import Composition
from expunge.errors import InputError, RefusedError, UnknownSampleError
from expunge.wire import request
from support.client_files import files_of, live_slots, referred_slots
from support.clients import NOW, SPEC, Server, deliver, features, make_store


class StoreMachine(RuleBasedStateMachine):
    """Any order of operations, refusals, crashes and resets ends where retraining on the model's
    samples would.
    """

    @initialize(message=st.sampled_from(["rows", "gram"]))
    def begin(self, message: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.store = make_store(Path(self._folder.name), message=message)
        self.server = Server()
        self.model: dict[str, tuple[int, int]] = {}  # seed of the feature, and label
        self.seed = 0
        self.data: bytes | None = None

    def fresh(self) -> int:
        self.seed += 1
        return self.seed

    @rule(
        names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3, unique=True),
        label=st.integers(0, 2),
    )
    def add(self, names: list[str], label: int) -> None:
        seeds = [self.fresh() for _ in names]
        rows = np.concatenate([features(1, seed) for seed in seeds])
        here = [name for name in names if self.is_here(name)]
        if here:
            with pytest.raises(InputError):
                self.store.add(names, rows, [label] * len(names), now=NOW)
        else:
            self.store.add(names, rows, [label] * len(names), now=NOW)
            self.model.update(
                (name, (seed, label)) for name, seed in zip(names, seeds, strict=True)
            )

    def is_here(self, name: str) -> bool:
        """Whether the store has a sample of this id, in whatever state."""
        with files_of(self.store) as files:
            query = "SELECT 1 FROM samples WHERE id_tag = ?"
            return bool(files.database.rows(query, (files.id_tag(name),)))

    @rule(name=st.sampled_from("abcdefgh"), label=st.integers(0, 2))
    def correct(self, name: str, label: int) -> None:
        if name in self.model:
            self.store.correct(name, label=label)
            self.model[name] = (self.model[name][0], label)
        else:
            with pytest.raises(UnknownSampleError):
                self.store.correct(name, label=label)

    @rule(name=st.sampled_from("abcdefgh"))
    def forget(self, name: str) -> None:
        if name in self.model:
            assert self.store.forget(Selection(ids=[name])).ids == (name,)
            del self.model[name]

    @precondition(lambda self: self.store.outbox.composed() is None)
    @rule(reset=st.booleans(), most=st.one_of(st.none(), st.integers(1, 3)))
    def compose(self, reset: bool, most: int | None) -> None:
        composition = self.store.outbox.compose(reset=reset, most=most)
        self.data = None if composition is None else self.store.outbox.encode(composition)

    @precondition(lambda self: self.data is not None)
    @rule(answer_lost=st.booleans(), times=st.integers(1, 2))
    def offer(self, answer_lost: bool, times: int) -> None:
        composition = self.outstanding()
        for _ in range(times):
            receipt = self.server.offer(self.store.outbox.encode(composition))
        if not answer_lost:
            self.store.outbox.settle(composition.sequence, receipt)
            self.data = None

    @precondition(
        lambda self: self.data is not None and self.outstanding().sequence > self.server.sequence
    )
    @rule()
    def refuse(self) -> None:
        self.store.outbox.abandon(self.outstanding().sequence, "refused")
        self.data = None

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = ClientStore.open(Path(self._folder.name) / "store")

    def outstanding(self) -> Composition:
        composition = self.store.outbox.composed()
        assert composition is not None
        return composition

    @invariant()
    def the_same_bytes_are_offered(self) -> None:
        if self.data is not None:
            assert self.store.outbox.encode(self.outstanding()) == self.data
            assert request.read(self.data).header.sequence == self.store.sequence + 1

    @invariant()
    def the_vault_holds_what_the_database_refers_to(self) -> None:
        assert live_slots(self.store) == referred_slots(self.store)

    @invariant()
    def every_deletion_is_due_at_some_time_and_nothing_else(self) -> None:
        with files_of(self.store) as files:
            rows = files.database.rows("SELECT DISTINCT state, due IS NULL FROM samples")
        assert set(rows) <= {("adding", 1), ("live", 1), ("deleting", 0), ("withdrawn", 0)}

    @invariant()
    def the_model_is_what_is_there(self) -> None:
        assert set(self.store.preview(Selection(everything=True)).ids) == set(self.model)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for _ in range(3):
            try:
                deliver(self.store, self.server)
            except RefusedError:
                pytest.fail("the server refused")
        expected = Statistics.zero(SPEC)
        for seed, label in self.model.values():
            expected += Statistics.of(SPEC, features(1, seed), [label])
        assert self.server.statistics == self.store.statistics() == expected
        self.store.close()
        self._folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=15, stateful_step_count=25)
