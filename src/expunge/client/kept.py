"""Things that a client keeps between two steps, sealed: its part in a round of secure aggregation, what it has forwarded.

Law: each `keep` replaces what was kept under the name before and destroys its key, so that secrets which have had their day
cannot be read again.
"""

from __future__ import annotations

from threading import RLock

from expunge.client.folder import Folder


class Kept:
    """One thing, under its name."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._database = folder.database
        self._name = name
        self.turn = RLock()  # held by whoever goes on from what is kept, so that two agents on one store take turns
        self._context = b"kept\0" + name.encode("ascii")

    def kept(self) -> bytes | None:
        """What was kept last."""
        row = self._database.row("SELECT slot, sealed FROM kept WHERE name = ?", (self._name,))
        return None if row is None else self._folder.vault.unseal(row[0], row[1], self._context)

    def keep(self, content: bytes) -> None:
        """Keep this in the place of what was kept before."""
        old = self._slots()
        (slot,) = self._folder.vault.new()
        try:
            sealed = self._folder.vault.seal(slot, content, self._context)
            with self._database.transaction() as changes:
                changes.run("INSERT OR REPLACE INTO kept (name, slot, sealed) VALUES (?, ?, ?)", (self._name, slot, sealed))
        except BaseException:
            self._folder.drop([slot])
            raise
        if old:
            self._folder.erase(old)

    def drop(self) -> None:
        """It is needed no longer."""
        old = self._slots()
        if old:
            with self._database.transaction() as changes:
                changes.run("DELETE FROM kept WHERE name = ?", (self._name,))
            self._folder.erase(old)

    def _slots(self) -> list[int]:
        return [row[0] for row in self._database.rows("SELECT slot FROM kept WHERE name = ?", (self._name,))]
