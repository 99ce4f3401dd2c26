"""A scrub of a server's store: every entry of the log is hashed again, every receipt is verified,
every client's share of the ledger is opened, and all shares are added up.

It works on a server that is stopped, and then repairs if it is asked to; or beside one at work:
then what changes is read from a snapshot, for which requests do not wait, and what never changes
again (log, receipts) in small steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from expunge.crypto import Envelope, PublicKey, canonical
from expunge.crypto.vault import Vault
from expunge.errors import ExpungeError, StoreDamagedError, StoreError
from expunge.evidence import KeyChain, Receipt, Rotation
from expunge.evidence.audit_result import Result
from expunge.evidence.digests import MultisetHash, salted
from expunge.evidence.log import read_entry
from expunge.evidence.merkle import leaf_hash, new_nodes
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.server.ledger import EVERYONE, PutInForce, ServerLedger
from expunge.server.log import AuditLog
from expunge.server.orders import unreadable_orders
from expunge.server.rules import Account
from expunge.server.state import Basis
from expunge.server.storage.folder import Blobs, ServerFolder
from expunge.server.storage.tables import AnswerRecord, ServerRecord, Storage
from expunge.storage.scrub import Progress, Scrub, ScrubResult, no_progress, one_bit_off

_AT_ONCE = 1000  # entries of the log
_RESTORE = (
    "restore the server from a backup, or rebuild it from the clients (expunge audit --rebuild)"
)
_RESEND = (
    "have the client send what it holds anew: forget it (expunge server forget-client) and enrol "
    "it again; or restore the server from a backup, and every client sends it"
)
_EVIDENCE_LOST = "the party that it was given to has it as well; a backup of before the damage, too"


@dataclass(frozen=True)
class _View:
    """The parts of a server's folder that its ledger is read from."""

    storage: Storage
    vault: Vault
    blobs: Blobs


