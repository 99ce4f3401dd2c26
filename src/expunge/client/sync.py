"""The agent: brings pending changes to the server, and news of the server to the store.

Laws: a request is offered, the very same bytes, until its receipt is in hand and verified, and only
then settled. A refusal says that this attempt changed nothing; the request is put back, so that the
cause can be corrected, only if no earlier attempt of it can have taken effect either. What the
server answers (spec, rotations, checkpoint) is taken over only as far as `Trust` goes; otherwise
the client's state is unchanged.

How a request is delivered is the federation's choice (`expunge.client.delivery`). `Updates` asks
the server what is new, and takes it over; `require_in_step` compares what store and server say of
each other's requests; `SyncResult` is what a sync has done.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from expunge.client.backlog import Backlog
from expunge.client.delivery import AbortedRoundError, Delivery, Direct, PendingError, Retry
from expunge.client.outbox import Composition
from expunge.client.samples import Preview, Progress, Recompute
from expunge.client.settings import checkpoint_text
from expunge.client.store import ClientStore
from expunge.client.trust import SyncAnswer, Trust, claims
from expunge.crypto import canonical
from expunge.errors import (
    CarrierError,
    CommitmentError,
    EvidenceError,
    ExpungeError,
    InputError,
    ProtocolError,
    RefusedError,
    SpecMismatchError,
    StoreError,
)
from expunge.evidence import Receipt
from expunge.evidence.certificate import Certificate
from expunge.kinds import ClientStatus
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.wire import payloads, refusals
from expunge.wire.carrier import Carrier, CheckedCarrier

_NONCE_BYTES = 32
_MOST_MENDED = 4  # consecutive refusals that are fixed automatically
_PAUSE = 0.1  # seconds between turns of clients that wait for one another


def require_in_step(store: ClientStore, answer: SyncAnswer) -> None:
    """A store that is an old copy must not continue: it would delete what is gone, and not know of
    what it has added.
    """
    if answer.status == "must-rejoin":
        if store.gone:  # restored to a time before it forgot this client, or before the client left
            store.remember({"gone": "", "left": ""})
        return
    if store.gone:
        raise EvidenceError(
            f"the server said that it knows {store.name} no longer, and now says that it does"
        )
    outstanding = store.outbox.composed()
    own_sequence = store.sequence if outstanding is None else outstanding.sequence
    rejoining = outstanding is not None and outstanding.reset
    is_outdated = store.recall("rejoin") == "1" and not (rejoining or store.is_resetting)
    if answer.sequence > own_sequence or is_outdated:
        raise StoreError(
            f"the server has receipted {answer.sequence} requests of {store.name}, this store "
            f"knows of {own_sequence}: it is {_old_copy(store)}"
        )
    if answer.sequence < store.sequence:
        raise EvidenceError(
            f"the server has forgotten requests that it receipted: it knows of {answer.sequence}, "
            f"this client has receipts up to {store.sequence}. Show the receipts to the operator"
        )


def _old_copy(store: ClientStore) -> str:
    """What an old copy is, and what can be done with it."""
    what = (
        "an old copy, whose samples can be read, but which cannot go on like this. Put the newest "
        "copy back. If there is none:"
    )
    anew = (
        f"have the operator forget this client (expunge server forget-client {store.name}), enrol "
        "a new one under another name, add the samples there again from where they came, and erase "
        "this copy (expunge client leave)"
    )
    if store.spec.is_masked or not store.spec.is_exact:
        return f"{what} {anew}"
    return (
        f"{what} let the server hold what this copy holds, and nothing else of this client "
        "(expunge client sync --reset): what was deleted since stays deleted, and what was added "
        f"since is to be added again. Or {anew}"
    )


@dataclass(frozen=True)
class SyncResult:
    """What a sync has done.

    Attributes
    ----------
    status : {"active", "barred", "gone"}
        `"gone"` if the server no longer knows the client; `"barred"` if by the arbiter's verdict it
        takes part in no round of secure aggregation; `"active"` otherwise.
    receipts : tuple of Receipt
        The receipts of what was pending, verified and settled.
    orders : tuple of (str, Preview)
        The erasure orders carried out, with what each found.
    audits : tuple of str
        The ids of the audits answered.
    amended : bool
        Whether an amended spec was taken over.
    head : str
        The digest of the newest head; empty if there is none.
    new_head : bool
        Whether this sync fetched it.
    rejoined : bool
        Whether the server was restored from a backup, and got everything again.
    waiting : str
        What a round of secure aggregation waits for; empty if nothing.
    backlog : Backlog or None
        What is pending and waits for more samples (`Spec.fewest_samples`); None if nothing does.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> client = federation.client("north")
    >>> receipts = client.add(["a"], [[1.0, 0.5]], ["cat"], subjects=["ann"])
    >>> order = federation.order("ann")
    >>> synced = client.sync()
    >>> [(found.count, number == order) for number, found in synced.orders]
    [(1, True)]
    >>> len(synced.receipts), synced.new_head
    (1, True)
    >>> federation.close()
    >>> folder.cleanup()
    """

    status: ClientStatus
    receipts: tuple[Receipt, ...] = ()
    orders: tuple[tuple[str, Preview], ...] = ()
    audits: tuple[str, ...] = ()
    amended: bool = False
    head: str = ""
    new_head: bool = False
    rejoined: bool = False
    waiting: str = ""
    backlog: Backlog | None = None

    def followed_by(self, later: SyncResult) -> SyncResult:
        """Combine this result with that of a later sync.

        Parameters
        ----------
        later : SyncResult
            The later result.

        Returns
        -------
        SyncResult
            What both have done, and the state after the second.
        """
        return replace(
            later,
            receipts=self.receipts + later.receipts,
            orders=self.orders + later.orders,
            audits=self.audits + later.audits,
            amended=self.amended or later.amended,
            new_head=self.new_head or later.new_head,
            rejoined=self.rejoined or later.rejoined,
        )


def sync_all(
    syncs: Mapping[str, Callable[[], SyncResult]], go_on: Callable[[bool], bool]
) -> dict[str, SyncResult]:
    """Sync each client, repeatedly while rounds of secure aggregation continue: a round is complete
    only when its clients have taken turns.

    Law: if no client has to wait, each syncs once.

    Parameters
    ----------
    syncs : mapping
        The clients by name, each as a function that syncs it.
    go_on : callable
        Called with whether the last turn changed anything; may pause, and returns whether another
        turn is worth trying.

    Returns
    -------
    dict
        What each has done, and what it still waits for, if for anything.
    """
    done = {name: sync() for name, sync in syncs.items()}
    changed = True
    while any(synced.waiting for synced in done.values()) and go_on(changed):
        results = {name: sync() for name, sync in syncs.items()}
        changed = any(
            synced.receipts or synced.audits or synced.waiting != done[name].waiting
            for name, synced in results.items()
        )
        done = {name: done[name].followed_by(synced) for name, synced in results.items()}
    return done


def patience(
    still: float = 8.0,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[bool], bool]:
    """For `sync_all`: continue until nothing has changed for `still` seconds, which is more than a
    round gathers for; then it waits for clients that are not present.
    """
    changed_at = clock()

    def go_on(changed: bool) -> bool:
        nonlocal changed_at
        if changed:
            changed_at = clock()
        elif clock() - changed_at >= still:
            return False
        else:
            sleep(_PAUSE)
        return True

    return go_on


@dataclass(frozen=True)
class Updates:
    """News of one client's server: asked for, verified, taken over."""

    store: ClientStore
    carrier: Carrier
    trust: Trust
    nonce: Callable[[], str]
    retry: Retry
    whole: bool = True  # whether to ask for all orders, which may take several questions

    def fetch(self, *, accept_restored: bool = False) -> SyncAnswer:
        """The server's answer, believed; spec, rotations and checkpoint are taken on."""
        seen = self.store.checkpoint
        answer = self._ask(seen[0])
        with self.store.outbox.turn:
            self._follow(answer, seen, accept_restored=accept_restored)
        self._amend(answer)
        orders, page = list(answer.orders), answer.orders
        while self.whole and len(page) == payloads.ORDERS_AT_ONCE:
            page = self._ask(seen[0], after=page[-1].order).orders
            orders += page
        return replace(answer, orders=tuple(orders))

    def _ask(self, size: int, after: str = "") -> SyncAnswer:
        """The server's answer, verified; `after` an order, for those that come after it."""
        store, nonce = self.store, self.nonce()
        question = {
            "actor": store.name,
            "federation": store.federation,
            "nonce": nonce,
            "sequence": store.sequence,
            "size": size,
        } | ({"after": after} if after else {})
        data = self.retry(lambda: self.carrier.sync(payloads.sign("question", question, store.key)))
        answer = SyncAnswer.read(data)
        self.trust.learn(answer.rotations)
        self.trust.chain.verify(answer.envelope, claims)
        if (answer.federation, answer.actor, answer.nonce) != (store.federation, store.name, nonce):
            raise EvidenceError(
                "the server answered another question than the one that was asked: its nonce or "
                "name differs"
            )
        return answer

    def _follow(
        self, answer: SyncAnswer, seen: tuple[int, bytes], *, accept_restored: bool
    ) -> None:
        """`seen` is the last checkpoint from before the question."""
        store, checkpoint = self.store, answer.checkpoint
        size, root = seen
        try:
            if checkpoint.size < size:
                raise EvidenceError(
                    f"the server's log has {checkpoint.size} entries, and had {size} before: "
                    "entries are gone"
                )
            newest = self.trust.follow(checkpoint, answer.consistency, seen)
        except EvidenceError as problem:
            if answer.status not in ("must-rejoin", "gone"):  # or forgotten, after the restore
                raise
            if not accept_restored:
                raise EvidenceError(
                    f"{problem}. The server says that it was restored from a backup; ask its "
                    "operator whether that is so, then accept it for this client "
                    "(accept_restored=True). Receipts of what was lost stay valid evidence"
                ) from problem
            # Not the answer itself: it names the subjects of orders, and the head.
            signed = self.retry(self.trust.checkpoint)
            store.keep("lost-log", canonical.encode({"root": root.hex(), "size": size}), signed)
            store.remember({"entry": "-1"})  # this client's last request is not in that log
            newest = checkpoint.size, checkpoint.root
        store.remember({"checkpoint": checkpoint_text(*newest)})

    def _amend(self, answer: SyncAnswer) -> None:
        """Take on the amendments that lead from this client's spec to the server's."""
        store = self.store
        if answer.spec == store.spec:
            return
        amendments = self.trust.amendments(answer.amendments)
        starts = [
            index
            for index, (_, content) in enumerate(amendments)
            if content["spec_before"] == store.spec.digest
        ]
        spec = store.spec
        for _, content in amendments[starts[-1] :] if starts else ():
            after = Spec.from_dict(content["spec"])
            if content["spec_before"] != spec.digest:
                break
            spec = after
        if spec != answer.spec:
            raise EvidenceError(
                "the server's spec is not this client's spec with signed amendments: it cannot be "
                "taken on. If the server was restored from a backup made before an amendment, its "
                "operator must make the same amendment again; then sync"
            )
        try:
            store.amend(spec, [data for data, _ in amendments[starts[-1] :]])
        except SpecMismatchError as problem:
            raise EvidenceError(
                "the server asks for what no operator may amend; this client's spec stays: "
                f"{problem}"
            ) from problem
        if store.message not in spec.messages and "gram" in spec.messages:
            store.choose("gram")  # which shows the server no more than before


