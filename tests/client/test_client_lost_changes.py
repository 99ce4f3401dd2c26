"""A client's store that has lost its last changes says so before it touches anything: no sample and
no pending deletion is lost without a word, and no key.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge.client import ClientStore, Selection
from expunge.errors import StoreDamagedError, StoreError
from expunge.storage.machine import Machine, mounted
from support import seeds
from support.agents import add
from support.client_files import live_slots, referred_slots
from support.clients import NOW, features, ids, make_store

FRAME = 24  # bytes of a frame's header in a write-ahead log; the log's own has 32
FILES = ("client.db", "client.db-wal", "client.vault", "client.key", "client.mark")


def described(store: ClientStore) -> list[tuple[Any, ...]]:
    """All samples with what they hold, and whether a request is composed."""
    composed = store.outbox.composed()
    samples = [
        (stored.names, stored.state, opened.content.salt)
        for stored, opened in store.opened(Selection(everything=True))
    ]
    return [*samples, (composed is not None,)]


class Killed:
    """A store as a kill leaves it, after changes, each of which had returned."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: list[list[tuple[Any, ...]]] = []
        with make_store(path) as store:
            add(store, 6, subjects=["ann", "ben"] * 3)
        with ClientStore.open(path / "store") as store:
            self._note(store)
            changes: list[Callable[[], object]] = [
                lambda: add(store, 3, prefix="later"),
                store.outbox.compose,
                lambda: store.forget(Selection(subject="ann"), now=NOW),
                lambda: store.correct("sample-1", label="eel"),
                lambda: store.remember({"refusal": "none"}),
            ]
            for change in changes:
                change()
                self._note(store)
            shutil.copytree(store.path, path / "left")

    def _note(self, store: ClientStore) -> None:
        self.states.append(described(store))

    @property
    def log(self) -> bytes:
        return (self.path / "left" / "client.db-wal").read_bytes()

    def with_log(self, log: bytes | None) -> Path:
        path = self.path / "again"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path / "left", path)
        for name in ("client.db-wal", "client.db-shm"):
            (path / name).unlink(missing_ok=True)
        if log is not None:
            (path / "client.db-wal").write_bytes(log)
        return path

    def opens(self, path: Path) -> bool:
        """Whether the store there is as it was; if not, it is refused and left alone, and can be
        opened as a restored one, which has what it had before, but for what has been erased.
        """
        before = {name: (path / name).read_bytes() for name in FILES if (path / name).exists()}
        for opening in (ClientStore.open_read_only, ClientStore.open):
            try:
                store = opening(path)
            except StoreDamagedError as problem:
                said = str(problem)
            else:
                with store:
                    assert described(store) == self.states[-1]
                continue
            assert "restored=True" in said
            assert {name: (path / name).read_bytes() for name in before} == before
        if "said" not in locals():
            return True
        with ClientStore.open(path, restored=True) as store:
            left = {(names, salt) for names, _, salt in described(store)[:-1]}
            earlier = [{(names, salt) for names, _, salt in state[:-1]} for state in self.states]
            assert any(left <= state for state in earlier)
            assert left >= earlier[0] & {
                (names, salt) for names, state, salt in self.states[-1][:-1] if state != "withdrawn"
            }
            assert live_slots(store) == referred_slots(store)
        with ClientStore.open(path) as store:
            assert {(names, salt) for names, _, salt in described(store)[:-1]} == left
        return False


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(tmp_path_factory.mktemp("killed"))


def test_what_a_kill_leaves_opens_as_it_was(killed: Killed) -> None:
    assert killed.opens(killed.with_log(killed.log))


def test_no_damaged_frame_and_no_cut_is_silently_wrong(killed: Killed) -> None:
    log, chance = killed.log, seeds.chance("frames")
    (page,) = struct.unpack(">I", log[8:12])
    starts = range(32, len(log) - page - FRAME + 1, page + FRAME)
    assert len(starts) > 8
    for start in starts:
        damaged = bytearray(log)
        damaged[start + chance.randrange(page + FRAME)] ^= 1 << chance.randrange(8)
        killed.opens(killed.with_log(bytes(damaged)))
        assert not killed.opens(killed.with_log(log[:start]))
    assert not killed.opens(killed.with_log(None))
    assert not killed.opens(killed.with_log(b""))


def test_a_store_of_before_gets_its_mark(killed: Killed) -> None:
    path = killed.with_log(killed.log)
    (path / "client.mark").unlink()
    assert killed.opens(path)
    assert (path / "client.mark").is_file()


class MarkFails(Machine):
    """Cannot write the mark."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        descriptor = super().open(path, flags, mode)
        if path.name == "client.mark":
            os.close(descriptor)
            raise OSError(5, "Input/output error")
        return descriptor


@pytest.mark.parametrize("what", ["add", "compose", "correct"])
def test_a_change_whose_mark_fails_has_happened_whole(tmp_path: Path, what: str) -> None:
    with make_store(tmp_path) as store:
        add(store, 3)
    with (
        mounted(tmp_path / "store", MarkFails()),
        ClientStore.open(tmp_path / "store") as store,
        pytest.raises(StoreError, match=r"client\.mark could not be written"),
    ):
        {
            "add": lambda: add(store, 2, prefix="more"),
            "compose": store.outbox.compose,
            "correct": lambda: store.correct("sample-1", label="eel"),
        }[what]()
    with ClientStore.open(tmp_path / "store") as store:
        assert (store.outbox.composed() is not None) == (what == "compose")
        opened = store.opened(Selection(everything=True))
        assert len(opened) == (5 if what == "add" else 3)
        assert np.array_equal(opened[0][1].content.feature, features(3)[0])
        assert live_slots(store) == referred_slots(store)
        assert store.missing(ids(3)) == []
