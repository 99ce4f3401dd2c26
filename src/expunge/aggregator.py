"""An aggregator: a group's server, which is a client of the server above it.

Groups of groups work the same way.

Statistics add up, so the server above needs the group's sums and nothing of its clients. Clients
enrol at the aggregator, which applies, logs and receipts their requests; `sync` forwards what the
group has changed as one request, whose receipt names the group's log. With both, `passage` proves
to a client that its request is in the ledger at the root (expunge.evidence.forwarding_proof).
Within the group there may be secure aggregation: then the aggregator sees sums, and the server
above sums of sums.

`Forwarding` stores what was forwarded, and what is being forwarded: the group's ledger at a
position of the group's log. Law: what counts as forwarded is what the server above has receipted,
also after a crash at any point. Each state is sealed and its predecessor's key destroyed: the
difference of two of them is what the group has deleted.

`GroupAgent` is a client's agent that sends the group's ledger instead of samples, and passes orders
on to the group. `Forwarder` syncs in a thread of its own while the group is served.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

from expunge._lazy import public_dir
from expunge.client import Agent, ClientStore, Preview, SyncResult, enrol
from expunge.client.folder import ClientFolder
from expunge.client.outbox import Composition
from expunge.client.trust import SyncAnswer, Trust
from expunge.crypto import Envelope, canonical
from expunge.errors import EvidenceError, ExpungeError, RefusedError, StoreError
from expunge.evidence import Logged, Receipt
from expunge.evidence.forwarding_proof import passage_bytes
from expunge.evidence.log import read_entry
from expunge.federation import Federation
from expunge.federation.founding import found_federation
from expunge.federation.layout import Layout
from expunge.frame import Reader, pack
from expunge.kinds import MessageKind
from expunge.office import Office
from expunge.ridge.spec import Aggregation, Spec
from expunge.ridge.statistics import Statistics
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.storage.files import rename
from expunge.wire.carrier import Carrier
from expunge.wire.messages import GramPart, Message
from expunge.wire.request import OrderAnswer
from expunge.wire.schema import UNDISCLOSED
from expunge.wire.token import Token

__all__ = ["Aggregator", "Forwarder"]
__dir__ = public_dir(__name__)

_HEADER = "QQ"


@dataclass(frozen=True)
class Forwarded:
    """The group's ledger as a request brought it to the server above, and the size of the group's
    log at that time.
    """

    sequence: int
    size: int
    statistics: Statistics

    def to_bytes(self) -> bytes:
        """For the store."""
        return pack(_HEADER, self.sequence, self.size) + self.statistics.to_bytes()

    @classmethod
    def from_bytes(cls, spec: Spec, data: bytes | None) -> Forwarded:
        """The inverse of `to_bytes`; nothing was forwarded if there is nothing."""
        if data is None:
            return cls(0, 0, Statistics.zero(spec))
        reader = Reader(data, "what was forwarded", "rebuild the aggregator from its group")
        sequence, size = reader.fields(_HEADER, "its number and the size of the log")
        return cls(sequence, size, Statistics.from_bytes(spec, bytes(reader.rest())))


class Forwarding:
    """The two states in the store of an aggregator: what was forwarded, and what is being
    forwarded.
    """

    def __init__(self, store: ClientStore) -> None:
        self._store = store

    def settled(self) -> Forwarded:
        """What has been forwarded. What was on its way counts as soon as its receipt is here."""
        store = self._store
        data = store.forwarding.read()
        if data is not None:
            under_way = Forwarded.from_bytes(store.spec, data)
            if self.is_receipted(under_way.sequence):
                store.forwarded.write(data)
                store.forwarding.drop()
            elif store.outbox.composed() is None:  # it was abandoned, or never composed
                store.forwarding.drop()
        return Forwarded.from_bytes(store.spec, store.forwarded.read())

    def begin(self, state: Forwarded) -> None:
        """Note what is on its way with the request of this number."""
        self._store.forwarding.write(state.to_bytes())

    def is_receipted(self, sequence: int) -> bool:
        """Whether a group message of this number is: a number whose request was abandoned may have
        been used for another.
        """
        receipt = self._store.documents("receipt").get(sequence)
        if receipt is None:
            return False
        return bool(
            Envelope.from_bytes(receipt, "receipt").unverified()["entry"].get("message") == "group"
        )


_DAY = 86400


class GroupAgent(Agent):
    """An agent whose store has no samples: it represents all clients of a service, and acts there
    as an operator.
    """

    _has_group = True

    def __init__(
        self, store: ClientStore, carrier: Carrier, service: Service, office: Office, **options: Any
    ) -> None:
        super().__init__(store, carrier, **options)
        self._service = service
        self._office = office
        self._forwarding = Forwarding(store)
        # Where in the group's log nothing was added or deleted: a cache.
        self._unchanged = range(0)

    # -- what is forwarded -------------------------------------------------------------------------

    def _compose(self) -> Composition | None:
        """What the group has changed since the last request, with the orders that all of the group
        have answered. Changes that cancel out are forwarded, too: each has its passage.
        """
        before, (ledger, size, root) = self._forwarding.settled(), self._now()
        answers = self._answers()
        if ledger == before.statistics and not answers and not self._has_changed(before.size, size):
            return None
        return self._forward(
            before, Forwarded(self.store.sequence + 1, size, ledger), root, answers
        )

    def _compose_reset(self, number: int) -> Composition | None:
        """Forward everything again, for a server that was restored without it."""
        self.store.forwarded.drop()
        ledger, size, root = self._now()
        nothing = Forwarded(0, 0, Statistics.zero(self.store.spec))
        return self._forward(nothing, Forwarded(number, size, ledger), root, [], reset=True)

    def _forward(
        self,
        before: Forwarded,
        after: Forwarded,
        root: bytes,
        answers: list[OrderAnswer],
        *,
        reset: bool = False,
    ) -> Composition:
        added, deleted = self._counts(before, after)
        filed = self._filed()
        self._keep_filed(
            filed | {answer.order: (filed[answer.order][0], after.sequence) for answer in answers}
        )
        message = Message(
            "group", GramPart(after.statistics - before.statistics), log=(after.size, root)
        )
        self._forwarding.begin(after)
        self.store.remember({"forwarded-log": f"{after.size} {root.hex()}"})
        return self.store.outbox.compose_group(
            message.to_bytes(self.store.spec),
            added=added,
            deleted=deleted,
            orders=answers,
            sequence=after.sequence,
            reset=reset,
        )

    def _now(self) -> tuple[Statistics, int, bytes]:
        """The group's ledger under the spec of the server above, with size and root of the group's
        log: of one moment.
        """
        self._follow_spec()
        state = self._service.state
        with state.lock:
            checkpoint = state.checkpoint(state.now())
            return (
                state.ledger.exact_statistics().under(self.store.spec),
                checkpoint.size,
                checkpoint.root,
            )

    def _counts(self, before: Forwarded, after: Forwarded) -> tuple[int, int]:
        """How many samples the group added and deleted in between, as its log says.

        A restored group server has started over: everything forwarded before is deleted, and
        everything it has now is added.
        """
        added, deleted = self._logged(before.size, after.size)
        if added - deleted != after.statistics.count - before.statistics.count:
            return after.statistics.count, before.statistics.count
        return added, deleted

    def _logged(self, start: int, end: int) -> tuple[int, int]:
        """How many samples entries of the group's log add and delete."""
        added = deleted = 0
        while start < end:
            entries = self._service.entries(start, end)
            start += len(entries)
            for entry in map(read_entry, entries):
                if entry["kind"] in ("changed", "aggregated"):
                    added, deleted = added + entry["added"], deleted + entry["deleted"]
                elif entry["kind"] == "forgotten" and entry["count"] > 0:
                    deleted += entry["count"]
        return added, deleted

    def _has_changed(self, start: int, end: int) -> bool:
        """Whether anything was added or deleted there, or this is not the log of before; each entry
        is read once.
        """
        size, _, root = (self.store.recall("forwarded-log") or "").partition(" ")
        if size == str(start) and (
            start > end or self._service.state.log.root(start).hex() != root
        ):
            return True  # the group's server was restored from a backup
        seen = self._unchanged
        read_until = seen.stop if seen.start == start and seen.stop <= end else start
        if self._logged(read_until, end) != (0, 0):
            return True
        self._unchanged = range(start, end)
        return False

    def _statistics(self) -> Statistics:
        """What the server above has receipted; whether the group's clients hold it is for the
        group's own audit.
        """
        return self._forwarding.settled().statistics

    def _follow_spec(self) -> None:
        """Amend the group's spec as the server above has amended its own; messages are the group's
        own affair.
        """
        ours = self._service.state.spec
        due = replace(self.store.spec, messages=ours.messages, aggregation=ours.aggregation)
        if due == ours:
            return
        theirs, mine = due.to_dict(), ours.to_dict()
        self._office.do(
            "amend", {name: value for name, value in theirs.items() if mine[name] != value}
        )

    # -- orders ------------------------------------------------------------------------------------

    def _carry_out(
        self, answer: SyncAnswer
    ) -> tuple[tuple[tuple[str, Preview], ...], ExpungeError | None]:
        """File every order that is new in the group, whose clients learn of it at their next
        sync.
        """
        filed_before = self._filed()
        now = datetime.fromisoformat(answer.checkpoint.time)
        filed = {
            order.order: self._unanswered(*filed_before[order.order])
            for order in answer.orders
            if order.order in filed_before and self._is_known(filed_before[order.order][0])
        }
        self._keep_filed(filed)
        new = [order for order in answer.orders if order.order not in filed]
        for order in new:
            left = (datetime.fromisoformat(order.deadline) - now).total_seconds()
            days = min(max(1, math.ceil(left / _DAY)), 365)
            filed_order = self._office.do(
                "order", {"subject": order.subject, "subjects": {}, "days": days}
            )
            filed[order.order] = (filed_order["order"], 0)
            self._keep_filed(filed)
        return tuple((order.order, Preview()) for order in new), None

    def _is_known(self, own: str) -> bool:
        """Whether the group's server, which may have been restored from a backup, still knows an
        order and whom it is about.
        """
        try:
            return bool(self._office.ask("show-order", {"order": own})["state"] != "lost")
        except RefusedError as refusal:
            if refusal.code != "unknown-order":
                raise
            return False

    def _unanswered(self, own: str, sequence: int) -> tuple[str, int]:
        """An order of which the server above says that it waits: if it has receipted the answer, it
        was restored from a backup since, and needs the answer again.
        """
        return own, 0 if sequence and self._forwarding.is_receipted(sequence) else sequence

    def _filed(self) -> dict[str, tuple[str, int]]:
        """The orders of the server above: which order of the group each has become, and the request
        that answers it, or 0.
        """
        text = self.store.recall("orders")
        content: dict[str, list[Any]] = canonical.decode(text.encode("ascii")) if text else {}
        return {order: (str(own), int(sequence)) for order, (own, sequence) in content.items()}

    def _keep_filed(self, filed: dict[str, tuple[str, int]]) -> None:
        if filed != self._filed():
            content = {order: list(pair) for order, pair in filed.items()}
            self.store.remember({"orders": canonical.encode(content).decode("ascii")})

    def _answers(self) -> list[OrderAnswer]:
        """The orders that all clients of the group have answered, with what they found together."""
        answers = []
        for order, (own, sequence) in sorted(self._filed().items()):
            if sequence and self._forwarding.is_receipted(sequence):
                continue
            shown = self._office.ask("show-order", {"order": own})
            if shown["state"] in ("complete", "closed"):
                counts = [int(answer["found"]) for answer in shown["answers"]]
                answers.append(
                    OrderAnswer(order, UNDISCLOSED if UNDISCLOSED in counts else sum(counts))
                )
        return answers


