"""The agent: brings what is pending to the server, and what is new at the server to the store.

Laws: a request is offered, the very same bytes, until its receipt is in hand and verified, and only
then settled. A refusal says that this attempt changed nothing; the request is put back, so that the
cause can be mended, only if no earlier attempt of it can have taken effect either. What the server
answers (spec, rotations, checkpoint) is taken on only as far as `Trust` goes; otherwise the client
stays where it stood.

`Asking` is a client's question to the server, and what it believes of the answer;
`require_in_step` compares what store and server say of each other's requests; `Synced` is what a
sync has done.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from expunge.client.outbox import Composition
from expunge.client.samples import Preview, Progress, Recompute, Selection
from expunge.client.secagg import Contributor, Masking, Waits
from expunge.client.settings import checkpoint_text
from expunge.client.store import ClientStore
from expunge.client.sync_answer import Answer, claims
from expunge.client.trust import Trust
from expunge.crypto import canonical
from expunge.errors import (
    CarrierError,
    CommitmentError,
    EvidenceError,
    ExpungeError,
    InputError,
    ProtocolError,
    RefusedError,
    StoreError,
)
from expunge.evidence import Receipt, salted
from expunge.evidence.certificate import Certificate
from expunge.ridge.head import Head
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.wire import payloads, refusals, request
from expunge.wire.carrier import Carrier
from expunge.wire.delivery import CheckedCarrier
from expunge.wire.request import AuditAnswer


def require_in_step(store: ClientStore, answer: Answer) -> None:
    """A store that is an old copy must not go on: it would delete what is gone, and not know of
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
    outstanding = store.composed()
    known = store.sequence if outstanding is None else outstanding.sequence
    rejoining = outstanding is not None and outstanding.reset
    if answer.sequence > known or (store.recall("rejoin") == "1" and not rejoining):
        raise StoreError(
            f"the server has receipted {answer.sequence} requests of {store.name}, this store "
            f"knows of {known}: it is an old copy, whose samples can be read, but which cannot go "
            "on. Put the newest copy back. If there is none: have the operator forget this client "
            f"(expunge server forget-client {store.name}), enrol a new one under another name, add "
            "the samples there again from where they came, and erase this copy (expunge client "
            "leave)"
        )
    if answer.sequence < store.sequence:
        raise EvidenceError(
            f"the server has forgotten requests that it receipted: it knows of {answer.sequence}, "
            f"this client has receipts up to {store.sequence}. Show the receipts to the operator"
        )


@dataclass(frozen=True)
class Synced:
    """What a sync has done. `orders` are the erasure orders carried out, with what each found.

    `waiting` says what a round of secure aggregation waits for, if this client is in one or could
    not bring its changes by one.
    """

    status: str
    receipts: tuple[Receipt, ...] = ()
    orders: tuple[tuple[str, Preview], ...] = ()
    audits: tuple[str, ...] = ()
    amended: bool = False
    head: str = ""
    new_head: bool = False
    rejoined: bool = False
    waiting: str = ""

    def followed_by(self, later: Synced) -> Synced:
        """What both have done, and how things stand after the second."""
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
    syncs: Mapping[str, Callable[[], Synced]], go_on: Callable[[bool], bool]
) -> dict[str, Synced]:
    """Sync each client, again and again while rounds of secure aggregation go on: a round is
    complete only when its clients have taken turns.

    Law: where nobody has to wait, each syncs once.

    Parameters
    ----------
    syncs : mapping
        The clients by name, each as a function that syncs it.
    go_on : callable
        Told whether the last turn changed anything, it may pause, and says whether another turn
        is worth trying.

    Returns
    -------
    dict
        What each has done, and what it still waits for, if for anything.
    """
    done = {name: sync() for name, sync in syncs.items()}
    changed = True
    while any(synced.waiting for synced in done.values()) and go_on(changed):
        again = {name: sync() for name, sync in syncs.items()}
        changed = any(
            synced.receipts or synced.audits or synced.waiting != done[name].waiting
            for name, synced in again.items()
        )
        done = {name: done[name].followed_by(synced) for name, synced in again.items()}
    return done


