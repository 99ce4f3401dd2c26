"""What a store of the server must do: its records, and the tables that hold them.

Law: a read returns what was written last, in this transaction or in those that are over. A table is
changed in a transaction only, and refuses to be changed outside one. What each table is trusted for
is noted beside it.

Nothing here can be read as a sample: statistics are in sealed files (`files`) or sealed records
(`journal`); subjects of orders and salts are sealed too; commitments are salted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from expunge.crypto import PublicKey
from expunge.kinds import AuditState, Bound, ChangeKind, ClientStatus, OrderState, Role, VoidReason


@dataclass(frozen=True)
class ServerRecord:
    """The server's identity and current state."""

    federation: str
    key: str  # id of the key that signs now
    spec: str  # canonical JSON of the current spec
    solver: str
    round: int  # number of the last round
    time: int  # the latest time stamped: times never go back
    generation: int  # of the journal, now being written
    salt: bytes  # of the current digests, sealed under the generation's key
    ledger_digest: str  # salted: the current one
    head_digest: str  # salted; empty if there is no head
    binds: Bound = "sums"  # what the ledger's digest is of
    # What the next digest that binds samples builds on, sealed under the generation's key; empty
    # where it is not known.
    basis: bytes = b""


@dataclass(frozen=True)
class Actor:
    """Who is enrolled: an operator, an officer or a client."""

    name: str
    role: Role
    key: str
    status: ClientStatus
    sequence: int  # of its last request or command
    enrolled: int
    token: str  # SHA-256 of the secret it enrolled with
    seen: int | None = None  # when it last synced
    # Of a client whose sum waits, when it spoke last in a round, joined one last, and since when it
    # has come for that again and again.
    spoke: int = 0
    joined: int = 0
    present: int = 0

    @property
    def public_key(self) -> PublicKey:
        """The key that it signs with."""
        return PublicKey.from_text(self.key)


@dataclass(frozen=True)
class EnrolmentToken:
    """A token that has been issued and not been used."""

    digest: str  # SHA-256 of the secret
    name: str
    role: Role
    expires: int


@dataclass(frozen=True)
class AnswerRecord:
    """What was answered, so that the same request again gets the same answer."""

    actor: str
    sequence: int
    request: str  # digest of the request; covers a nonce
    answer: bytes
    orders: int = 0  # how many that are not closed it is evidence of


@dataclass(frozen=True)
class JournalEntry:
    """A message that is not in the files yet, sealed under a key that is destroyed when it is."""

    generation: int
    client: str
    sequence: int
    kind: ChangeKind
    added: int
    deleted: int
    time: int
    sealed: bytes | None  # one of these two
    file: str | None


@dataclass(frozen=True)
class LedgerFile:
    """The ledger up to a position of the journal."""

    position: int
    slot: int
    file: str


@dataclass(frozen=True)
class ShareFile:
    """A client's share of the ledger up to its last fold."""

    client: str
    slot: int
    file: str
    account: bytes  # sealed


@dataclass(frozen=True)
class Erasure:
    """Where the log says that a generation of the journal, and those before it, was erased."""

    generation: int
    position: int  # negative where a restored server does not know


@dataclass(frozen=True)
class OrderRecord:
    """An erasure order; who the subject is stays sealed until the order is closed."""

    id: str
    filed: int
    deadline: int
    slot: int | None
    sealed: bytes | None
    reference: str = ""  # what officers call it in their own files; not personal
    completed: int | None = None
    closed: int | None = None
    position: int = -1  # where the log says that it was filed

    def state(self, now: int) -> OrderState:
        """One of open, overdue, complete, closed, and lost: a restored server no longer knows who
        the subject is.
        """
        if self.closed is not None:
            return "closed"
        if self.completed is not None:
            return "complete"
        if self.slot is None:
            return "lost"
        return "overdue" if now > self.deadline else "open"

    @property
    def is_subject_lost(self) -> bool:
        """Whether a restored server no longer knows who the subject is, although nobody closed the
        order.
        """
        return self.closed is None and self.slot is None


@dataclass(frozen=True)
class OrderReply:
    """What a client has answered to an order."""

    client: str
    found: int | None = None  # None: no answer yet
    sequence: int | None = None  # of the request that answered; None or 0 if it was forgotten
    time: int | None = None


@dataclass(frozen=True)
class Audit:
    """An audit, in progress until it is finished."""

    id: str
    started: int
    slot: int | None
    salt: bytes | None  # sealed
    finished: int | None = None
    result: AuditState | None = None
    position: int | None = None  # in the log, when finished


@dataclass(frozen=True)
class AuditReply:
    """What a client has answered to an audit."""

    client: str
    equal: bool | None = None  # None: no answer yet
    count: int | None = None