class _Nodes(Mapping[tuple[int, int], bytes]):
    """The complete subtrees that the next ones are made from: the last of each level."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, bytes]] = {}

    def node(self, level: int, index: int) -> bytes:
        """The last subtree of a level."""
        return self[level, index]

    def __getitem__(self, place: tuple[int, int]) -> bytes:
        level, index = place
        last, hashed = self._last[level]
        if last != index:
            raise KeyError(place)
        return hashed

    def add(self, level: int, index: int, hashed: bytes) -> None:
        """It is the last of its level now."""
        self._last[level] = index, hashed

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((level, index) for level, (index, _) in self._last.items())

    def __len__(self) -> int:
        return len(self._last)


class ServerScrub(Scrub):
    """One scrub of one server. `still` is held while what changes is read: nothing may be folded
    meanwhile.
    """

    def __init__(
        self,
        folder: ServerFolder,
        *,
        repair: bool = False,
        progress: Progress = no_progress,
        still: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__(repair=repair, progress=progress)
        self._folder = folder
        self._storage = folder.storage
        self._still = still or nullcontext()
        self._answered: list[tuple[str, int]] = []  # by name and number, as the log says

    def run(self) -> ScrubResult:
        """Read everything."""
        with self._still:
            self.database(self._storage)
            self.attempt("mark", self._mark, _RESTORE)
            snapshot = nullcontext(self._storage) if self.repair else self._storage.snapshot()
            with snapshot as storage:
                view = _View(storage, self._folder.vault, self._folder.blobs)
                self.attempt("ledger", lambda: _Ledger(self, view, self._folder).check(), _RESTORE)
        self.attempt("log", self._log, _RESTORE)
        self.attempt("receipts", self._answers, _RESTORE)
        self.attempt("orders", self._orders, _RESTORE)
        for warning in self._folder.vault.warnings:
            self.found("vault", warning, repaired=True)
        self.count("vault", len(self._folder.vault.live()))
        return self.result

    @property
    def record(self) -> ServerRecord:
        """The server's recorded state."""
        record = self._storage.state.get()
        if record is None:
            raise StoreDamagedError(f"the database in {self._folder.path} does not say whose it is")
        return record

    def _mark(self) -> None:
        """The log has all that anybody was told of. A mark that is damaged is made anew."""
        try:
            self._folder.require_log()
        except StoreDamagedError as problem:
            if not self.repair or self._folder.mark.number:
                raise
            self._folder.renew_mark()
            self.found("mark", str(problem), repaired=True)
        self.count("mark", 1, 1)

    # -- the log -----------------------------------------------------------------------------------

    def _log(self) -> None:
        """Every entry can be read and has the hash that it had; so does every subtree."""
        log, table = AuditLog(self._storage), self._storage.log
        size, nodes = log.size, _Nodes()
        entries: dict[int, bytes] = {}
        wrong: dict[tuple[int, int], bytes] = {}
        for start in range(0, size, _AT_ONCE):
            end = min(size, start + _AT_ONCE)
            page = table.entries(start, end)
            if len(page) < end - start:
                raise StoreDamagedError(
                    f"the log lacks entries between {start} and {end}, of {size}"
                )
            for position, data in enumerate(page, start=start):
                entry = self._whole_entry(position, data)
                self._answered += [] if entry is None else _answered_in(entry)
                if entry is not None and entry != data:
                    entries[position] = entry
                leaf = self._node(0, position) if entry is None else leaf_hash(entry)
                for level, index, hashed in new_nodes(position, leaf, nodes):
                    nodes.add(level, index, hashed)
                    if self._node(level, index) != hashed:
                        wrong[level, index] = hashed
            self.count("log", min(size, start + _AT_ONCE), size)
        self._put_log_right(entries, wrong)
        self.count("log", size, size)

    def _node(self, level: int, index: int) -> bytes:
        try:
            return bytes(self._storage.log.node(level, index))
        except StoreError:
            return b""

    def _whole_entry(self, position: int, data: bytes) -> bytes | None:
        """The entry, if need be with one bit put right; None if it is not what was hashed."""
        leaf = self._node(0, position)
        if leaf_hash(data) == leaf:
            return data
        for other in one_bit_off(data):
            if leaf_hash(other) == leaf:
                return other
        if _is_entry(data):
            return data  # then it is the hash that is another
        self.found("log", f"entry {position} cannot be read", remedy=_EVIDENCE_LOST)
        return None

    def _put_log_right(
        self, entries: Mapping[int, bytes], wrong: Mapping[tuple[int, int], bytes]
    ) -> None:
        """Entries and hashes as they are to be, if they are what the mark says."""
        if not (entries or wrong):
            return
        nodes = dict(wrong)
        what = f"{len(entries)} entries and {len(nodes)} hashes of the log are not what they were"
        is_right = False
        if self.repair:
            is_right = self._storage_takes(entries, nodes)
        self.found(
            "log",
            what,
            repaired=is_right,
            remedy=_RESTORE if self.repair else "they may be put right (--repair)",
        )

    def _storage_takes(
        self, entries: Mapping[int, bytes], nodes: Mapping[tuple[int, int], bytes]
    ) -> bool:
        """Write them, unless the root would be another than the one that was told of."""
        try:
            with self._storage.transaction():
                self._storage.log.rewrite(entries, nodes)
                self._folder.require_log()
        except StoreDamagedError:
            return False
        return True

    # -- receipts ----------------------------------------------------------------------------------

    def _answers(self) -> None:
        """Every receipt and every result of a command verifies, and is of this log."""
        chain = self._chain()
        clients = {actor.name for actor in self._storage.actors.all() if actor.role == "client"}
        total = len(self._answered)
        for done, (name, sequence) in enumerate(self._answered, start=1):
            record = self._storage.answers.get(name, sequence)
            if record is not None:
                self._answer(record, chain, is_client=name in clients)
            if done % _AT_ONCE == 0:
                self.count("receipts", done, total)
        self.count("receipts", total, total)

    def _chain(self) -> KeyChain:
        envelopes = [
            Envelope.from_bytes(data, "rotation") for data in self._storage.rotations.all()
        ]
        first: PublicKey = Rotation.read(envelopes[0]).old if envelopes else self._folder.key.public
        chain = KeyChain(first, envelopes)
        if chain.newest.id != self.record.key:
            raise StoreDamagedError("the rotations do not lead to the key that signs now")
        return chain

    def _answer(self, record: AnswerRecord, chain: KeyChain, *, is_client: bool) -> None:
        try:
            if is_client:
                envelope = Envelope.from_bytes(record.answer, "receipt")
                read: Receipt | Result = Receipt.read(envelope, chain)
            else:
                read = Result.read(Envelope.from_bytes(record.answer, "result"), chain)
            checkpoint = read.checkpoint
            log = AuditLog(self._storage)
            if checkpoint is not None and log.root(checkpoint.size) != checkpoint.root:
                raise StoreDamagedError("it is of another log")
        except ExpungeError as problem:
            self.found(
                "receipts",
                f"answer {record.sequence} to {record.actor}: {problem}",
                remedy=_EVIDENCE_LOST,
            )

    def _orders(self) -> None:
        for order in unreadable_orders(self._folder):
            self.found(
                "orders",
                f"the subject of order {order.id[:8]} cannot be read",
                remedy="file it again (expunge order file)",
            )
        self.count("orders", len(self._storage.orders.all()))