def patience(
    still: float = 8.0,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[bool], bool]:
    """For `sync_all`: go on until nothing has changed for `still` seconds, which is more than a
    round gathers for; then it waits for clients that are not at hand.
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


class Asking:
    """The questions of one client. `patiently` does something again while no answer comes."""

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        trust: Trust,
        nonce: Callable[[], str],
        patiently: Callable[[Callable[[], bytes]], bytes],
    ) -> None:
        self._store = store
        self._carrier = carrier
        self._trust = trust
        self._nonce = nonce
        self._patiently = patiently

    def ask(self, *, accept_restored: bool = False) -> Answer:
        """The server's answer, believed; spec, rotations and checkpoint are taken on."""
        store, nonce = self._store, self._nonce()
        question = {
            "actor": store.name,
            "federation": store.federation,
            "nonce": nonce,
            "sequence": store.sequence,
            "size": store.checkpoint[0],
        }
        data = self._patiently(
            lambda: self._carrier.sync(payloads.sign("question", question, store.key))
        )
        answer = Answer.read(data)
        self._trust.learn(answer.rotations)
        self._trust.chain.verify(answer.envelope, claims)
        if (answer.federation, answer.actor, answer.nonce) != (store.federation, store.name, nonce):
            raise EvidenceError(
                "the server answered another question than the one that was asked: its nonce or "
                "name differs"
            )
        self._follow(answer, accept_restored=accept_restored)
        self._amend(answer)
        return answer

    def _follow(self, answer: Answer, *, accept_restored: bool) -> None:
        store, checkpoint = self._store, answer.checkpoint
        size, root = store.checkpoint
        try:
            if checkpoint.size < size:
                raise EvidenceError(
                    f"the server's log has {checkpoint.size} entries, and had {size} before: "
                    "entries are gone"
                )
            newest = self._trust.follow(checkpoint, answer.consistency)
        except EvidenceError as problem:
            if answer.status != "must-rejoin":
                raise
            if not accept_restored:
                raise EvidenceError(
                    f"{problem}. The server says that it was restored from a backup; ask its "
                    "operator whether that is so, then accept it for this client "
                    "(accept_restored=True). Receipts of what was lost stay valid evidence"
                ) from problem
            # Not the answer itself: it names the subjects of orders, and the head.
            signed = self._patiently(self._trust.checkpoint)
            store.keep("lost-log", canonical.encode({"root": root.hex(), "size": size}), signed)
            store.remember({"entry": "-1"})  # this client's last request is not in that log
            newest = checkpoint.size, checkpoint.root
        store.remember({"checkpoint": checkpoint_text(*newest)})

    def _amend(self, answer: Answer) -> None:
        """Take on the amendments that lead from this client's spec to the server's."""
        store = self._store
        if answer.spec == store.spec:
            return
        amendments = self._trust.amendments(answer.amendments)
        starts = [
            place
            for place, (_, content) in enumerate(amendments)
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
                "taken on"
            )
        store.amend(spec, [data for data, _ in amendments[starts[-1] :]])
        if store.message not in spec.messages and "gram" in spec.messages:
            store.choose("gram")  # which shows the server no more than before


_T = TypeVar("_T")

_HEADLESS = ("unsolvable", "not-found")
_MOST_MENDED = 4  # refusals that are mended without asking, one after another
_LARGEST = (
    64 << 20
)  # bytes of a request, whatever the server would take: memory is bounded on both sides
_LONGEST_PAUSE = 60.0
_PAUSE = 0.1  # seconds between turns of clients that wait for one another