@dataclass(frozen=True)
class Membership:
    """A client's request in a round of secure aggregation that has been applied."""

    position: int  # of the round in the log
    spec: str  # canonical JSON of the spec of the round


@dataclass(frozen=True)
class Attempt:
    """A client's request in a round whose sum clients were asked to unmask."""

    aggregation: str
    client: str
    sequence: int
    # When it was first asked for, or fixed by an entry of the log, or one of it was first opened.
    since: int = 0
    accepted: int = 0  # 1 if by a verdict the sum may leave no head
    exposed: int = 0  # 1 if the part hid nobody when its client was asked
    # `since` never goes back, and this is by the clock, which may have been behind then. If it was
    # ahead, this is when that was seen first.
    clock: int = 0


@dataclass(frozen=True)
class DisputeRecord:
    """A false sum whose clients open their parts to the arbiter; its attempt has the same id."""

    aggregation: str
    reason: VoidReason
    slot: int  # of the key that seals the openings
    records: bytes  # canonical JSON: what clients signed to have sent


@dataclass(frozen=True)
class OpeningRecord:
    """A client's opening: sealed by the client for the arbiter, and here once more."""

    aggregation: str
    client: str
    sealed: bytes


class StateTable(Protocol):
    """Truth: one record."""

    def get(self) -> ServerRecord | None:
        """The state; None before the server is founded."""

    def put(self, state: ServerRecord) -> None:
        """Make this the state."""


class ActorTable(Protocol):
    """Truth: enrolled keys, and the last sequence number of each."""

    def get(self, name: str) -> Actor | None:
        """The actor of a name."""

    def with_key(self, key: str) -> Actor | None:
        """The actor that enrolled a key."""

    def all(self) -> list[Actor]:
        """Everybody, by name."""

    def after(self, name: str, limit: int) -> list[Actor]:
        """So many, by name, whose names come after this."""

    def count(self) -> int:
        """How many there are."""

    def put(self, *actors: Actor) -> None:
        """Enrol, or replace by name; a key that belongs to another is refused."""


class TokenTable(Protocol):
    """Truth: tokens that can be enrolled with."""

    def get(self, digest: str) -> EnrolmentToken | None:
        """The token of a secret with this digest."""

    def add(self, token: EnrolmentToken) -> None:
        """Issue a token."""

    def remove(self, digest: str) -> None:
        """Use a token up."""

    def of(self, name: str) -> list[EnrolmentToken]:
        """Those for a name."""

    def withdraw(self, name: str) -> None:
        """Remove those for a name."""


class AnswerTable(Protocol):
    """Truth: what was answered, as long as somebody may ask for it. Receipts are evidence."""

    def get(self, actor: str, sequence: int) -> AnswerRecord | None:
        """The answer to an actor's request of this number."""

    def add(self, *answers: AnswerRecord) -> None:
        """Keep answers; a second one to a number is refused."""

    def prune(self, actor: str, before: int) -> None:
        """Drop an actor's answers with lower numbers that are evidence of no order."""

    def release(self, actor: str, sequence: int) -> None:
        """An order that an answer is evidence of is closed."""


class CommitmentTable(Protocol):
    """Truth: which samples are retained, by salted commitments."""

    def present(self, client: str, commitments: Sequence[bytes]) -> set[bytes]:
        """Those of these that a client retains."""

    def count(self, client: str) -> int:
        """How many samples a client retains."""

    def of(self, client: str) -> list[bytes]:
        """All that a client retains, in ascending order."""

    def clients(self) -> list[str]:
        """Who retains samples, by name."""

    def add(self, client: str, commitments: Iterable[bytes]) -> None:
        """Retain samples; one that is retained already is refused."""

    def remove(self, client: str, commitments: Iterable[bytes]) -> None:
        """Retain them no longer."""

    def remove_all(self, client: str) -> None:
        """Retain nothing of a client."""


class Journal(Protocol):
    """Truth until folded: messages not yet in the files."""

    def get(self, position: int) -> JournalEntry | None:
        """The entry at a position."""

    def positions(
        self, client: str | None = None, *, after: int = 0, until: int | None = None
    ) -> list[int]:
        """Where there are entries, ascending: all or a client's, beyond and up to a position."""

    def last(self) -> int:
        """The position of the last entry there ever was, folded or not; 0 if there was none."""

    def count(self) -> int:
        """How many entries there are."""

    def oldest(self) -> int | None:
        """The earliest time of an entry."""

    def holds(self, generation: int) -> bool:
        """Whether there are entries of a generation."""

    def clients(self, until: int) -> list[str]:
        """Who has entries up to a position, by name."""

    def append(self, entry: JournalEntry) -> None:
        """Write an entry at the next position. No position is used twice."""

    def files(self, client: str, until: int) -> set[str]:
        """The files of a client's entries up to a position."""

    def remove(self, client: str, until: int) -> None:
        """Remove a client's entries up to a position."""


