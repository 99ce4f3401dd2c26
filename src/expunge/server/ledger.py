"""The ledger: in memory a solver, in the store sealed files and a journal.

In the store the ledger is one sealed file and the journal entries after its position; a client's
share of it (its sub-ledger) is another and that client's journal entries. A request writes its
message to the journal, sealed under the key of the current generation. `fold` begins a new
generation, rewrites the files under new keys, drops the entries and destroys the old keys: from
then on no copy of a folded message, nor of an earlier ledger, can be read, wherever its bytes
linger.

The solver is a cache: `reload` makes it from the files and the journal, at start and after anything
unexpected.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, cast

from expunge.crypto.vault import Vault
from expunge.errors import ExpungeError, RefusedError, StoreError
from expunge.ridge.codec import digest_of
from expunge.ridge.encoding import Rows
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums
from expunge.server.float_ledger import FloatLedger, FloatSums
from expunge.server.rules import Account
from expunge.server.storage.folder import Blobs
from expunge.server.storage.tables import JournalEntry, LedgerFile, ShareFile, Storage
from expunge.solvers import CholeskySolver, WoodburySolver
from expunge.solvers.base import ExactSolver
from expunge.wire import messages
from expunge.wire.messages import GramPart, Message, Part, RowsPart

SOLVERS: dict[str, type[ExactSolver]] = {"cholesky": CholeskySolver, "woodbury": WoodburySolver}
EVERYONE = "*"  # in place of a client's name, where only sums over all clients are known
# Bytes; a message beyond this goes to a file of its own: one more to sync, but the database stays
# small.
LARGE_MESSAGE = 1 << 18
_ACCOUNTS_KEPT = 256
# Clients whose shares are folded together, if these take fewer bytes of memory
_AT_ONCE = 64
_BYTES_AT_ONCE = 32 << 20
_TOLD_EVERY = 100  # entries of the journal
_NET = ("net", "group")  # kinds of messages that hold what is added minus what is deleted
_FLOAT = "this federation computes in float64: there is nothing exact to compare with"


@dataclass(frozen=True)
class Recorded:
    """A message as it goes to the journal."""

    client: str
    sequence: int
    message: Message
    data: bytes


@dataclass
class Remains:
    """Keys and files that nothing refers to any more, or nothing yet."""

    slots: set[int] = field(default_factory=set)
    files: set[str] = field(default_factory=set)

    def add(self, other: Remains) -> None:
        """These, too."""
        self.slots |= other.slots
        self.files |= other.files


Progress = Callable[[int, int], None]  # how many entries of the journal were read, and of how many


def no_progress(_: int, __: int) -> None:
    """Default progress: tells nobody."""


# Makes new files count, within a transaction, and says what that has left when it is over
PutInForce = Callable[[], Remains]


class LedgerFolder(Protocol):
    """The parts of a server's folder that a ledger is kept in."""

    @property
    def storage(self) -> Storage:
        """The tables."""
        ...

    @property
    def vault(self) -> Vault:
        """The keys."""
        ...

    @property
    def blobs(self) -> Blobs:
        """The sealed files."""
        ...