class _Ledger:
    """The ledger as it is stored: its file, the shares of the clients, the journal, and the
    commitments of what is in it.
    """

    def __init__(self, scrub: ServerScrub, view: _View, folder: ServerFolder) -> None:
        self._scrub = scrub
        self._storage = view.storage
        self._folder = folder
        record = view.storage.state.get()
        if record is None:
            raise StoreDamagedError(f"the database in {folder.path} does not say whose it is")
        self._record = record
        self._spec = Spec.from_dict(canonical.decode(record.spec.encode()))
        self._ledger = ServerLedger(view, self._spec, record.solver, load=False)
        self._vault = view.vault

    def check(self) -> None:
        """Every part can be opened, and the shares add up to the ledger."""
        names = [
            *(actor.name for actor in self._storage.actors.all() if actor.role == "client"),
            EVERYONE,
        ]
        shares: dict[str, Statistics | None] = {}
        for done, name in enumerate(names, start=1):
            shares[name] = self._share(name)
            self._scrub.count("shares", done, len(names))
        whole = self._attempted(lambda: self._ledger.stored() or Statistics.zero(self._spec))
        if not self._spec.is_exact:
            if whole is None:
                self._scrub.found("ledger", "the ledger cannot be opened", remedy=_RESTORE)
            return
        ledger = whole if isinstance(whole, Statistics) else None
        lost = [name for name, share in shares.items() if share is None]
        total = Sums(self._spec)
        for share in shares.values():
            if share is not None:
                total.merge(share)
        self._compare(ledger, lost, Statistics.snapshot(total))
        self._digests(ledger)
        self._commitments(shares)

    def _attempted(self, read: Callable[[], object]) -> object:
        try:
            return read()
        except (ExpungeError, OSError):
            return None

    def _share(self, name: str) -> Statistics | None:
        """A client's share; None if it cannot be opened, or is not what its account says."""
        share = self._attempted(lambda: self._ledger.subledger(name))
        account = self._attempted(lambda: self._ledger.account(name))
        if not self._spec.is_exact:
            if share is None or account is None:
                self._scrub.found("shares", f"the share of {name} cannot be opened", remedy=_RESEND)
            return None
        if not isinstance(share, Statistics) or not isinstance(account, Account):
            return None
        return share if Account.of(share).to_bytes() == account.to_bytes() else None

    def _compare(self, ledger: Statistics | None, lost: list[str], total: Statistics) -> None:
        """One part that is lost is what the others lack of the ledger, or their sum."""
        scrub, position = self._scrub, self._storage.journal.last()
        is_mended = False
        if ledger is None and not lost:
            what, remedy = "the file of the ledger cannot be opened", _RESTORE
            if scrub.repair and self._is_recorded(total):
                is_mended = self._in_force(self._ledger.write_ledger(total, position))
        elif ledger is not None and len(lost) == 1:
            what, remedy = f"the share of {lost[0]} cannot be opened", _RESEND
            if scrub.repair and self._is_recorded(ledger):
                is_mended = self._in_force(  # as a fold: then the journal is needed no longer
                    self._ledger.write_ledger(ledger, position),
                    self._ledger.fold_client(lost[0], position, ledger - total),
                )
        elif ledger is None or lost:
            what = f"the shares of {', '.join(lost)} cannot be opened" + (
                ", nor the file of the ledger" if ledger is None else ""
            )
            remedy = _RESTORE
        elif ledger != total:
            what, remedy = "the shares of the clients do not add up to the ledger", _RESTORE
        else:
            return
        if not is_mended and not scrub.repair and len(lost) + (ledger is None) == 1:
            remedy = "it may be made anew from the others (--repair)"
        scrub.found("ledger", what, repaired=is_mended, remedy=remedy)

    def _in_force(self, *files: PutInForce) -> bool:
        with self._folder.storage.transaction():
            for put_in_force in files:
                put_in_force()
        return True

    def _basis(self) -> Basis | None:
        if not self._record.basis:
            return None
        slot = self._ledger.slot_of(self._record.generation)
        return Basis.from_bytes(self._vault.unseal(slot, self._record.basis, b"basis"))

    def _is_recorded(self, ledger: Statistics) -> bool:
        """Whether sums are those that the log has the digest of, as far as that can be told."""
        basis = self._basis()
        if basis is None or basis.position is not None:
            return True
        return ledger.digest == basis.sums

    def _digests(self, ledger: Statistics | None) -> None:
        """The ledger has the digest that the log shows."""
        basis = self._basis()
        if ledger is None or basis is None or basis.position is not None:
            return
        slot = self._ledger.slot_of(self._record.generation)
        salt = self._vault.unseal(slot, self._record.salt, b"salt")
        digest = salted("ledger", salt, ledger.digest)
        if digest != self._record.ledger_digest or ledger.digest != basis.sums:
            self._scrub.found(
                "ledger", "the ledger is not the one that the log tells of", remedy=_RESTORE
            )

    def _commitments(self, shares: Mapping[str, Statistics | None]) -> None:
        """The commitments are those of the samples in the ledger, as many and the very same."""
        table, basis = self._storage.commitments, self._basis()
        held = {client: table.of(client) for client in table.clients()}
        if basis is not None and MultisetHash.of(held) != basis.live:
            self._scrub.found(
                "commitments",
                "the commitments are not those of the samples that are live",
                remedy=_RESTORE,
            )
        for client, share in shares.items():
            number = len(held.get(client, ()))
            if not number and "group" in self._spec.messages:
                continue  # an aggregator, which names no samples
            if not self._spec.is_masked and share is not None and share.count != number:
                self._scrub.found(
                    "commitments",
                    f"{client} has {number} commitments for {share.count} samples",
                    remedy=_RESEND,
                )
        self._scrub.count("commitments", sum(map(len, held.values())))


