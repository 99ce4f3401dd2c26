"""A client that deals wrong shares: each is the one it committed to, but together they do not give
its self seed, or its mask key. And a server that says so of shares that are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from expunge.secagg import Aborted, Collector, parcels
from expunge.secagg.arbitration import Opened, seal_opening
from expunge.secagg.keys import Secrets
from expunge.secagg.roster import Roster

OTHER = bytes(range(32))  # in the place of one of its secrets


@contextmanager
def dealing_wrong(liar: str, what: str) -> Iterator[None]:
    """Meanwhile this client shares out something else than its "seed", or its "mask" key."""
    true = parcels.deal

    def deal(roster: Roster, secrets: Secrets, name: str) -> parcels.Dealt:
        dealt = true(roster, secrets, name)
        if name != liar:
            return dealt
        false = changed(secrets, what)
        if what == "seed":  # its own share, which is true, must not fit the others by chance
            false = changed(false, "dealing")
        return replace(dealt, parcels=true(roster, false, name).parcels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expunge.secagg.participant.deal", deal)
        yield


@contextmanager
def opening_wrong(liar: str, what: str) -> Iterator[None]:
    """Meanwhile this client opens something else than this one of its secrets."""

    def seal(roster: Roster, name: str, opened: Opened) -> bytes:
        if name == liar:
            false: Any = OTHER if what != "keys" else (OTHER, *opened.dealing.keys[1:])
            opened = replace(opened, dealing=replace(opened.dealing, **{what: false}))
        return seal_opening(roster, name, opened)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expunge.secagg.participant.seal_opening", seal)
        yield


@contextmanager
def called_irrecoverable() -> Iterator[None]:
    """Meanwhile the server says of every sum that nobody can unmask it."""
    true = Collector.advance

    def advance(self: Collector) -> None:
        if self.phase == "revealing":
            raise Aborted("a server that says so", self.clients[0])
        true(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collector, "advance", advance)
        yield


def changed(secrets: Secrets, what: str) -> Secrets:
    """These secrets but for one."""
    return replace(secrets, **{what: OTHER})