class Agent:
    """One client at work: its store, and a way to its server.

    `recompute` computes features again from sources, for stores that keep none. `sleep` pauses
    between attempts, which come after 0.5, 1, 2, ... seconds; after `attempts` of them the error is
    passed on, and everything can be tried again later. `progress` hears how many samples an audit
    has gone through. `nonce` draws the nonce of each question: 64 hexadecimal digits, fresh once
    the question has been answered. `announced` says that request and question have travelled
    together, as `announce` sends them. `patience` is how many seconds to wait for the other clients
    of a round of secure aggregation before saying that it waits.
    """

    def __init__(
        self,
        store: ClientStore,
        carrier: Carrier,
        *,
        recompute: Recompute | None = None,
        sleep: Callable[[float], None] = time.sleep,
        attempts: int = 6,
        progress: Progress | None = None,
        nonce: Callable[[], str] = lambda: secrets.token_hex(32),
        announced: bool = False,
        patience: float = 0.0,
    ) -> None:
        self.store = store
        self._carrier = carrier = CheckedCarrier(carrier)
        self._trust = Trust(store, carrier)
        self._recompute = recompute
        self._sleep = sleep
        self._attempts = attempts
        self._progress = progress
        self._asking = Asking(store, carrier, self._trust, nonce, self._patiently)
        self._announced = announced
        rounds = Contributor(
            store, carrier, self._trust, patiently=self._patiently, patience=patience, sleep=sleep
        )
        self._masking = Masking(store, rounds)
        self._waiting = ""  # what a round of secure aggregation waits for
        self._heard: Answer | None = None  # the answer that this sync began with
        self._fewest: int | None = (
            None  # the most samples that a request may have, once one was too large
        )
        self._too_large: int | None = None  # bytes of the smallest request that was

    # -- bringing ----------------------------------------------------------------------------------

    def push(self) -> list[Receipt]:
        """Bring everything that is pending to the server; the receipts, verified and settled."""
        self._require_enrolled()
        receipts: list[Receipt] = []
        mended = 0
        while True:
            composition = self._masking.outstanding(self._compose)
            if composition is None:
                return receipts
            try:
                receipts.append(self._bring(composition))
                mended = 0
            except Waits as pending:
                self._waiting = str(pending)
                return receipts
            except RefusedError as refusal:
                mended += 1
                if mended > _MOST_MENDED or not self._mend(composition, refusal):
                    raise

    def _bring(self, composition: Composition) -> Receipt:
        """Offer one request until its receipt is here, and settle it.

        A refusal is passed on, with everything as it was.
        """
        if composition.kind == "masked" and composition.added + composition.deleted:
            return self._masking.bring(composition, self._recompute)
        data = self.store.encode(composition, recompute=self._recompute)
        answer = self._patiently(lambda: self._offer(composition.sequence, data))
        receipt = self._trust.receipt(answer, request.read(data))
        newest = self._patiently(lambda: self._trust.follow(receipt.checkpoint))
        self.store.settle(
            composition.sequence, answer, checkpoint=newest, entry=receipt.logged.index
        )
        return receipt

    def _offer(self, sequence: int, data: bytes) -> bytes:
        """Offer a request once.

        It is in doubt from before the first attempt, until that one, and no other, was refused.
        """
        doubtful = self.store.doubt(sequence)
        try:
            return self._carrier.request(data)
        except RefusedError as refusal:
            if not doubtful and refusal.code != "storage":
                self.store.doubt(sequence, False)
            if refusal.code == "too-large":
                self._too_large = min(len(data), self._too_large or len(data))
            raise

    def _mend(self, composition: Composition, refusal: RefusedError) -> bool:
        """Deal with a refusal: whether there is a point in going on.

        What cannot be mended here stays as it is.
        """
        by_round = composition.kind == "masked" and composition.added + composition.deleted > 0
        if refusal.code in (*refusals.KEPT, *refusals.PASSING) or (
            by_round and refusal.code != "must-rejoin"
        ):
            return False
        if self._may_have_taken_effect(composition, refusal):
            return refusal.code in refusals.BY_SPEC  # offered again, it is answered by its receipt
        self.store.abandon(composition.sequence, f"{refusal.code}: {refusal.reason}")
        if refusal.code == "too-large" and composition.added + composition.deleted > 1:
            self._fewest = (composition.added + composition.deleted) // 2
            return True
        if refusal.code == "must-rejoin":
            self._rejoin(self._asking.ask())
            return True
        if refusal.code in (*refusals.BY_SPEC, "unknown-order"):
            answer = self._asking.ask()
            self.store.drop_orders([one.order for one in answer.orders])
            made, due = (
                (composition.spec.labels_digest, composition.kind),
                (self.store.spec.labels_digest, self.store.message),
            )
            return refusal.code == "unknown-order" or made != due
        return refusal.code == "unknown-audit"

    def _may_have_taken_effect(self, composition: Composition, refusal: RefusedError) -> bool:
        """Whether an earlier attempt to offer a request may have succeeded, or yet succeed, though
        this one was refused.
        """
        outstanding = self.store.composed()
        if outstanding is None or not outstanding.doubtful or refusal.code in refusals.JUDGED:
            return False
        if refusal.code not in refusals.BY_SPEC:
            return True
        answer = self._heard if self._announced and self._heard is not None else self._asking.ask()
        return answer.sequence >= composition.sequence

    def _most(self) -> int:
        """How many samples a request may have so that its bytes stay within what the server
        takes.
        """
        spec = self.store.spec
        if spec.is_masked:
            return 1 << 40  # a sum is as large for any number of samples
        room = min(int(self.store.recall("largest_request") or _LARGEST), _LARGEST) // 2
        each = 64 + (8 * spec.dim + 8 * spec.columns if self.store.message == "rows" else 0)
        most = max(1, room // each)
        return most if self._fewest is None else min(most, self._fewest)

    def _largest(self) -> int:
        """How many bytes a request may have that cannot be divided."""
        known = int(self.store.recall("largest_request") or _LARGEST)
        return known if self._too_large is None else min(known, self._too_large - 1)

    def _compose(self) -> Composition | None:
        """The next request, if anything is pending; what is too large is measured by what the
        server takes now.
        """

        def compose() -> Composition | None:
            return self.store.compose(
                most=self._most(), largest=self._largest(), recompute=self._recompute
            )

        try:
            return compose()
        except ProtocolError:
            before = self._largest()
            limits = self._patiently(self._trust.federation)["limits"]
            self.store.remember({"largest_request": str(int(limits["largest_request"]))})
            if self._largest() <= before:
                raise
            return compose()

    def _compose_reset(self, number: int) -> Composition | None:
        """A request under this number that replaces all that the server holds."""
        return self.store.compose(
            reset=True,
            sequence=number,
            most=self._most(),
            largest=self._largest(),
            recompute=self._recompute,
        )

    def _statistics(self) -> Statistics:
        """What the server counts of this client, recomputed."""
        return self.store.statistics(self._progress, recompute=self._recompute)

    def _patiently(self, act: Callable[[], _T]) -> _T:
        """Do something again while no answer comes, or while the server asks for patience."""
        pause = 0.5
        for _ in range(self._attempts - 1):
            try:
                return act()
            except CarrierError:
                pass
            except RefusedError as refusal:
                if refusal.code not in refusals.PASSING:
                    raise
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return act()

    # -- asking ------------------------------------------------------------------------------------

    def sync(self, *, accept_restored: bool = False) -> Synced:
        """Ask what is new, carry it out, bring what is pending, answer audits and fetch the newest
        head.

        `accept_restored` accepts that the log of a server that was restored from a backup has lost
        entries which this client has seen; what was seen is kept as evidence.
        """
        self._require_enrolled()
        before = self.store.spec
        answer = self._heard = self._asking.ask(accept_restored=accept_restored)
        if answer.status == "gone":
            self.store.release()
            self.store.participation.drop()
            return Synced(
                "gone", orders=self._carry_out(answer)[0], amended=self.store.spec != before
            )
        require_in_step(self.store, answer)
        rejoined = answer.status == "must-rejoin"
        self._waiting = ""
        receipts = self._rejoined(answer) if rejoined else []
        orders, problem = self._carry_out(answer)
        first = self._masking.is_in_round_of_all()
        audits = self._join_in(answer) if first else ()
        if not self._waiting:
            receipts += self.push()
        audits = audits if first else self._answer_audits(answer)
        head, is_new = self._fetch_head()
        if problem is not None:
            raise problem
        return Synced(
            "active",
            tuple(receipts),
            orders,
            audits,
            self.store.spec != before,
            head,
            is_new,
            rejoined,
            waiting=self._waiting,
        )

    def announce(self) -> None:
        """Offer what is pending and ask, without waiting: for carriers that bring answers when an
        agent is next run.

        The request goes first, so the answer tells whether it took effect. What cannot be offered
        is left to `sync`, which asks first, and so may mend the cause, or says what is wrong. A
        store that is an old copy offers nothing before it has asked.
        """
        self._require_enrolled()
        if self.store.recall("rejoin") != "1":
            with suppress(ExpungeError):
                composition = self._masking.outstanding(self._compose)
                if composition is not None:
                    self._bring(composition)
        with suppress(CarrierError):
            self._asking.ask()

    def _rejoined(self, answer: Answer) -> list[Receipt]:
        try:
            return [self._rejoin(answer)]
        except Waits as pending:
            self._waiting = str(pending)
            return []

    def _rejoin(self, answer: Answer) -> Receipt:
        """Send everything that this client holds to a server that was restored without it.

        Such a server holds nothing of this client, whatever was applied before: what was on its way
        is taken back, but for a reset that may still arrive. If everything is too much for one
        request, the rest stays pending.
        """
        outstanding = self.store.composed()
        if outstanding is not None and (
            not outstanding.reset
            or outstanding.sequence <= answer.sequence
            or self._masking.is_outdated(outstanding)
        ):
            self.store.abandon(outstanding.sequence, "must-rejoin: the server was restored")
        number = self._masking.begin_anew(max(self.store.sequence, answer.sequence) + 1)
        mended = 0
        while True:
            composition = self.store.composed() or self._compose_reset(number)
            if composition is None:
                raise ProtocolError("a reset is a request, even of nothing")
            try:
                return self._bring(composition)
            except RefusedError as refusal:
                mended += 1
                if mended > _MOST_MENDED or not self._mend(composition, refusal):
                    raise

    # -- carrying out ------------------------------------------------------------------------------

    def _carry_out(
        self, answer: Answer
    ) -> tuple[tuple[tuple[str, Preview], ...], ExpungeError | None]:
        """Erasure orders: forget, or note that nothing is held.

        One that cannot be carried out does not hold up the others.
        """
        self.store.drop_orders([one.order for one in answer.orders])
        done: list[tuple[str, Preview]] = []
        problem: ExpungeError | None = None
        for one in answer.orders:
            try:
                preview = self.store.forget(
                    Selection(subject=one.subject), order=one.order, recompute=self._recompute
                )
            except (
                CommitmentError,
                InputError,
            ) as refused:  # a feature that cannot be computed again
                problem = problem or refused
            else:
                done.append((one.order, preview))
        return tuple(done), problem

    def _answer_audits(self, answer: Answer) -> tuple[str, ...]:
        """Recompute the statistics from the store, and say their salted digest for each audit."""
        if self.store.spec.is_masked:
            return self._join_in(answer)
        if not answer.audits:
            return ()
        statistics = self._statistics()
        answers = [
            AuditAnswer(audit, salted("audit", salt, statistics.digest), statistics.count)
            for audit, salt in answer.audits
        ]
        done = []
        for one in answers:
            composition = self.store.compose(audits=[one])
            if composition is None:
                raise ProtocolError("an answer to an audit is a request, even of nothing")
            try:
                self._bring(composition)
                done.append(one.audit)
            except RefusedError as refusal:
                if not self._mend(composition, refusal):
                    raise
                if self.store.composed() is not None:
                    break  # it has taken effect: its receipt comes first, next time
        return tuple(done)

    def _join_in(self, answer: Answer) -> tuple[str, ...]:
        """In a masked federation: take part in the round that rebuilds or audits the ledger, if one
        is wanted.
        """
        audits, waiting = self._masking.join_in(answer, self._statistics)
        self._waiting = waiting or self._waiting
        return audits

    def _fetch_head(self) -> tuple[str, bool]:
        """The newest head: its digest, and whether it is new here."""
        known = self.store.recall("head") or ""
        immediate = self.store.spec.publication == "immediately"
        after = int(self.store.recall("entry") or -1) if immediate else -1

        def fetch() -> tuple[bytes, Head, Certificate] | None:
            data = self._carrier.head(known or None)
            return None if data is None else (data, *self._trust.head(data, after))

        try:
            fetched = self._patiently(fetch)
        except RefusedError as refusal:
            if refusal.code not in _HEADLESS:
                raise
            if known:
                self.store.drop_head()
            return "", False
        if fetched is None:
            return known, False
        data, head, certificate = fetched
        if certificate.spec != self.store.spec:
            self._asking.ask()
        if certificate.spec != self.store.spec:
            raise EvidenceError("the head is of another spec than the federation's: fetch it again")
        newest = self._patiently(lambda: self._trust.follow(certificate.checkpoint))
        self.store.put_head(data, head.digest)
        self.store.remember({"checkpoint": checkpoint_text(*newest)})
        return head.digest, True

    def _require_enrolled(self) -> None:
        if self.store.recall("enrolled") != "1":
            raise StoreError(
                f"the client in {self.store.path} was never enrolled: enrol it by its token first"
            )
