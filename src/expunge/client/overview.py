"""The state of a client at a glance, and what it stores between two steps.

No sample is opened for it, so no arithmetic is imported: showing the state does not wait for it.

What a client stores between two steps (its part in a round of secure aggregation, what it has
forwarded) is sealed. Law: each `write` replaces what was stored under the name before and destroys
its key, so that secrets which are no longer needed cannot be read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from expunge.client.backlog import Backlog, read_backlog
from expunge.client.folder import ClientFolder, exclusive
from expunge.client.settings import ClientSettings


class SealedValue:
    """One value that a client stores between two steps, sealed under a key of its own."""

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
    """The state of a client's store.

    Attributes
    ----------
    name : str
        The client's name.
    federation : str
        The federation's id.
    mode : {"cached", "recompute"}
        Whether features are kept, or computed again when needed.
    message : str
        The kind of messages that the client sends.
    enrolled : bool
        Whether the server has taken the client's key in.
    live : int
        How many samples the server counts.
    adding : int
        How many samples have a pending addition.
    deleting : int
        How many samples have a pending deletion.
    labels : mapping of str to int
        How many samples that are adding or live have each label.
    sequence : int
        The number of the last request whose receipt is here.
    composed : int or None
        The number of the request that is being offered.
    orders : int
        How many erasure orders were carried out here, and have no receipt yet.
    checkpoint : int
        The size of the audit log when it was last seen.
    head : str
        The digest of the newest head in the store; empty if there is none.
    refusal : str
        Why the last request was refused; empty if it was not.
    leaving : bool
        Whether the client has been asked to leave the federation.
    left : bool
        Whether it has left.
    gone : bool
        Whether the server no longer knows the client, though the client did not leave by a request
        of its own.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> store = federation.client("north").store
    >>> store.add(["a"], [[1.0, 0.5]], ["cat"], now=0.0)
    1
    >>> status = store.status()
    >>> status.adding, status.live, status.labels
    (1, 0, {'cat': 1})
    >>> federation.close()
    >>> folder.cleanup()
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
    """The part of a client's store that opens no sample: settings, documents and counts."""

    def __init__(self, folder: ClientFolder) -> None:
        super().__init__(folder)
        self.machine = folder.machine
        self.participation = SealedValue(folder, "participation")
        self.disputable = SealedValue(folder, "disputable")
        self.forwarded = SealedValue(folder, "forwarded")
        self.forwarding = SealedValue(folder, "forwarding")

    @classmethod
    def open(cls, path: Path, *, timeout: float = 0.0, restored: bool = False) -> Self:
        """Open the store in a folder, and clear away what a crash has left.

        Parameters
        ----------
        path : Path
            The client's folder.
        timeout : float, default 0.0
            Seconds to wait for another process that has the store open.
        restored : bool, default False
            Whether the database was put back from a backup: samples that have been erased since are
            dropped.

        Returns
        -------
        ClientStore
            The store, open.

        Raises
        ------
        StoreBusyError
            Another process has the store open.
        StoreError
            The folder is not a client's store, is damaged, or is an older copy (give
            `restored=True`).
        """
        return cls(ClientFolder.open(Path(path), timeout=timeout, restored=restored))

    @classmethod
    def open_read_only(cls, path: Path) -> Self:
        """Open a read-only snapshot of the store; safe while another process writes.

        A sample that the other process erases afterwards is a `ShreddedError` where it is opened.

        Parameters
        ----------
        path : Path
            The client's folder.

        Returns
        -------
        ClientStore
            The store as it is at this moment; changes are refused.

        Raises
        ------
        StoreError
            The folder is not a client's store, or is damaged.
        """
        return cls(ClientFolder.open_read_only(Path(path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @exclusive
    def status(self) -> Status:
        """Count samples and pending changes.

        Returns
        -------
        Status
            The state of the store.
        """
        numbers = dict(self._database.rows("SELECT state, count(*) FROM samples GROUP BY state"))
        query = (
            "SELECT label, count(*) FROM samples WHERE state IN ('adding', 'live') "
            "AND label IS NOT NULL GROUP BY label"
        )
        return Status(
            name=self.name,
            federation=self.federation,
            mode=self.mode,
            message=self.message,
            enrolled=self.recall("enrolled") == "1",
            live=numbers.get("live", 0),
            adding=numbers.get("adding", 0),
            deleting=numbers.get("deleting", 0) + numbers.get("withdrawn", 0),
            labels={str(self.label(index)): number for index, number in self._database.rows(query)},
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

    @exclusive
    def backlog(self, *, now: float) -> Backlog | None:
        """What is pending and waits for more samples, by the spec's `fewest_samples`.

        Parameters
        ----------
        now : float
            The time, in seconds since 1970.

        Returns
        -------
        Backlog or None
            None if nothing is pending, or if it goes out with the next sync.
        """
        spec = self._spec
        if not spec.fewest_samples or self.recall("leaving") == "1":
            return None
        return read_backlog(
            self._database, fewest=spec.fewest_samples, now=now, masked=spec.is_masked
        )