class FileTable(Protocol):
    """Truth: which sealed files count, and which slots of the vault hold keys that are needed."""

    def ledger(self) -> LedgerFile | None:
        """The file of the ledger."""

    def put_ledger(self, file: LedgerFile) -> None:
        """Make this the file of the ledger."""

    def share(self, client: str) -> ShareFile | None:
        """The file of a client's share."""

    def put_share(self, file: ShareFile) -> None:
        """Make this the file of its client's share."""

    def remove_share(self, client: str) -> None:
        """A client no longer has a share."""

    def names(self) -> set[str]:
        """Every file that is referred to, by the journal as well."""

    def slots(self) -> set[int]:
        """Every slot that is referred to: by files, generations, orders and audits."""


class GenerationTable(Protocol):
    """Truth: the slot of each generation's key; evidence: where erasures at rest were logged."""

    def slot(self, generation: int) -> int | None:
        """The slot of a generation's key; None once it was destroyed."""

    def begin(self, generation: int, slot: int) -> None:
        """A new generation."""

    def end(self, until: int) -> None:
        """No longer refer to the keys of generations up to this one."""

    def last_erasure(self) -> Erasure | None:
        """The one of the latest generation."""

    def erasure_of(self, generation: int) -> Erasure | None:
        """The first one that was of this generation or of a later one, and so of both."""

    def erased(self, erasure: Erasure) -> None:
        """Note an erasure; one of a generation that is noted already changes nothing."""


class LogTable(Protocol):
    """Evidence: the audit log and its complete subtrees. Append-only."""

    def size(self) -> int:
        """How many entries there are."""

    def entries(self, start: int, end: int) -> list[bytes]:
        """The entries from `start` up to, not including, `end`."""

    def node(self, level: int, index: int) -> bytes:
        """The hash of a complete subtree."""

    def search(self, values: Mapping[str, str | int]) -> list[int]:
        """The positions of the entries with these values at these paths (`summary.file`)."""

    def append(self, entry: bytes, nodes: Iterable[tuple[int, int, bytes]]) -> None:
        """Write the next entry, and the subtrees that it completes: level, index, hash."""

    def rewrite(self, entries: Mapping[int, bytes], nodes: Mapping[tuple[int, int], bytes]) -> None:
        """Put damaged entries, and subtrees by level and index, right."""


class DocumentTable(Protocol):
    """Evidence: envelopes in the order in which they were signed."""

    def all(self) -> list[bytes]:
        """The oldest first."""

    def add(self, envelope: bytes) -> None:
        """Keep one more."""


class OrderTable(Protocol):
    """Truth: erasure orders, and what was answered to them."""

    def get(self, order: str) -> OrderRecord | None:
        """The order of an id."""

    def all(self) -> list[OrderRecord]:
        """Every order, the oldest first."""

    def newest(
        self, limit: int, *, before: tuple[int, str] | None = None, overdue: int | None = None
    ) -> list[OrderRecord]:
        """So many, the newest first: those filed before one with this position and id; or only
        those that are lost, or overdue at a time.
        """

    def count(self, *, overdue: int | None = None) -> int:
        """How many there are; or how many of them are lost, or overdue at a time."""

    def counts(self, now: int) -> dict[OrderState, int]:
        """How many there are of each state."""

    def named(self, name: str) -> list[OrderRecord]:
        """Those whose reference is this, or whose id begins so, the oldest first."""

    def unanswered(
        self, client: str, *, after: int | None = None, limit: int | None = None
    ) -> list[OrderRecord]:
        """Those that wait for a client's answer, the oldest first; with `after` or `limit`, only
        those filed after a position of the log, so many, and none whose subject is lost.
        """

    def is_answered(self, order: str) -> bool:
        """Whether it waits for no client any more."""

    def add(self, order: OrderRecord, clients: Iterable[str]) -> None:
        """File an order that waits for these clients."""

    def put(self, order: OrderRecord) -> None:
        """Replace an order by its id."""

    def replies(self, order: str) -> list[OrderReply]:
        """By client, whether they have answered or not."""

    def reply_of(self, order: str, client: str) -> OrderReply | None:
        """Of one client; None if the order is not for it."""

    def reply(self, order: str, reply: OrderReply) -> None:
        """Replace what is known of a client's answer."""

    def entries(self, order: str) -> list[int]:
        """Where the log speaks of an order, ascending."""

    def mention(self, order: str, position: int) -> None:
        """Note that the log speaks of an order."""