class Agent:
    """Brings the pending changes of a client's store to its server, and orders, audits, amendments
    and heads to the store.

    Everything can be interrupted and tried again: the same request is offered until its receipt is
    here, and it is applied once.

    Parameters
    ----------
    store : ClientStore
        The store of an enrolled client.
    carrier : Carrier
        The way to the server.
    recompute : callable or None, default None
        Takes a list of sources and returns their features; for stores that keep none.
    sleep : callable, default time.sleep
        Called with the seconds to wait between attempts: 0.5, 1, 2, ..., 60.
    attempts : int, default 6
        How often to try what gets no answer, or a refusal that asks for a later attempt; then the
        error is raised.
    progress : callable or None, default None
        Called with the number of samples that an audit has gone through.
    nonce : callable or None, default None
        Returns the nonce of the next question, 64 hexadecimal digits; None for random ones.
    announced : bool, default False
        Whether request and question have travelled together, as `announce` sends them.
    patience : float, default 0.0
        Seconds to wait for the other clients of a round of secure aggregation before
        `SyncResult.waiting` says so.
    clock : callable, default time.monotonic
        Returns the seconds of a clock for durations.
    wall_clock : callable, default time.time
        Returns the time in seconds since 1970. By it, deletions that wait for more samples are due,
        and where rounds of secure aggregation are on a schedule, this client joins them, whatever
        the server says.

    Attributes
    ----------
    store : ClientStore
        The client's store.

    Notes
    -----
    Every answer is verified against the server's pinned key, and every checkpoint must continue the
    last one that this client saw. The server can still show other clients another log, until
    somebody compares checkpoints.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec
    >>> from expunge.client import Agent
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> store = federation.client("north").store
    >>> store.add(["a", "b"], [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"], now=0.0)
    2
    >>> agent = Agent(store, federation.carrier)
    >>> synced = agent.sync()
    >>> [receipt.logged.entry["added"] for receipt in synced.receipts]
    [2]
    >>> synced.head == federation.published()[0].digest
    True
    >>> agent.push()  # nothing is pending
    []
    >>> federation.close()
    >>> folder.cleanup()
    """

    _has_group = False  # whether it answers for all clients of a group

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        *,
        recompute: Recompute | None = None,
        sleep: Callable[[float], None] = time.sleep,
        attempts: int = 6,
        progress: Progress | None = None,
        nonce: Callable[[], str] | None = None,
        announced: bool = False,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._wall_clock = wall_clock
        self._carrier = CheckedCarrier(carrier)
        self._trust = Trust(store, self._carrier)
        self._retry = Retry(attempts, sleep)
        self._recompute = recompute
        self._progress = progress
        self._announced = announced
        self._updates = Updates(
            store,
            self._carrier,
            self._trust,
            nonce or (lambda: store.machine.random(_NONCE_BYTES).hex()),
            self._retry,
            whole=not announced,
        )
        self._delivery = self._chosen_delivery(patience, clock)
        self._waiting = ""  # what a round of secure aggregation waits for
        self._no_room: list[RefusedError] = []  # why additions wait
        self._answer: SyncAnswer | None = None  # that this sync began with

    def _chosen_delivery(self, patience: float, clock: Callable[[], float]) -> Delivery:
        """As the spec says, which never changes in this."""
        direct = Direct(
            self.store,
            self._carrier,
            self._trust,
            self._retry,
            self._recompute,
            wall_clock=self._wall_clock,
        )
        if not self.store.spec.is_masked:
            return direct
        from expunge.client.contributor import Contributor  # noqa: PLC0415 - as the next line
        from expunge.client.secagg import Masked  # noqa: PLC0415 - for masked federations only

        rounds = Contributor(
            self.store,
            self._carrier,
            self._trust,
            retry=self._retry,
            patience=patience,
            clock=clock,
            now=self._wall_clock,
        )
        return Masked(direct, self.store, rounds, self._recompute, self._wall_clock)

    # -- bringing ----------------------------------------------------------------------------------

    def push(self, *, at_once: bool = False) -> list[Receipt]:
        """Bring everything that is pending to the server, unless it waits for more samples.

        Parameters
        ----------
        at_once : bool, default False
            Whether to send what is pending even if it is of fewer samples than the spec's
            `fewest_samples`: their sum can reveal them to the server.

        Returns
        -------
        list of Receipt
            The receipts, verified and settled. The list may be empty although something is pending:
            under secure aggregation, call again, or `sync`, until its round is complete;
            `ClientStore.backlog` says what waits for more samples. It is empty where rounds are on
            a schedule: there everything waits for `sync`, by which clients with and without changes
            do the same at the same time.

        Raises
        ------
        RefusedError
            The server refused a request for a reason that cannot be corrected here.
        CarrierError
            No answer came after all attempts: call again later.
        EvidenceError
            A receipt is not the server's, or not for this request.
        StoreError
            The client was never enrolled.
        """
        self._require_enrolled()
        if at_once:
            self.store.outbox.expedite(self._wall_clock())
        return [] if self.store.spec.is_scheduled else self._pushed()

    def _pushed(self) -> list[Receipt]:
        receipts: list[Receipt] = []
        mended = 0
        self._delivery.hold_additions(hold=False)
        self._no_room.clear()
        try:
            while composition := self._delivery.outstanding(self._compose):
                receipt = self._send(composition, mend=mended < _MOST_MENDED)
                mended = mended + 1 if receipt is None else 0
                receipts += [] if receipt is None or composition.is_cover else [receipt]
        except PendingError as pending:
            self._waiting = str(pending)
        if self._no_room and not receipts:
            raise self._no_room[0]
        return receipts

    def _take_turns(
        self, answer: SyncAnswer, *, covers: bool
    ) -> tuple[list[Receipt], tuple[str, ...], ExpungeError | None]:
        """Bring what is pending, and answer audits; first the one that this client is in. When that
        has ended, changes have their turn at once: the server keeps it for a phase, and the next
        sync may come later. An audit that cannot be answered here, and why, keeps nothing waiting.
        """
        receipts, rejoining = list[Receipt](), self._waiting
        is_first = self._delivery.audits_first()
        if not (is_first or rejoining):
            receipts += self._brought(covers=covers)
        changes, self._waiting = self._waiting, ""
        problem: ExpungeError | None = None
        try:
            audits, is_aborted = self._answer_audits(answer)
        except (CommitmentError, InputError) as uncomputable:
            audits, is_aborted, problem = (), False, uncomputable
        is_over = is_aborted or (is_first and not self._waiting)
        if is_over and not rejoining:
            audit, self._waiting = self._waiting, ""
            receipts += self._brought(covers=covers and not receipts)
            changes, self._waiting = self._waiting, audit
        self._waiting = "; ".join(filter(None, (changes, self._waiting)))
        return receipts, audits, problem

    def _brought(self, *, covers: bool) -> list[Receipt]:
        """Bring what is pending, or cover for others if nothing is."""
        receipts = self._pushed()
        if covers and not (self._waiting or receipts):
            self._cover()
        return receipts

    def _cover(self) -> None:
        """Take part in what others have begun, if nothing of this client's was delivered."""
        if self.store.recall("left") == "1":
            return
        try:
            self._delivery.cover()
        except PendingError as pending:
            self._waiting = str(pending)

    def _send(self, composition: Composition, *, mend: bool = True) -> Receipt | None:
        """Deliver a request; None if it was refused and the cause has been fixed: continue."""
        try:
            return self._delivery.deliver(composition)
        except RefusedError as refusal:
            if not mend or not self._mend(composition, refusal):
                if refusal.code == "sequence-reused":
                    refusal.add_note(
                        "If this store was put back from a backup, or is in use in two places, it "
                        f"is {_old_copy(self.store)}"
                    )
                raise
            return None

    def _mend(self, composition: Composition, refusal: RefusedError) -> bool:
        """Handle a refusal; returns whether a retry can succeed.

        What cannot be fixed here stays as it is.
        """
        if refusal.code in (
            *refusals.KEPT,
            *refusals.PASSING,
        ) or not self._delivery.may_mend(composition, refusal):
            return False
        if self._may_have_taken_effect(composition, refusal):
            return refusal.code in refusals.BY_SPEC  # offered again, it is answered by its receipt
        self._delivery.take_back(composition, f"{refusal.code}: {refusal.reason}")
        if refusal.code in ("no-room", "too-large"):
            return self._lighten(composition, refusal)
        if refusal.code == "must-rejoin":
            self._rejoin(self._updates.fetch())
            return True
        if refusal.code in (*refusals.BY_SPEC, "unknown-order"):
            answer = self._updates.fetch()
            self.store.drop_orders([order.order for order in answer.orders])
            made, due = (
                (composition.spec.labels_digest, composition.kind),
                (self.store.spec.labels_digest, self.store.message),
            )
            return refusal.code == "unknown-order" or made != due
        return refusal.code == "unknown-audit"

    def _lighten(self, composition: Composition, refusal: RefusedError) -> bool:
        """Whether the next request is of less: deletions do not wait for room."""
        if refusal.code == "too-large":
            return self._delivery.divide(composition)
        self._no_room.append(refusal)
        return self._delivery.hold_additions(hold=True)

    def _may_have_taken_effect(self, composition: Composition, refusal: RefusedError) -> bool:
        """Whether an earlier attempt to offer a request may have succeeded, or yet succeed, though
        this one was refused.
        """
        outstanding = self.store.outbox.composed()
        if outstanding is None or not outstanding.doubtful or refusal.code in refusals.JUDGED:
            return False
        if refusal.code not in refusals.BY_SPEC:
            return True
        announcement = self._answer if self._announced else None
        answer = self._updates.fetch() if announcement is None else announcement
        return answer.sequence >= composition.sequence

    def _compose(self) -> Composition | None:
        """The next request, if anything is pending."""
        return self._delivery.compose()

    def _compose_reset(self, number: int) -> Composition | None:
        """A request under this number that replaces all that the server holds."""
        return self._delivery.compose_reset(number)

    def _statistics(self) -> Statistics:
        """What the server counts of this client, recomputed."""
        return self.store.statistics(self._progress, recompute=self._recompute)

    # -- asking ------------------------------------------------------------------------------------

    def sync(
        self, *, accept_restored: bool = False, at_once: bool = False, reset: bool = False
    ) -> SyncResult:
        """Ask the server what is new, carry out orders, bring what is pending, answer audits, and
        fetch the newest head.

        Parameters
        ----------
        accept_restored : bool, default False
            Whether to accept that the log of a server that was restored from a backup has lost
            entries which this client has seen. What was seen is kept as evidence.
        at_once : bool, default False
            Whether to send what is pending even if it is of fewer samples than the spec's
            `fewest_samples`: their sum can reveal them to the server.
        reset : bool, default False
            Whether to replace all that the server holds of this client by what is here and stays:
            what cannot be deleted by itself, because its feature cannot be computed again or is
            not known here any more, is then left out. Every feature that is not kept is computed
            again.

        Returns
        -------
        SyncResult
            What was done.

        Raises
        ------
        RefusedError
            The server refused a request for a reason that cannot be corrected here.
        CarrierError
            No answer came after all attempts: call again later.
        EvidenceError
            An answer is not the server's, its log does not continue the one that this client saw,
            or its spec is not this client's with signed amendments.
        StoreError
            The client was never enrolled, or the store is an old copy.
        CommitmentError, InputError
            A feature could not be computed again; everything else has been done.
        """
        with self.store.outbox.turn:  # several callers take turns
            return self._synced(accept_restored, at_once, reset)

    def _synced(self, accept_restored: bool, at_once: bool, reset: bool) -> SyncResult:
        self._require_enrolled()
        before = self.store.spec
        answer = self._answer = self._updates.fetch(accept_restored=accept_restored)
        if answer.status == "gone":
            self._delivery.release()
            self.store.outbox.release()
            return SyncResult(
                "gone", orders=self._carry_out(answer)[0], amended=self.store.spec != before
            )
        if answer.status == "must-rejoin" and self.store.gone:
            self._delivery.readmit()
        if reset and answer.status != "must-rejoin":  # which resets anyway
            self._begin_reset(answer)
        require_in_step(self.store, answer)
        rejoined = answer.status == "must-rejoin"
        self._waiting = ""
        receipts = self._rejoined(answer) if rejoined else []
        orders, problem = self._carry_out(answer)
        self.store.outbox.cap(self._wall_clock())
        if at_once:  # also if a round comes first
            self.store.outbox.expedite(self._wall_clock())
        brought, audits, uncomputable = self._take_turns(answer, covers=not rejoined)
        receipts += brought
        problem = problem or uncomputable
        head, is_new = self._fetch_head()
        if problem is not None:
            raise problem
        return SyncResult(
            "barred" if answer.status == "barred" else "active",
            tuple(receipts),
            orders,
            audits,
            self.store.spec != before,
            head,
            is_new,
            rejoined,
            waiting=self._waiting,
            backlog=self.store.backlog(now=self._wall_clock()),
        )

    def _begin_reset(self, answer: SyncAnswer) -> None:
        """Note that the next request is a reset. A store that is an old copy continues with the
        number that the server is at: what it had on its way is long over.
        """
        outstanding = self.store.outbox.composed()
        if outstanding is not None and outstanding.sequence < answer.sequence:
            self._delivery.take_back(outstanding, "the server has receipted later requests")
            outstanding = None
        self.store.reset(
            self.store.sequence if outstanding else answer.sequence,
            recompute=self._recompute,
            departing=[order.subject for order in answer.orders],
        )

    def check(self) -> None:
        """Ask the server what is new, and verify its answer; nothing is carried out or sent.

        Raises
        ------
        CarrierError, EvidenceError, RefusedError, StoreError
            As `sync`.
        """
        self._require_enrolled()
        with self.store.outbox.turn:
            answer = self._updates.fetch()
            if answer.status != "gone":
                require_in_step(self.store, answer)

    def announce(self) -> None:
        """Offer what is pending and ask what is new, without waiting; for carriers that bring
        answers when an agent is next run.

        The request goes first, so the answer tells whether it took effect. What cannot be offered
        is left to `sync`, which asks first. A store that is an old copy offers nothing before it
        has asked.

        Raises
        ------
        StoreError
            The client was never enrolled.
        """
        self._require_enrolled()
        if self.store.recall("rejoin") != "1":
            with suppress(ExpungeError):
                composition = self._delivery.outstanding(self._compose)
                if composition is not None:
                    self._delivery.deliver(composition)
                elif self.store.spec.is_scheduled:
                    self._cover()  # so that those with and without changes do the same
        with suppress(CarrierError):
            self._updates.fetch()

    def _rejoined(self, answer: SyncAnswer) -> list[Receipt]:
        try:
            return [self._rejoin(answer)]
        except PendingError as pending:
            self._waiting = str(pending)
            return []

    def _rejoin(self, answer: SyncAnswer) -> Receipt:
        """Send everything that this client holds to a server that was restored without it.

        Such a server holds nothing of this client, whatever was applied before: what was on its way
        is taken back, but for a reset that may still arrive. If everything is too much for one
        request, the rest stays pending.
        """
        outbox = self.store.outbox
        outstanding = outbox.composed()
        if outstanding is not None and (
            not outstanding.reset
            or outstanding.sequence <= answer.sequence
            or self._delivery.is_outdated(outstanding)
            or self._delivery.is_superseded(outstanding)
        ):
            self._delivery.take_back(outstanding, "must-rejoin: the server was restored")
        number = self._delivery.restart(max(self.store.sequence, answer.sequence) + 1)
        mended = 0
        while True:
            composition = outbox.composed() or self._compose_reset(number)
            if composition is None:
                raise ProtocolError("a reset is a request, even of nothing")
            receipt = self._send(composition, mend=mended < _MOST_MENDED)
            if receipt is not None:
                return receipt
            mended += 1

    # -- carrying out ------------------------------------------------------------------------------

    def _carry_out(
        self, answer: SyncAnswer
    ) -> tuple[tuple[tuple[str, Preview], ...], ExpungeError | None]:
        """Erasure orders: forget, or note that nothing is held."""
        self.store.drop_orders([order.order for order in answer.orders])
        now = int(self._wall_clock())
        orders = [(order.order, order.subject, order.due(now)) for order in answer.orders]
        done, problem = self.store.carry_out(orders, recompute=self._recompute)
        return tuple(done.items()), problem

    def _answer_audits(self, answer: SyncAnswer) -> tuple[tuple[str, ...], bool]:
        """Recompute the statistics from the store for each audit that the server asks for; which
        were answered, and whether that came to nothing.
        """
        try:
            return self._delivery.answer_audits(answer, self._statistics, self._send), False
        except PendingError as pending:
            self._waiting = str(pending)
            return (), isinstance(pending, AbortedRoundError)

    def _fetch_head(self) -> tuple[str, bool]:
        """The newest head: its digest, and whether it is new here."""
        stored_digest = self.store.recall("head") or ""
        immediate = self.store.spec.publication == "immediately"
        after = self.store.number("entry", -1) if immediate else -1

        def fetch() -> tuple[bytes, Head, Certificate] | None:
            data = self._carrier.head(stored_digest or None)
            return None if data is None else (data, *self._trust.head(data, after))

        try:
            fetched = self._retry(fetch)
        except RefusedError as refusal:
            if refusal.code not in refusals.HEADLESS:
                raise
            if stored_digest:
                self.store.drop_head()
            return "", False
        if fetched is None:
            return stored_digest, False
        data, head, certificate = fetched
        if certificate.spec != self.store.spec:
            self._updates.fetch()
        if certificate.spec != self.store.spec:
            raise EvidenceError("the head is of another spec than the federation's: fetch it again")
        newest = self._retry(lambda: self._trust.follow(certificate.checkpoint))
        self.store.put_head(data, head.digest)
        self.store.remember({"checkpoint": checkpoint_text(*newest)})
        return head.digest, True

    def _require_enrolled(self) -> None:
        if self.store.recall("enrolled") != "1":
            raise StoreError(
                f"the client in {self.store.path} was never enrolled: enrol it by its token first"
            )
        if self.store.message == "group" and not self._has_group:
            raise ProtocolError(
                f"{self.store.path} is the store of an aggregator, which has to ask its group: "
                f"expunge aggregator sync {shlex.quote(str(self.store.path.parent))}"
            )
