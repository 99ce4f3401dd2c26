"""A client's part in a round of secure aggregation, at rest between two messages: sealed, and gone when the round is over.

Law: each `keep` replaces what was kept before and destroys its key, so that secrets of a phase that is over cannot be read again.
"""

from __future__ import annotations

from expunge.client.folder import Folder

_CONTEXT = b"participation"


class Participation:
    """The one round that this client takes part in, if any."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._database = folder.database

    def kept(self) -> bytes | None:
        """What was kept last."""
        row = self._database.row("SELECT slot, sealed FROM participations")
        return None if row is None else self._folder.vault.unseal(row[0], row[1], _CONTEXT)

    def keep(self, state: bytes) -> None:
        """Keep this state in the place of the one before."""
        old = self._slots()
        (slot,) = self._folder.vault.new()
        try:
            sealed = self._folder.vault.seal(slot, state, _CONTEXT)
            with self._database.transaction() as changes:
                changes.run("INSERT OR REPLACE INTO participations (one, slot, sealed) VALUES (1, ?, ?)", (slot, sealed))
        except BaseException:
            self._folder.drop([slot])
            raise
        if old:
            self._folder.erase(old)

    def drop(self) -> None:
        """The round is over."""
        old = self._slots()
        if old:
            with self._database.transaction() as changes:
                changes.run("DELETE FROM participations")
            self._folder.erase(old)

    def _slots(self) -> list[int]:
        return [row[0] for row in self._database.rows("SELECT slot FROM participations")]