class AuditTable(Protocol):
    """Truth: audits, and what was answered to them."""

    def get(self, audit: str) -> Audit | None:
        """The audit of an id."""

    def all(self) -> list[Audit]:
        """Every audit, the oldest first."""

    def running(self) -> list[Audit]:
        """Those that are not finished, the oldest first."""

    def unanswered(self, client: str) -> list[Audit]:
        """Those of them that wait for a client's answer."""

    def last(self) -> Audit | None:
        """The one that was logged last."""

    def put(self, audit: Audit) -> None:
        """Begin an audit, or replace it by its id."""

    def replies(self, audit: str) -> list[AuditReply]:
        """By client, whether they have answered or not."""

    def reply(self, audit: str, *replies: AuditReply) -> None:
        """Wait for clients' answers, or replace what is known of them."""

    def release(self, audit: str, client: str) -> None:
        """Stop waiting for a client, and forget what it answered."""


class RoundTable(Protocol):
    """Evidence: rounds of secure aggregation by their place in the log, and which requests each has
    applied. Truth: clients whose samples are in the ledger until the others have rebuilt it, whose
    sums were to be unmasked, and what clients opened for the arbiter.
    """

    def membership(self, client: str, sequence: int) -> Membership | None:
        """The round that has applied a client's request of this number."""

    def last(self) -> Membership | None:
        """The round that was applied last."""

    def apply(self, membership: Membership, members: Iterable[tuple[str, int]]) -> None:
        """A round has applied these requests, by client and number."""

    def rebuilds(self) -> list[str]:
        """The clients that are to be forgotten by a rebuild, by name."""

    def await_rebuild(self, client: str) -> None:
        """A client is to be forgotten by a rebuild."""

    def rebuilt(self) -> None:
        """Clear the list of clients to be forgotten."""

    def attempts(self) -> list[Attempt]:
        """Every attempt that is kept, the oldest first."""

    def attempt(self, attempts: Iterable[Attempt]) -> None:
        """Note whose sum is about to be unmasked."""

    def drop_attempts(self, aggregations: Collection[str]) -> None:
        """Keep the attempts of these rounds no longer, nor what is in dispute about them."""

    def set_back(self, clock: int) -> None:
        """Attempts were noted at this time by the clock, if their `clock` is a later one."""

    def disputes(self) -> list[DisputeRecord]:
        """Every dispute, the oldest first."""

    def dispute(self, record: DisputeRecord) -> None:
        """Begin a dispute about an attempt."""

    def opened(self, aggregation: str) -> list[str]:
        """Who has opened its part in a dispute, by name."""

    def opening(self, aggregation: str, client: str) -> OpeningRecord | None:
        """A client's opening in a dispute."""

    def open(self, record: OpeningRecord) -> None:
        """Keep an opening; a second one of a client is refused."""


class Storage(ABC):
    """All tables of a server, changed together.

    `hook` of an implementation is called by name around every commit.
    """

    state: StateTable
    actors: ActorTable
    tokens: TokenTable
    answers: AnswerTable
    commitments: CommitmentTable
    journal: Journal
    files: FileTable
    generations: GenerationTable
    log: LogTable
    amendments: DocumentTable
    rotations: DocumentTable
    orders: OrderTable
    audits: AuditTable
    rounds: RoundTable

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """Everything or nothing, durable when it is over, one at a time, not nested.

        What cannot be written is a StoreError.
        """

    @property
    @abstractmethod
    def is_certain(self) -> bool:
        """Whether, after a crash, there would be what there is now. If not, a transaction that
        failed may have taken effect all the same, and whatever it refers to must stay.
        """

    @abstractmethod
    def forget_overwritten(self) -> None:
        """When this returns, nothing that was removed or replaced can be read from the store."""

    @abstractmethod
    def make_room(self) -> None:
        """Free what the store can do without: the disk may be full."""

    @abstractmethod
    def write_backup(self, path: Path) -> None:
        """A consistent copy in a file, made while others continue, without what must be
        forgettable: files, journal, commitments, generations, tokens and the salt.
        """

    remedy = "Restore the server from a backup"  # for what is damaged

    def damage(self) -> list[str]:
        """What is wrong with the store's own files, as far as it can tell."""
        return []

    def rebuild_indexes(self) -> bool:
        """Make anew what only helps to find things; whether there is such a thing."""
        return False

    def explaining(self) -> AbstractContextManager[object]:
        """Whatever is raised within because the store is damaged is a StoreDamagedError."""
        return nullcontext()

    def snapshot(self) -> AbstractContextManager[Storage]:
        """The store as it is at this moment, to be read beside changes, which do not wait."""
        return nullcontext(self)

    @abstractmethod
    def close(self) -> None:
        """Close; what was committed stays."""

    def abandon(self) -> None:
        """Close, and leave every file as it was found, as far as that is possible."""
        self.close()
