"""What all parts of the service share: the folder, the ledger, the log, the clock, the head, and
the one row of state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

from expunge._lazy import public_dir
from expunge.crypto import Envelope, canonical
from expunge.crypto.envelope import SignedHeader
from expunge.errors import EvidenceError, NotAGramError, RefusedError, SolveError, StoreError
from expunge.evidence import Checkpoint, Logged
from expunge.evidence.digests import MultisetHash, binding, salted
from expunge.evidence.log import EntryKind, make_entry, read_entry
from expunge.frame import Format
from expunge.kinds import Bound, ClientStatus, Role
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.server.clock import TOLERANCE, Clock, SteadyClock
from expunge.server.ledger import Progress, ServerLedger, no_progress
from expunge.server.log import AuditLog
from expunge.server.pace import Pace
from expunge.server.room import Room
from expunge.server.storage.folder import ServerFolder
from expunge.server.storage.tables import Actor, AnswerRecord, ServerRecord
from expunge.wire.schema import time_seconds, time_text

__all__ = ["Settings"]
__dir__ = public_dir(__name__)

SALT_BYTES = 32
_BASIS = Format("a basis of digests", b"", "32sq", remedy="restore a backup")
_CURRENT = -1  # as a position: of now


@dataclass(frozen=True)
class Settings:
    """What an operator may choose; nothing here changes a bit of any head.

    Attributes
    ----------
    solver : {"", "woodbury", "cholesky"}, default ""
        What solves for heads; both give the same. Empty: as the federation was founded.
    erase_within : int, default 60
        Seconds from a request to the destruction of the key that its message is journalled under;
        receipts promise more while folds are too slow for it.
    group_commit : bool, default True
        Whether requests that arrive together share a transaction and a solve.
    largest_request : int, default 256 MiB
        Bytes of a request; longer ones are refused.
    most_in_flight : int, default 256 MiB
        Bytes of requests taken in and not yet answered; further ones wait, then are refused.
    requests_per_minute : int, default 6000
        Requests of each actor; 0 for any number.
    gather_for : float, default 5.0
        Seconds that a round of secure aggregation with enough clients waits for another one.
    phase_for : float, default 60.0
        Seconds that a client has for each phase of a round before it counts as dropped out.
    scrub_every : float, default 0.0
        Seconds from one scrub of the store to the next; 0 for none.
    room : int, default 0
        Bytes of the disk that a step of a deletion or fold may take: twice as many are kept in
        reserve. 0 for what follows from the spec.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> from expunge.server.state import Settings
    >>> folder = tempfile.TemporaryDirectory()
    >>> settings = Settings(erase_within=10, requests_per_minute=600)
    >>> spec = Spec(dim=2, labels=("cat", "dog"))
    >>> with Federation.found(f"{folder.name}/federation", spec, settings=settings) as federation:
    ...     federation.carrier.status()["samples"]
    0
    >>> folder.cleanup()
    """

    solver: str = ""
    erase_within: int = 60
    group_commit: bool = True
    largest_request: int = 256 << 20
    most_in_flight: int = 256 << 20
    requests_per_minute: int = 6000
    gather_for: float = 5.0
    phase_for: float = 60.0
    scrub_every: float = 0.0
    room: int = 0


@dataclass(frozen=True)
class Basis:
    """What a digest that binds samples builds on. It is as secret as the salt: with the ledger of
    now, the digest of an earlier one can be tested.
    """

    sums: str  # the plain digest of the sums, as they were at `position`
    position: int | None  # how many entries the log had then; None: they are the current ones
    live: MultisetHash  # of the samples of now

    def to_bytes(self) -> bytes:
        """For the store; sealed there."""
        position = _CURRENT if self.position is None else self.position
        return _BASIS.begin(bytes.fromhex(self.sums), position) + self.live.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Basis:
        """The inverse of `to_bytes`."""
        (sums, position), reader = _BASIS.open(data)
        live = MultisetHash.from_bytes(bytes(reader.rest()))
        return cls(sums.hex(), None if position == _CURRENT else position, live)


@dataclass(frozen=True)
class Digests:
    """Salted digests of ledger and head, as logs and receipts show them, the salt they were made
    with, and what the next ones build on.
    """

    ledger: str
    head: str
    salt: bytes
    basis: Basis

    @property
    def binds(self) -> Bound:
        """What the digest of the ledger is of."""
        return "sums" if self.basis.position is None else "samples"


class ServerState:
    """Law: every change of state happens under `lock`, in one transaction of the store."""

    def __init__(
        self,
        folder: ServerFolder,
        settings: Settings,
        clock: Clock,
        *,
        threads: bool = True,
        seconds: Clock = time.monotonic,
        progress: Progress = no_progress,
    ) -> None:
        self.folder = folder
        self.storage = folder.storage
        self.vault = folder.vault
        self.settings = settings
        self.lock = RLock()
        self.log = AuditLog(folder.storage)
        self._clock = clock
        self.pace = Pace(settings.erase_within, seconds)
        self._hashing = ThreadPoolExecutor(1, "digest") if threads else None
        self.federation = self.record.federation
        self.solver_name = settings.solver or self.record.solver
        self.room = Room(folder, self._recorded_spec(), settings.room)
        self.room.use()
        self.ledger = ServerLedger(
            folder, self._recorded_spec(), self.solver_name, progress=progress
        )
        self.head: Head | None = None
        self.headless = ""  # why there is no head, if there is none
        self._sound = True  # whether memory matches the store
        self.version = 0  # counts changes of what certificates say
        self.most_ahead = 0  # seconds that stamps were ahead of the clock, since they are
        # Whose requests, by their numbers, are being summed up now: no others take these numbers.
        self.under_way: frozenset[tuple[str, int]] = frozenset()
        self.find_head()
        self.settle_head()

    @property
    def spec(self) -> Spec:
        """The federation's current spec."""
        return self.ledger.spec

    @property
    def record(self) -> ServerRecord:
        """The server's recorded state."""
        record = self.storage.state.get()
        if record is None:
            raise StoreError(
                f"the server in {self.folder.path} was never finished: remove the folder and run "
                "expunge init again"
            )
        return record

    def _recorded_spec(self) -> Spec:
        return Spec.from_dict(canonical.decode(self.record.spec.encode()))

    def random(self, count: int) -> bytes:
        """So many random bytes, of the machine that the folder is on."""
        return self.folder.machine.random(count)

    # -- time --------------------------------------------------------------------------------------

    def now(self) -> int:
        """The time in whole seconds; never earlier than what was stamped before, even if the clock
        does.
        """
        return max(int(self._clock()), self.record.time)

    def by_clock(self) -> int:
        """The time in whole seconds as the clock has it: earlier than what was stamped before, if
        it was ahead then. For waits, which would take too long by the other.
        """
        return int(self._clock())

    def stamps_ahead(self) -> int:
        """By how many seconds what was stamped last is ahead of the clock."""
        return max(0, self.record.time - self.by_clock())

    def note_stamps_ahead(self) -> int:
        """The same; and remember the most that it was, since stamps stand still meanwhile."""
        ahead = self.stamps_ahead()
        self.most_ahead = max(self.most_ahead, ahead) if ahead > TOLERANCE else 0
        return ahead

    def clock_ahead(self) -> float:
        """By how many seconds the machine's clock has jumped ahead of the time that is stamped."""
        return self._clock.ahead() if isinstance(self._clock, SteadyClock) else 0.0

    @contextmanager
    def changing(self) -> Iterator[int]:
        """A transaction; the time it is stamped with. What it has logged is marked before anybody
        is told of it.
        """
        with self.lock:
            with self.storage.transaction():
                now = self.now()
                self.storage.state.put(replace(self.record, time=now))
                yield now
            self.folder.mark_log()

    # -- the log -----------------------------------------------------------------------------------

    def append(self, kind: EntryKind, now: int, **content: Any) -> int:
        """Write an entry to the audit log, within a transaction; returns its index."""
        return self.log.append(make_entry(kind, time_text(now), **content))

    def checkpoint(self, now: int) -> Checkpoint:
        """What the log is now."""
        return self.log.checkpoint(self.federation, time_text(now))

    def logged(self, index: int, checkpoint: Checkpoint) -> Logged:
        """An entry with its proof."""
        return self.log.logged(index, checkpoint.size)

    def sign(self, kind: str, content: object) -> Envelope:
        """An envelope signed by the server's current key."""
        return Envelope.signed(kind, content, self.folder.key)

    def rotations(self) -> list[Envelope]:
        """How the key that signs now came from the first one."""
        return [Envelope.from_bytes(data, "rotation") for data in self.storage.rotations.all()]

    def last_erased(self) -> int | None:
        """When the log last said that a journal was erased at rest; None where it is not known."""
        erasure = self.storage.generations.last_erasure()
        if erasure is None or erasure.position < 0:
            return None
        return time_seconds(read_entry(self.log.entry(erasure.position))["time"])

    @property
    def server_id(self) -> str:
        """The id of the key that signs now."""
        return self.folder.key.public.id

    # -- ledger and head ---------------------------------------------------------------------------

    def find_head(self) -> None:
        """Solve for the head of the ledger in memory.

        Statistics of no samples are refused; there may also be no head.
        """
        try:
            self.head, self.headless = self.ledger.solver.head(), ""
        except NotAGramError:
            raise
        except SolveError as problem:
            self.head, self.headless = None, str(problem)
        self.version += 1

    def settle_head(self) -> None:
        """What the head is of has become durable: from now on it may be spoken of, without waiting
        for the lock.
        """
        self.head_digest = self.head.digest if self.head is not None else ""

    def basis(self) -> Basis:
        """What the next digest that binds samples builds on, while memory matches the store."""
        record = self.record
        if not record.basis:  # of a version that knew of none
            return Basis(self.ledger.digest()(), None, MultisetHash.of(self.commitments()))
        slot = self.ledger.slot_of(record.generation)
        return Basis.from_bytes(self.vault.unseal(slot, record.basis, b"basis"))

    def commitments(self) -> dict[str, list[bytes]]:
        """The commitments of all live samples, by client."""
        table = self.storage.commitments
        return {client: table.of(client) for client in table.clients()}

    def solved(self, live: MultisetHash | None = None) -> Digests:
        """The head of the ledger in memory, and fresh digests of its sums and of the head; hashing
        runs beside the solver. `live` is for where samples have changed.
        """
        if live is None:
            live = self.basis().live if self.record.basis else MultisetHash.of(self.commitments())
        digest = self.ledger.digest()
        hashing = None if self._hashing is None else self._hashing.submit(digest)
        try:
            self.find_head()
        finally:
            sums = digest() if hashing is None else hashing.result()
        return self.digests_of(Basis(sums, None, live))

    def solved_by_samples(self, before: Basis, live: MultisetHash) -> Digests:
        """The same after a change by samples that opened their commitments: the digest of the
        ledger is by those that are live, and no sum is read.
        """
        position = self.log.size if before.position is None else before.position
        return self.solved_as(Basis(before.sums, position, live))

    def solved_as(self, basis: Basis) -> Digests:
        """The head of the ledger in memory, and fresh digests on a basis that is known."""
        self.find_head()
        return self.digests_of(basis)

    def digests_of(self, basis: Basis) -> Digests:
        """Digests of the ledger and the head in memory, by a fresh salt."""
        salt = self.random(SALT_BYTES)
        if basis.position is None:
            ledger = salted("ledger", salt, basis.sums)
        else:
            ledger = binding(salt, basis.sums, basis.live, self.ledger.solver.count)
        head = salted("head", salt, self.head.digest) if self.head else ""
        return Digests(ledger, head, salt, basis)

    def keep_digests(self, digests: Digests) -> None:
        """Make these the current digests; the salt, and what they build on, are sealed under the
        generation's key, and so are erased with it.
        """
        record = self.record
        slot = self.ledger.slot_of(record.generation)
        self.storage.state.put(
            replace(
                record,
                ledger_digest=digests.ledger,
                head_digest=digests.head,
                salt=self.vault.seal(slot, digests.salt, b"salt"),
                binds=digests.binds,
                basis=self.vault.seal(slot, digests.basis.to_bytes(), b"basis"),
            )
        )

    def begin_generation(self, slot: int, digests: Digests) -> None:
        """From now on messages, and the salt of these digests, are sealed under the key in a new
        slot.
        """
        following = self.record.generation + 1
        self.storage.generations.begin(following, slot)
        self.storage.state.put(replace(self.record, generation=following))
        self.keep_digests(digests)

    def salt(self) -> bytes:
        """The salt of the current digests: for auditors, while it is current."""
        record = self.record
        return self.vault.unseal(self.ledger.slot_of(record.generation), record.salt, b"salt")

    def recover(self) -> None:
        """After anything unexpected: reload memory from the store."""
        self._sound = False
        self.storage.make_room()
        self.folder.mark_log()
        self.folder.adopt_key()
        self.ledger.spec = self._recorded_spec()
        self.ledger.discard()
        self.ledger.reload()
        self.find_head()
        self.settle_head()
        self._sound = True

    @contextmanager
    def mending(self) -> Iterator[None]:
        """On failure, reload memory from the store before anyone reads it."""
        with self.lock:
            try:
                yield
            except BaseException:
                self.ledger.has_remains = True  # keys that were made for what has not happened
                self.recover()
                raise

    def require_sound(self) -> None:
        """If the reload failed, retry it first."""
        if not self._sound:
            self.recover()

    def answer_of(self, actor: str, sequence: int) -> AnswerRecord | None:
        """What was answered under a number; not before the log that it speaks of is marked."""
        record = self.storage.answers.get(actor, sequence)
        if record is not None:
            with self.lock:
                self.folder.mark_log()
        return record

    # -- actors ------------------------------------------------------------------------------------

    def clients(self, *statuses: ClientStatus) -> list[str]:
        """The names of the clients with one of these statuses."""
        return [
            actor.name
            for actor in self.storage.actors.all()
            if actor.role == "client" and actor.status in statuses
        ]

    def silent(self, since: int) -> list[str]:
        """The names of the active clients that have not synced since a time."""
        return [
            actor.name
            for actor in self.storage.actors.all()
            if (actor.role, actor.status) == ("client", "active")
            and (actor.enrolled if actor.seen is None else actor.seen) < since
        ]

    def actor(self, name: str, *roles: Role) -> Actor:
        """An enrolled actor of one of these roles."""
        actor = self.storage.actors.get(name)
        if actor is None:
            raise RefusedError(
                "unknown-actor",
                f"nobody named {name!r:.80} is enrolled here: ask the operator for a token",
            )
        if roles and actor.role not in roles:
            raise RefusedError(
                "not-allowed",
                f"{name} is enrolled as {actor.role}; this is for {' and '.join(roles)}s",
            )
        return actor

    def require_federation(self, federation: str) -> None:
        """Refuse what is meant for another federation."""
        if federation != self.federation:
            raise RefusedError(
                "wrong-federation", f"this is federation {self.federation}, not {federation}"
            )

    def signing_client(self, name: str, signed: SignedHeader | Envelope) -> Actor:
        """The enrolled client of this name, if this is signed by the key that it enrolled."""
        actor = self.actor(name, "client")
        try:
            signed.verify(actor.public_key)
        except EvidenceError as problem:
            raise RefusedError(
                "bad-signature", f"this is not signed by the key that {name} enrolled"
            ) from problem
        return actor

    def close(self) -> None:
        """Release everything."""
        if self._hashing is not None:
            self._hashing.shutdown()
        self.folder.close()