def scrub_server(
    path: Path,
    *,
    mirrors: tuple[Path, ...] = (),
    repair: bool = False,
    timeout: float = 0.0,
    progress: Progress = no_progress,
) -> ScrubResult:
    """Read everything in the folder of a server that is stopped, and compare it with what it must
    agree with.

    Parameters
    ----------
    path : Path
        The server's folder (`server` in the folder of a federation).
    mirrors : tuple of Path, default ()
        The mirrors of its vault.
    repair : bool, default False
        Whether to put right what can be put right.
    timeout : float, default 0.0
        Seconds to wait for another process.
    progress : callable, optional
        Called with what is being read, how much has been, and of how much.

    Returns
    -------
    ScrubResult
        What was read, and what is damaged.

    Raises
    ------
    StoreBusyError
        A server is at work on the folder.
    StoreError
        There is no server, or nothing of it can be read; the message says what to do.
    """
    folder = ServerFolder.open(path, mirrors, timeout=timeout, lossy=True)
    try:
        return ServerScrub(folder, repair=repair, progress=progress).run()
    finally:
        folder.close(abandon=not repair)  # a damaged write-ahead log stays as it is


def _answered_in(data: bytes) -> list[tuple[str, int]]:
    """Whose requests or commands an entry of the log is of, with their numbers."""
    try:
        entry = read_entry(data)
    except ExpungeError:
        return []
    if entry["kind"] == "changed":
        return [(entry["client"], entry["sequence"])]
    if entry["kind"] == "commanded":
        return [(entry["actor"], entry["sequence"])]
    if entry["kind"] == "aggregated":
        return [(member["client"], member["sequence"]) for member in entry["clients"]]
    return []


def _is_entry(data: bytes) -> bool:
    try:
        read_entry(data)
    except ExpungeError:
        return False
    return True
