"""Where a client stands, at a glance; and what it keeps between two steps.

No sample is opened for it, so no arithmetic is imported: whoever only asks does not wait for it.

What a client keeps between two steps (its part in a round of secure aggregation, what it has
forwarded) is sealed. Law: each `write` replaces what was kept under the name before and destroys
its key, so that secrets which have had their day cannot be read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from expunge.client.folder import ClientFolder, exclusive
from expunge.client.settings import ClientSettings


class SealedValue:
    """One value that a client keeps between two steps, sealed under a key of its own."""

    def __init__(self, folder: ClientFolder, name: str) -> None:
        self._folder = folder
        self._database = folder.database
        self._name = name
        self._context = b"kept\0" + name.encode("ascii")

    @exclusive
    def read(self) -> bytes | None:
        """What was written last."""
        row = self._database.row("SELECT slot, sealed FROM kept WHERE name = ?", (self._name,))
        return None if row is None else self._folder.vault.unseal(row[0], row[1], self._context)

    @exclusive
    def write(self, content: bytes) -> None:
        """Keep this in the place of what was written before."""
        old = self._slots()
        (slot,) = self._folder.vault.new()
        try:
            sealed = self._folder.vault.seal(slot, content, self._context)
            with self._database.transaction() as changes:
                changes.run(
                    "INSERT OR REPLACE INTO kept (name, slot, sealed) VALUES (?, ?, ?)",
                    (self._name, slot, sealed),
                )
        except BaseException:
            self._folder.drop([slot])
            raise
        if old:
            self._folder.erase(old)

    @exclusive
    def drop(self) -> None:
        """It is needed no longer."""
        old = self._slots()
        if old:
            with self._database.transaction() as changes:
                changes.run("DELETE FROM kept WHERE name = ?", (self._name,))
            self._folder.erase(old)

    def _slots(self) -> list[int]:
        return [
            row[0]
            for row in self._database.rows("SELECT slot FROM kept WHERE name = ?", (self._name,))
        ]


@dataclass(frozen=True)
class Status:
    """Where a client stands.

    `adding` and `deleting` are pending; `composed` is the number of the request being offered.

    `gone` says that the server no longer knows the client, though the client did not leave by a
    request of its own.
    """

    name: str
    federation: str
    mode: str
    message: str
    enrolled: bool
    live: int
    adding: int
    deleting: int
    labels: Mapping[str, int]  # of samples that are adding or live
    sequence: int
    composed: int | None
    orders: int  # carried out here, and not yet answered with a receipt in hand
    checkpoint: int
    head: str
    refusal: str
    leaving: bool
    left: bool
    gone: bool


class ClientOverview(ClientSettings):
    """A client's store, as far as it can be told without opening a sample."""

    def __init__(self, folder: ClientFolder) -> None:
        super().__init__(folder)
        self.participation = SealedValue(folder, "participation")
        self.forwarded = SealedValue(folder, "forwarded")
        self.forwarding = SealedValue(folder, "forwarding")

    @classmethod
    def open(cls, path: Path, *, timeout: float = 0.0, restored: bool = False) -> Self:
        """The store in a folder; waits for another process up to `timeout` seconds.

        For `restored` see `ClientFolder.open`.
        """
        return cls(ClientFolder.open(Path(path), timeout=timeout, restored=restored))

    @classmethod
    def open_read_only(cls, path: Path) -> Self:
        """The store as it is at this moment, beside the process that works on it; for looking only.

        See `ClientFolder.open_read_only`.
        """
        return cls(ClientFolder.open_read_only(Path(path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @exclusive
    def status(self) -> Status:
        """Where this client stands."""
        numbers = dict(self._database.rows("SELECT state, count(*) FROM samples GROUP BY state"))
        query = (
            "SELECT label, count(*) FROM samples WHERE state IN ('adding', 'live') "
            "AND label IS NOT NULL GROUP BY label"
        )
        names = self._spec.labels or ()
        return Status(
            name=self.name,
            federation=self.federation,
            mode=self.mode,
            message=self.message,
            enrolled=self.recall("enrolled") == "1",
            live=numbers.get("live", 0),
            adding=numbers.get("adding", 0),
            deleting=numbers.get("deleting", 0) + numbers.get("withdrawn", 0),
            labels={str(names[label]): number for label, number in self._database.rows(query)},
            sequence=self.sequence,
            composed=self._database.value("SELECT sequence FROM compositions"),
            orders=self._database.value("SELECT count(*) FROM orders WHERE answered = 0"),
            checkpoint=self.checkpoint[0],
            head=self.recall("head") or "",
            refusal=self.recall("refusal") or "",
            leaving=self.recall("leaving") == "1",
            left=self.recall("left") == "1",
            gone=self.gone and self.recall("left") != "1",
        )
