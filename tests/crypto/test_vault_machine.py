"""The vault against a dictionary: any order of operations, and nothing opens that must not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from expunge.crypto.vault import Vault
from expunge.errors import ShreddedError


class VaultMachine(RuleBasedStateMachine):
    """The vault against a dictionary of what must open and a list of what must not."""

    sealed = Bundle("sealed")

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._places = Path(self._folder.name) / "v", [Path(self._folder.name) / "m"]
        self.vault = Vault.create(*self._places)
        self.gone: list[tuple[int, bytes]] = []
        self.kept: dict[int, bytes] = {}

    @rule(target=sealed, count=st.integers(0, 5))
    def new(self, count: int) -> object:
        slots = self.vault.new(count)
        assert not set(slots) & set(self.kept)
        self.kept.update((slot, self.vault.seal(slot, b"text", b"")) for slot in slots)
        return multiple(*slots)

    @rule(slot=consumes(sealed))
    def shred(self, slot: int) -> None:
        self.vault.shred([slot])
        self.gone.append((slot, self.kept.pop(slot)))

    @rule()
    def reopen(self) -> None:
        self.vault.close()
        self.vault = Vault.open(*self._places)

    @invariant()
    def opens_what_it_must_and_nothing_else(self) -> None:
        assert self.vault.live() == set(self.kept)
        for slot, sealed in self.kept.items():
            assert self.vault.unseal(slot, sealed, b"") == b"text"
        for slot, sealed in self.gone:
            with pytest.raises(ShreddedError):
                self.vault.unseal(slot, sealed, b"")

    def teardown(self) -> None:
        self.vault.close()
        self._folder.cleanup()


TestVaultMachine = VaultMachine.TestCase
TestVaultMachine.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