_UPSTREAM = "upstream"
_OFFICE = "aggregator"


class Aggregator:
    """A group's server that is a client of the server above, whose head is bit for bit that of
    retraining on all samples of all groups.

    Use `found` once; later make an `Aggregator` of its folder, in a `with` statement or with
    `close`. What counts as forwarded is what the server above has receipted, also after a crash.

    Parameters
    ----------
    folder : Path
        The folder that `found` made.
    carrier : Carrier
        The way to the server above.
    settings : Settings or None, default None
        The choices of the group's operator; by default those of `Settings`.
    service : Service or None, default None
        The group's server, if this process has it open already, such as a `LocalCarrier`.
    **options
        As for `expunge.client.Agent`, which goes to the server above: `attempts`, `sleep`,
        `patience` and others.

    Attributes
    ----------
    group : Federation
        The group, with its clients; `group.token` lets another client in.
    upstream : ClientStore
        The aggregator's store as a client of the server above, with its receipts.

    Raises
    ------
    StoreError
        There is no aggregator in the folder, or it is damaged.
    StoreBusyError
        Another process has the folder open.

    See Also
    --------
    Forwarder : syncs an aggregator at regular intervals.

    Notes
    -----
    The folder is that of a federation, with two more in it: `upstream`, the aggregator's store as a
    client of the server above, and `aggregator`, the office by which it files orders and amends the
    spec in its group.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec, Statistics, solve
    >>> from expunge.aggregator import Aggregator
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), messages=("group",))
    >>> root = Federation.found(f"{folder.name}/root", spec)
    >>> region = Aggregator.found(Path(folder.name) / "north", root.token("north"), root.carrier)
    >>> features, labels = [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"]
    >>> receipts = region.group.client("clinic").add(["a", "b"], features, labels)
    >>> (receipt,) = region.sync().receipts
    >>> receipt.logged.entry["added"]
    2
    >>> root.published()[0] == solve(Statistics.of(spec, features, labels))
    True
    >>> region.close()
    >>> root.close()
    >>> folder.cleanup()
    """

    def __init__(
        self,
        folder: Path,
        carrier: Carrier,
        *,
        settings: Settings | None = None,
        service: Service | None = None,
        **options: Any,
    ) -> None:
        layout = Layout.at(folder)
        require_aggregator(layout.path)
        self.group = Federation(layout, settings, service=service, office=layout.path / _OFFICE)
        self._carrier = carrier
        try:
            self.upstream = ClientStore.open(layout.path / _UPSTREAM)
        except BaseException:
            self.group.close()
            raise
        self._trust = Trust(self.upstream, carrier)
        self._agent = GroupAgent(
            self.upstream, carrier, self.group.carrier, self.group.office, **options
        )

    @classmethod
    def found(
        cls,
        folder: Path,
        token: Token,
        carrier: Carrier,
        *,
        messages: tuple[MessageKind, ...] = ("gram", "rows"),
        aggregation: Aggregation | None = None,
        address: str = "",
        settings: Settings | None = None,
        **options: Any,
    ) -> Aggregator:
        """Found a group under the server above; after an interruption, the same call finishes it.

        Parameters
        ----------
        folder : Path
            The new folder of the group; its parent must exist.
        token : Token
            A client's token of the server above, whose spec must allow messages of kind "group".
        carrier : Carrier
            The way to the server above.
        messages : tuple of str, default ("gram", "rows")
            The kinds of messages that are allowed within the group. All else of the spec is that of
            the server above.
        aggregation : Aggregation or None, default None
            The rules of secure aggregation within the group, with messages=("masked",).
        address : str, default ""
            Where the server above is, to be remembered: a URL, or the folder of its federation.
        settings : Settings or None, default None
            The choices of the group's operator; by default those of `Settings`.
        **options
            Of the new federation: `hosts` (names in its certificate), `urls` (in its tokens),
            `mirrors` (files that keep copies of the log) and `solver`.

        Returns
        -------
        Aggregator
            Enrolled at the server above, and open.

        Raises
        ------
        SpecError
            There can be no such messages or rules.
        StoreError
            The folder is not empty.
        RefusedError, CarrierError
            The server above refused, or cannot be reached; the same call again continues.
        EvidenceError
            An answer is not signed by the server that the token names.
        """
        # refuses what cannot be, before anything is
        chosen = Spec(dim=1, outputs=1, messages=messages, aggregation=aggregation)
        draft = folder.absolute().with_name(folder.name + ".upstream")
        unfinished = draft.exists() and Layout.is_at(folder) and not is_aggregator(folder)
        if not unfinished and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError(f"{folder} is not empty: choose another folder for the group")
        with _enrolled(draft, token, carrier, address) as store:
            within = replace(store.spec, messages=chosen.messages, aggregation=chosen.aggregation)
        layout = Layout.at(folder) if unfinished else found_federation(folder, within, **options)
        if not (layout.path / _OFFICE / "office.json").exists():
            with Federation(
                layout
            ) as group:  # an office of its own: the operator's stays free while the group is served
                Office.enrol(
                    layout.path / _OFFICE, group.token("aggregator", "operator"), group.carrier
                ).close()
        rename(draft, layout.path / _UPSTREAM)
        return cls(folder, carrier, settings=settings)

    @property
    def name(self) -> str:
        """The name under which the aggregator is enrolled at the server above."""
        return self.upstream.name

    def sync(self, *, accept_restored: bool = False) -> SyncResult:
        """Forward what the group has changed, and bring down the orders, amendments, audits and
        head of the server above.

        Parameters
        ----------
        accept_restored : bool, default False
            Whether to accept that the log of the server above, which was restored from a backup,
            has lost entries which this aggregator has seen. What was seen is kept as evidence.

        Returns
        -------
        SyncResult
            The receipts of what was forwarded, and what has come down.

        Raises
        ------
        RefusedError, CarrierError
            The server above refused, or cannot be reached; nothing is lost, and the next sync
            continues.
        EvidenceError
            An answer of the server above does not verify.
        """
        return self._agent.sync(accept_restored=accept_restored)

    def sequences(self, client: str) -> range:
        """The numbers of the requests that a client of the group has made, the newest last.

        Parameters
        ----------
        client : str
            The client's name in the group.

        Returns
        -------
        range
            From 1 on; empty if it has made none.

        Raises
        ------
        RefusedError
            There is no such client.
        """
        return range(1, self.group.carrier.state.actor(client).sequence + 1)

    def passage(self, client: str, sequence: int) -> bytes:
        """Prove that a request of a client of the group is in the log of the server above.

        Parameters
        ----------
        client : str
            The client's name in the group.
        sequence : int
            The number of its request, as its receipt has it.

        Returns
        -------
        bytes
            The passage, which `expunge.evidence.verify` checks with the key of the server above.

        Raises
        ------
        StoreError
            There is no such request, or it has not been forwarded yet.
        EvidenceError
            The server above does not show what it has logged.
        CarrierError
            The server above cannot be reached.
        """
        index, entry = self._entry(client, sequence)
        strange = 0
        for number, data in sorted(self.upstream.documents("receipt").items()):
            receipt = Receipt.read(Envelope.from_bytes(data, "receipt"), self._trust.chain)
            if receipt.logged.entry.get("message") != "group":
                continue
            position = receipt.logged.index + 1
            checkpoint = Envelope.from_bytes(self._trust.checkpoint(), "checkpoint")
            size = checkpoint.unverified()["size"]
            # Of a log that either server has lost there may be receipts, too.
            shown = self._carrier.entries(position, position + 1) if position < size else []
            state: dict[str, Any] = read_entry(shown[0]) if shown else {"kind": ""}
            if state["kind"] != "forwarded" or state["sequence"] != number:
                strange = number
            elif state["size"] > index and self._is_of_our_log(state):
                forwarded = shown[0]
                within = Logged.of(entry, index, self.group.carrier.inclusion(index, state["size"]))
                above = Logged.of(forwarded, position, self._carrier.inclusion(position, size))
                return passage_bytes(client, sequence, within, above, checkpoint)
        if strange:
            raise EvidenceError(
                f"the server above does not show which log request {strange} of {self.name} was "
                "the state of; if it was restored from a backup, sync the aggregator first"
            )
        content = read_entry(entry)
        if not (content["added"] or content["deleted"]):
            raise StoreError(
                f"request {sequence} of {client} added and deleted nothing: its passage comes with "
                "the next change of the group that is forwarded"
            )
        raise StoreError(
            f"request {sequence} of {client} has not been forwarded yet: sync the aggregator first"
        )

    def _is_of_our_log(self, forwarded: dict[str, Any]) -> bool:
        """Whether an entry above is about the group's log as it is."""
        log = self.group.carrier.state.log
        size, root = forwarded["size"], bytes.fromhex(forwarded["root"])
        return bool(size <= log.size and log.root(size) == root)

    def _entry(self, client: str, sequence: int) -> tuple[int, bytes]:
        """The entry of a client's request in the group's log."""
        state = self.group.carrier.state
        membership = state.storage.rounds.membership(client, sequence)
        if membership is not None:
            return membership.position, state.log.entry(membership.position)
        request: dict[str, str | int] = {"kind": "changed", "client": client, "sequence": sequence}
        positions = state.storage.log.search(request)
        if not positions:
            raise StoreError(f"there is no request {sequence} of {client} in the log of this group")
        return positions[0], state.log.entry(positions[0])

    def close(self) -> None:
        """Close group and store, after erasing at rest what was deleted."""
        self.upstream.close()
        self.group.close()

    def __enter__(self) -> Aggregator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _enrolled(draft: Path, token: Token, carrier: Carrier, address: str) -> ClientStore:
    """The store of the aggregator as a client: enrolled now, or by an attempt that went no
    further.
    """
    if ClientFolder.is_at(draft):
        store = ClientStore.open(draft)
        if store.recall("enrolled") == "1" and (store.name, store.federation) == (
            token.name,
            token.federation,
        ):
            return store
        store.close()
    return enrol(draft, token, carrier, message="group", address=address)


