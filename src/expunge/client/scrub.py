"""A scrub of a client's store: every sample is opened and compared with its tags, label and
commitment, and every receipt is verified.

Nothing is sent, and no server is asked. Without `repair` nothing is changed, and another process
may be at work on the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

from expunge.client.folder import ClientFolder, content_context, names_context
from expunge.client.samples import BLOCK_SAMPLES, Content, SampleNames, SampleTable
from expunge.client.store import ClientStore
from expunge.crypto import Envelope
from expunge.errors import EvidenceError, ExpungeError, FormatError, StoreError
from expunge.evidence import KeyChain, Receipt, published_head
from expunge.storage.scrub import Progress, Scrub, ScrubResult, no_progress, one_bit_off

_COLUMNS = "slot, id_tag, subject_tag, label, commitment, names, content"
_LARGEST = 1 << 16  # bytes of which every bit is tried
_SAMPLE_LOST = (
    "put the store back from a backup; or have the operator forget this client "
    "(expunge server forget-client), enrol a new one, and add the samples there again"
)
_RECEIPT_LOST = (
    "the deletion stays done; where an order needs the receipt, its bundle has the server's copy "
    "(expunge order bundle)"
)
_NOTE_LOST = "put the store back from a backup"


def scrub_client(
    path: Path, *, repair: bool = False, timeout: float = 0.0, progress: Progress = no_progress
) -> ScrubResult:
    """Read everything in a client's store, and compare it with what it must agree with.

    Parameters
    ----------
    path : Path
        The client's folder.
    repair : bool, default False
        Whether to put right what can be put right; then nobody else may be at work on the store.
    timeout : float, default 0.0
        Seconds to wait for another process, with `repair`.
    progress : callable, optional
        Called with what is being read, how much has been, and of how much.

    Returns
    -------
    ScrubResult
        What was read, and what is damaged.

    Raises
    ------
    StoreBusyError
        Another process is at work on the store.
    StoreError
        There is no store, or nothing of it can be read; the message says what to do.
    """
    was_damaged = repair and ClientFolder.renew_mark(path, timeout=timeout)
    folder = (
        ClientFolder.open(path, timeout=timeout) if repair else ClientFolder.open_read_only(path)
    )
    with ClientStore(folder) as store:
        scrub = _ClientScrub(store, folder, repair=repair, progress=progress)
        if was_damaged:
            scrub.found("mark", "the high-water mark was damaged", repaired=True)
        return scrub.run()


class _ClientScrub(Scrub):
    def __init__(
        self, store: ClientStore, folder: ClientFolder, *, repair: bool, progress: Progress
    ) -> None:
        super().__init__(repair=repair, progress=progress)
        self._store = store
        self._folder = folder
        self._database = folder.database
        self._vault = folder.vault

    def run(self) -> ScrubResult:
        self.database(self._database)
        self.attempt("samples", self._samples, _SAMPLE_LOST)
        self._sealed()
        self.attempt("receipts", self._receipts, _NOTE_LOST)
        self.attempt("head", self._head, _NOTE_LOST)
        for warning in self._vault.warnings:
            self.found("vault", warning, repaired=self.repair, remedy="run this with --repair")
        self.count("vault", len(self._vault.live()))
        return self.result

    # -- samples -----------------------------------------------------------------------------------

    def _samples(self) -> None:
        slots = [
            row[0]
            for row in self._database.rows("SELECT slot FROM samples NOT INDEXED ORDER BY slot")
        ]
        table = SampleTable(self._folder)
        for start in range(0, len(slots), BLOCK_SAMPLES):
            chunk = slots[start : start + BLOCK_SAMPLES]
            query = f"SELECT {_COLUMNS} FROM samples NOT INDEXED WHERE slot BETWEEN ? AND ?"  # noqa: S608 - our own words
            rows = [_Row(*row) for row in self._database.rows(query, (chunk[0], chunk[-1]))]
            self._commitments(table, [row.slot for row in rows if self._is_readable(row)])
            self.count("samples", start + len(chunk), len(slots))

    def _is_readable(self, row: _Row) -> bool:
        """Whether a sample can be opened, if need be after it has been put right."""
        right = row if self._opened(row) is not None else None
        if right is None and self.repair:
            right = self._mended(row)
        opened = None if right is None else self._opened(right)
        if right is None or opened is None:
            self.found(
                "samples", f"the sample in slot {row.slot} cannot be opened", remedy=_SAMPLE_LOST
            )
            return False
        names, content = opened
        tag = None if names.subject is None else self._folder.subject_tag(names.subject)
        label = content.target if isinstance(content.target, int) else None
        self._put_right(row, replace(right, subject_tag=tag, label=label))
        return True

    def _opened(self, row: _Row) -> tuple[SampleNames, Content] | None:
        try:
            names = self._vault.unseal(row.slot, row.names, names_context(row.id_tag))
            context = content_context(row.id_tag, row.commitment)
            content = self._vault.unseal(row.slot, row.content, context)
        except StoreError:
            return None
        return SampleNames.from_bytes(names), Content.from_bytes(content)

    def _mended(self, row: _Row) -> _Row | None:
        """The row that differs from this one by a bit at most in its names, and by a bit at most in
        its content, and can be opened.
        """
        for named in (row, *_variants(row, "id_tag"), *_variants(row, "names")):
            try:
                self._vault.unseal(named.slot, named.names, names_context(named.id_tag))
            except StoreError:
                continue
            candidates = chain(
                (named,), _variants(named, "commitment"), _variants(named, "content")
            )
            return next((other for other in candidates if self._opened(other) is not None), None)
        return None

    def _put_right(self, row: _Row, right: _Row) -> None:
        wrong = {
            field.name: getattr(right, field.name)
            for field in fields(row)
            if getattr(row, field.name) != getattr(right, field.name)
        }
        if not wrong:
            return
        if self.repair:
            assigned = ", ".join(f"{name} = ?" for name in wrong)
            query = f"UPDATE samples SET {assigned} WHERE slot = ?"  # noqa: S608 - our own names
            with self._database.transaction() as changes:
                changes.run(query, (*wrong.values(), row.slot))
        self.found(
            "samples",
            f"{', '.join(wrong)} of the sample in slot {row.slot} was not what was sealed",
            repaired=self.repair,
            remedy="it can be put right (--repair)",
        )

    def _commitments(self, table: SampleTable, slots: list[int]) -> None:
        """Whether samples whose features are kept open their commitments."""
        kept = [sample.slot for sample in table.open(slots) if sample.content.feature is not None]
        try:
            for _ in table.blocks(self._store.spec, kept):
                pass
        except ExpungeError as problem:
            self.found("samples", str(problem), remedy=_SAMPLE_LOST)

    # -- the rest ----------------------------------------------------------------------------------

    def _sealed(self) -> None:
        """The request that is being offered, and what is stored between two steps."""
        checks = {
            "the request that is being offered": self._store.outbox.composed,
            "the part in a round": self._store.participation.read,
            "what may be disputed": self._store.disputable.read,
            "what was forwarded": self._store.forwarded.read,
            "what is being forwarded": self._store.forwarding.read,
        }
        for what, check in checks.items():
            try:
                check()
            except ExpungeError as problem:
                self.found("notes", f"{what} cannot be read: {problem}", remedy=_NOTE_LOST)
        self.count("notes", len(checks), len(checks))

    def _receipts(self) -> None:
        chains = self._store.chains()
        receipts = self._store.documents("receipt")
        for done, (number, data) in enumerate(receipts.items(), start=1):
            wrong = _problem_with(data, number, chains)
            if wrong:
                self.found("receipts", f"receipt {number}: {wrong}", remedy=_RECEIPT_LOST)
            self.count("receipts", done, len(receipts))
        self.count("receipts", len(receipts), len(receipts))

    def _head(self) -> None:
        """The newest head, which is a copy: one that is damaged is removed, and fetched anew."""
        data = self._store.head()
        if data is None:
            return
        try:
            published_head.read_by_any(data, self._store.chains())
        except (EvidenceError, FormatError) as problem:
            if self.repair:
                self._store.drop_head()
            self.found(
                "head",
                f"the copy of the newest head: {problem}",
                repaired=self.repair,
                remedy="it can be removed, and the next sync fetches it anew (--repair)",
            )
        self.count("head", 1, 1)


def _problem_with(data: bytes, number: int, chains: list[KeyChain]) -> str:
    """Why a receipt does not hold; empty if it does."""
    problems = []
    for keys in chains:
        try:
            receipt = Receipt.read(Envelope.from_bytes(data, "receipt"), keys)
        except ExpungeError as problem:
            problems.append(str(problem))
        else:
            return "" if receipt.sequence == number else "it is of another request"
    return problems[0]


@dataclass(frozen=True)
class _Row:
    """What can be compared of a sample's row; the fields are columns."""

    slot: int
    id_tag: bytes
    subject_tag: bytes | None
    label: int | None
    commitment: bytes
    names: bytes
    content: bytes


def _variants(row: _Row, column: str) -> Iterator[_Row]:
    """The rows in which one bit of a column is another; none if it is too long to try all."""
    data: bytes = getattr(row, column)
    if len(data) <= _LARGEST:
        for other in one_bit_off(data):
            yield replace(row, **{column: other})  # type: ignore[arg-type]