class ServerLedger:
    """The ledger and every client's share of it."""

    def __init__(
        self,
        folder: LedgerFolder,
        spec: Spec,
        solver: str,
        *,
        load: bool = True,
        progress: Progress = no_progress,
    ) -> None:
        self._folder = folder
        self._storage = folder.storage
        self._vault = folder.vault
        self.spec = spec
        if solver not in SOLVERS:
            raise StoreError(f"there is no solver {solver!r}: choose one of {', '.join(SOLVERS)}")
        self._method = solver
        self._progress = progress
        self._accounts: OrderedDict[str, Account] = OrderedDict()  # a cache
        self._just_written: list[str] = []  # files of the last round's messages
        self._undiscarded = False  # whether they are of rounds that may not have happened
        # Of a fold, beside requests: what it has written, to count later, and the keys of what that
        # replaces, to destroy later
        self._drafts: Remains | None = None
        self._drafting = Lock()
        # Keys and files that nothing refers to any more, beside those of folds, until `clean`
        self.has_remains = False
        self.solver: ExactSolver | FloatLedger
        if load:  # into memory; otherwise only what is stored can be asked for
            self.reload()

    # -- in memory ---------------------------------------------------------------------------------

    def reload(self) -> None:
        """Rebuild the solver from the store.

        Nothing is judged again: a round may have been possible only as a whole.
        """
        self._accounts.clear()
        sums = self.stored()
        if isinstance(sums, FloatSums):
            self.solver = FloatLedger(self.spec, self._method, sums)
        elif sums is None:
            self.solver = SOLVERS[self._method](self.spec)
        else:
            self.solver = SOLVERS[self._method](self.spec, sums)

    def stored(self) -> Statistics | FloatSums | None:
        """The ledger as it is stored; None if nothing ever was."""
        file, data = self._storage.files.ledger(), None
        if file is not None:
            data = self._vault.unseal(file.slot, self._folder.blobs.get(file.file), b"ledger")
        positions = self._storage.journal.positions(after=file.position if file else 0)
        if not self.spec.is_exact:
            return self._float_sum(data, self._told(positions))
        if data is None and not positions:
            return None
        return self._exact_sum(data, self._told(positions))

    def _told(self, positions: Sequence[int]) -> Iterator[int]:
        for done, position in enumerate(positions):
            if done % _TOLD_EVERY == 0:
                self._progress(done, len(positions))
            yield position

    def _exact_sum(self, data: bytes | None, positions: Iterable[int]) -> Statistics:
        """What a sealed file held, and what these positions of the journal changed since."""
        sums = Sums(self.spec)
        if data is not None:
            sums.merge(Statistics.from_bytes(self.spec, data))
        for position in positions:
            change = self._message(position)
            _change(sums, change.added, 1)
            _change(sums, change.deleted, -1)
        return Statistics.snapshot(sums)

    def _float_sum(self, data: bytes | None, positions: Iterable[int]) -> FloatSums:
        """The same in float64."""
        sums = FloatSums(self.spec) if data is None else FloatSums.from_bytes(self.spec, data)
        for position in positions:
            change = self._message(position)
            sums.change(change.added, 1)
            sums.change(change.deleted, -1)
        return sums

    def apply(self, changes: Sequence[Message]) -> None:
        """Change the ledger in memory; if one of the messages is impossible, none takes effect."""
        try:
            self._apply(changes)
        except ExpungeError:
            self.reload()
            raise

    def _apply(self, changes: Sequence[Message]) -> None:
        if isinstance(self.solver, FloatLedger):
            for change in changes:  # one after another: in float64 the order shows
                self.solver.change(change.added, 1)
                self.solver.change(change.deleted, -1)
            return
        for change in changes:
            if change.kind in _NET and isinstance(change.added, GramPart):
                self.solver.delete_statistics(
                    -change.added.statistics
                )  # which judges what is left: a net may delete more than it adds
        changes = [change for change in changes if change.kind not in _NET]
        for sign, parts in (
            (1, [change.added for change in changes]),
            (-1, [change.deleted for change in changes]),
        ):
            rows = [part.rows for part in parts if isinstance(part, RowsPart)]
            if rows:
                (self.solver.add_rows if sign > 0 else self.solver.delete_rows)(Rows.joined(rows))
            for part in parts:
                if isinstance(part, GramPart):
                    (self.solver.add_statistics if sign > 0 else self.solver.delete_statistics)(
                        part.statistics
                    )

    def replace(self, statistics: Statistics) -> None:
        """Put another ledger in the place of the one in memory."""
        self.solver = SOLVERS[self._method](self.spec, statistics)
        self._accounts.clear()

    def delete_client(self, client: str) -> int:
        """Delete all that a client added, in memory; returns how many samples that were."""
        share = self.subledger(client)
        if isinstance(share, FloatSums):
            cast("FloatLedger", self.solver).delete_statistics(share)
        else:
            cast("ExactSolver", self.solver).delete_statistics(share)
        return share.count

    def digest(self) -> Callable[[], str]:
        """A function that hashes the ledger as it is now; to be called before the next change, in
        any thread.
        """
        sums = self.solver.settled()
        return (lambda: sums.digest) if isinstance(sums, FloatSums) else (lambda: digest_of(sums))

    def amend(self, spec: Spec) -> None:
        """Continue under another spec; the journal must be folded first if labels were appended."""
        self.solver.amend(spec)
        self.spec = spec
        self._accounts.clear()

    # -- clients -----------------------------------------------------------------------------------

    def account(self, client: str) -> Account:
        """What the ledger knows of a client."""
        if client not in self._accounts:
            share = self._storage.files.share(client)
            account = Account.empty(self.spec)
            if share is not None:
                account = Account.from_bytes(
                    self._vault.unseal(share.slot, share.account, b"account:" + client.encode())
                ).under(self.spec)
            for position in self._storage.journal.positions(client):
                account = account.after(self._message(position))
            self.keep_account(client, account)
        return self._accounts[client]

    def keep_account(self, client: str, account: Account) -> None:
        """Remember an account that has been committed."""
        self._accounts[client] = account
        self._accounts.move_to_end(client)
        while len(self._accounts) > _ACCOUNTS_KEPT:
            self._accounts.popitem(last=False)

    def forget_account(self, client: str) -> None:
        """Drop all state of a client."""
        self._accounts.pop(client, None)

    def subledger(self, client: str, until: int | None = None) -> Statistics | FloatSums:
        """A client's share of the ledger, up to a position of the journal."""
        share, data = self._storage.files.share(client), None
        if share is not None:
            sealed = self._folder.blobs.get(share.file)
            data = self._vault.unseal(share.slot, sealed, b"subledger:" + client.encode())
        positions = self._storage.journal.positions(client, until=until)
        add_up = self._exact_sum if self.spec.is_exact else self._float_sum
        return add_up(data, positions)

    def exact_subledger(self, client: str, until: int | None = None) -> Statistics:
        """The same where the ledger is exact; refused where it is not."""
        share = self.subledger(client, until)
        if isinstance(share, FloatSums):
            raise RefusedError("not-allowed", _FLOAT)
        return share

    def share_after(self, client: str, changes: Iterable[Message]) -> Statistics:
        """What a client's share would be after these changes, where the ledger is exact."""
        sums = Sums(self.spec)
        sums.merge(self.exact_subledger(client))
        for change in changes:
            _change(sums, change.added, 1)
            _change(sums, change.deleted, -1)
        return Statistics.snapshot(sums)

    def exact_statistics(self) -> Statistics:
        """The whole ledger, where it is exact."""
        statistics = self.solver.statistics
        if isinstance(statistics, FloatSums):
            raise RefusedError("not-allowed", _FLOAT)
        return statistics

    # -- the journal -------------------------------------------------------------------------------

    def record(self, changes: Iterable[Recorded], generation: int, time: int) -> None:
        """Write messages to the journal within a transaction."""
        slot = self.slot_of(generation)
        if self._undiscarded:  # otherwise each failure would take room from the next attempt
            self.discard()
        if not self._undiscarded:
            self._just_written = []
        for change in changes:
            sealed = self._vault.seal(slot, change.data, _context(change.client, change.sequence))
            file = None
            if len(sealed) > LARGE_MESSAGE:
                file = self._folder.blobs.put(sealed)
                self._just_written.append(file)
            message = change.message
            self._storage.journal.append(
                JournalEntry(
                    generation,
                    change.client,
                    change.sequence,
                    message.kind,
                    message.added.count if message.added else 0,
                    message.deleted.count if message.deleted else 0,
                    time,
                    sealed if file is None else None,
                    file,
                )
            )

    def discard(self) -> None:
        """Remove the files of messages that did not become part of the journal: a full disk must
        not be filled by failures.
        """
        self._undiscarded = not self._storage.is_certain
        if self._undiscarded:
            return
        for file in set(self._just_written) - self._storage.files.names():
            self._folder.blobs.remove(file)
        self._just_written = []

    def _message(self, position: int) -> Message:
        entry = self._storage.journal.get(position)
        if entry is None:
            raise StoreError(f"the journal has no entry {position}: restore a backup")
        sealed = entry.sealed
        if sealed is None:
            sealed = self._folder.blobs.get(str(entry.file))
        context = _context(entry.client, entry.sequence)
        data = self._vault.unseal(self.slot_of(entry.generation), sealed, context)
        return messages.read(self.spec, entry.kind, entry.added, entry.deleted, data)

    def slot_of(self, generation: int) -> int:
        """The slot of the key that messages of a generation are sealed under."""
        slot = self._storage.generations.slot(generation)
        if slot is None:
            raise StoreError(f"there is no key of generation {generation}: restore a backup")
        return slot

    # -- files -------------------------------------------------------------------------------------

    def write_ledger(self, statistics: Statistics | FloatSums, position: int) -> PutInForce:
        """Seal the ledger into a file; the function returned makes it count, within a
        transaction.
        """
        (slot,), (name,) = self._begin_files(1)
        self._folder.blobs.put_all({name: self._vault.seal(slot, statistics.to_bytes(), b"ledger")})
        file = LedgerFile(position, slot, name)

        def put_in_force() -> Remains:
            before = self._storage.files.ledger()
            self._storage.files.put_ledger(file)
            return Remains() if before is None else Remains({before.slot}, {before.file})

        return put_in_force

    def fold_client(self, client: str, until: int, share: Statistics | None = None) -> PutInForce:
        """Bring a client's journal entries up to `until` into its file, or put `share` in the place
        of all; as `write_ledger`.
        """
        return self._write_shares(
            {client: self.subledger(client, until) if share is None else share}, until
        )

    def fold_clients(
        self, clients: Iterable[str], until: int, is_short: Callable[[], bool]
    ) -> Iterator[PutInForce]:
        """The same of many clients, some at a time: their keys, files and rows together; one at a
        time while the disk is short of room.
        """
        shares: dict[str, Statistics | FloatSums] = {}
        for client in clients:
            shares[client] = self.subledger(client, until)
            most = 1 if is_short() else min(_AT_ONCE, _BYTES_AT_ONCE // self._share_bytes())
            if len(shares) >= most:
                yield self._write_shares(shares, until)
                shares.clear()
        if shares:
            yield self._write_shares(shares, until)

    def _share_bytes(self) -> int:
        """About how much memory a client's share takes."""
        return 16 * self.spec.width * (self.spec.width + self.spec.columns)

    def _write_shares(self, shares: Mapping[str, Statistics | FloatSums], until: int) -> PutInForce:
        slots, names = self._begin_files(len(shares))
        written, files = dict[str, bytes](), list[ShareFile]()
        for (client, share), slot, name in zip(shares.items(), slots, names, strict=True):
            account = Account.of(share) if isinstance(share, Statistics) else share.account()
            context = client.encode()
            written[name] = self._vault.seal(slot, share.to_bytes(), b"subledger:" + context)
            sealed = self._vault.seal(slot, account.to_bytes(), b"account:" + context)
            files.append(ShareFile(client, slot, name, sealed))
        self._folder.blobs.put_all(written)

        def put_in_force() -> Remains:
            remains = Remains()
            for file in files:
                before = self._storage.files.share(file.client)
                if before is not None:
                    remains.add(Remains({before.slot}, {before.file}))
                remains.files |= self._storage.journal.files(file.client, until)
                self._storage.files.put_share(file)
                self._storage.journal.remove(file.client, until)
            return remains

        return put_in_force

    def _begin_files(self, count: int) -> tuple[list[int], list[str]]:
        """Fresh keys and names for so many files."""
        with self._drafting:
            slots, names = self._vault.new(count), self._folder.blobs.names(count)
            if self._drafts is not None:
                self._drafts.add(Remains(set(slots), set(names)))
            return slots, names

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """Files are written that are to count later, while others may `clean`.

        What these replace, and is `set_aside`, is left to whoever drafts, too: a slot that was
        cleaned up is given away, and would be destroyed with another's key in it.
        """
        self._drafts = Remains()
        try:
            yield
        finally:
            with self._drafting:
                self._drafts = None

    def set_aside(self, remains: Remains) -> None:
        """The keys that a transaction under way leaves will be destroyed by whoever drafts; its
        files, which give room, may go before.
        """
        with self._drafting:
            if self._drafts is not None:
                self._drafts.slots |= remains.slots

    def destroy(self, remains: Remains) -> None:
        """Destroy keys and files that nothing has referred to since a transaction that is over."""
        self._vault.shred(remains.slots)
        for file in remains.files:
            self._folder.blobs.remove(file)

    def clean(self) -> None:
        """Destroy every key and file that the store does not refer to; also after a crash."""
        self.shred_orphans()
        if self._storage.is_certain:
            self._storage.forget_overwritten()
            self.has_remains = False

    def shred_orphans(self) -> None:
        """The same, but for what lingers of them in the store itself, which is left for `clean`:
        that may have to wait for who reads.
        """
        self.has_remains = True
        if not self._storage.is_certain:
            return
        with self._drafting:
            drafts = self._drafts or Remains()
            self._vault.keep_only(self._storage.files.slots() | drafts.slots)
        self.remove_orphans()

    def remove_orphans(self) -> None:
        """Remove every file that the store does not refer to."""
        if not self._storage.is_certain:
            return
        with self._drafting:
            drafts = self._drafts or Remains()
            self._folder.blobs.keep_only(self._storage.files.names() | drafts.files)


def _context(client: str, sequence: int) -> bytes:
    return f"journal:{client}:{sequence}".encode()


def _change(sums: Sums, part: Part | None, sign: int) -> None:
    if isinstance(part, RowsPart):
        sums.change(part.rows, sign)
    elif isinstance(part, GramPart):
        sums.merge(part.statistics, sign)