def is_aggregator(path: Path) -> bool:
    """Whether the federation in a folder is a group of another."""
    return ClientFolder.is_at(path / _UPSTREAM)


def require_aggregator(path: Path) -> Path:
    """The folder of an aggregator's store as a client of the server above; refused where there is
    none.
    """
    if not is_aggregator(path):
        raise StoreError(
            f"{path} is a federation of its own, not a group: a group is founded with a token of "
            "the server above it (expunge aggregator found)"
        )
    return path / _UPSTREAM


def upstream_address(path: Path, *, timeout: float = 0.0) -> tuple[str, str]:
    """Where the server above the group in a folder is reached, and the authority of its
    certificate.
    """
    with ClientStore.open(require_aggregator(path), timeout=timeout) as store:
        if not store.address:
            raise StoreError(f"{path} does not know where the server above is: give --at URL")
        return store.address, store.ca


Report = Callable[[str, BaseException | None], None]


class Forwarder:
    """A thread that syncs an aggregator at regular intervals; a failure is reported, and retried
    the next time.

    Parameters
    ----------
    aggregator : Aggregator
        What is to be synced; do not close it before `stop`.
    every : float
        Seconds from the end of a sync to the next one.
    report : callable
        Called with a text and an exception or None, after each sync that forwarded something or
        failed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec
    >>> from expunge.aggregator import Aggregator, Forwarder
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), messages=("group",))
    >>> root = Federation.found(f"{folder.name}/root", spec)
    >>> region = Aggregator.found(Path(folder.name) / "north", root.token("north"), root.carrier)
    >>> receipts = region.group.client("clinic").add(["a"], [[1.0, 0.5]], ["cat"])
    >>> forwarder = Forwarder(region, every=30.0, report=lambda text, problem: print(text))
    >>> forwarder.start()
    >>> forwarder.stop()
    forwarded to the server above: 1 requests receipted
    >>> root.carrier.status()["samples"]
    1
    >>> region.close()
    >>> root.close()
    >>> folder.cleanup()
    """

    def __init__(self, aggregator: Aggregator, every: float, report: Report) -> None:
        self._aggregator = aggregator
        self._every = every
        self._report = report
        self._stop = Event()
        self._thread = Thread(target=self._run, name="forwarder", daemon=True)

    def start(self) -> None:
        """Start the thread, with a sync at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; a sync that has begun is finished first."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                done = self._aggregator.sync()
                if done.receipts:
                    self._report(
                        f"forwarded to the server above: {len(done.receipts)} requests receipted",
                        None,
                    )
            except (ExpungeError, OSError) as problem:
                self._report("what the group has changed could not be forwarded yet", problem)
            if self._stop.wait(self._every):
                return
