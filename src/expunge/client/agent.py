"""The agent: brings what is pending to the server, and what is new at the server to the store.

Laws: a request is offered, the very same bytes, until its receipt is in hand and verified, and only then settled. A refusal says
that this attempt changed nothing; the request is put back, so that the cause can be mended, only if no earlier attempt of it can
have taken effect either. The server is believed only as far as `Trust` goes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from expunge import canonical
from expunge.client import refusals
from expunge.client.answer import Answer, claims
from expunge.client.outbox import Composition
from expunge.client.samples import Progress, Recompute
from expunge.client.selection import Preview, Selection
from expunge.client.standing import checkpoint_text
from expunge.client.store import ClientStore
from expunge.client.synced import Synced
from expunge.client.trust import Trust
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
from expunge.protocol import request, speech
from expunge.protocol.carrier import Carrier
from expunge.protocol.request import AuditAnswer
from expunge.spec import Spec

_T = TypeVar("_T")

_HEADLESS = ("unsolvable", "not-found")
_MOST_MENDED = 4  # refusals that are mended without asking, one after another
_LARGEST = 64 << 20  # bytes of a request, whatever the server would take: memory is bounded on both sides
_LONGEST_PAUSE = 60.0


class Agent:
    """One client at work: its store, and a way to its server.

    `recompute` computes features again from sources, for stores that keep none. `sleep` pauses between attempts, which come after
    0.5, 1, 2, ... seconds; after `attempts` of them the error is passed on, and everything can be tried again later. `progress`
    hears how many samples an audit has gone through.
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
    ) -> None:
        self.store = store
        self._carrier = carrier
        self._trust = Trust(store, carrier)
        self._recompute = recompute
        self._sleep = sleep
        self._attempts = attempts
        self._progress = progress
        self._fewest: int | None = None  # the most samples that a request may have, once one was too large
        self._too_large: int | None = None  # bytes of the smallest request that was

    # -- bringing -------------------------------------------------------------------------------------------------------

    def push(self) -> list[Receipt]:
        """Bring everything that is pending to the server; the receipts, verified and settled."""
        self._require_enrolled()
        receipts: list[Receipt] = []
        mended = 0
        while True:
            composition = self.store.composed() or self._compose()
            if composition is None:
                return receipts
            try:
                receipts.append(self._bring(composition))
                mended = 0
            except RefusedError as refusal:
                mended += 1
                if mended > _MOST_MENDED or not self._mend(composition, refusal):
                    raise

    def _bring(self, composition: Composition) -> Receipt:
        """Offer one request until its receipt is here, and settle it. A refusal is passed on, with everything as it was."""
        data = self.store.encode(composition, recompute=self._recompute)
        answer = self._patiently(lambda: self._offer(composition.sequence, data))
        receipt = self._trust.receipt(answer, request.read(data))
        newest = self._patiently(lambda: self._trust.follow(receipt.checkpoint))
        self.store.settle(composition.sequence, answer, checkpoint=newest, entry=receipt.logged.index)
        return receipt

    def _offer(self, sequence: int, data: bytes) -> bytes:
        """Offer a request once. It is in doubt from before the first attempt, until that one, and no other, was refused."""
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
        """Deal with a refusal: whether there is a point in going on. What cannot be mended here stays as it is."""
        if refusal.code in (*refusals.KEPT, *refusals.PASSING):
            return False
        if self._may_have_taken_effect(composition, refusal):
            return refusal.code in refusals.BY_SPEC  # offered again, it is answered by its receipt
        self.store.abandon(composition.sequence, f"{refusal.code}: {refusal.reason}")
        if refusal.code == "too-large" and composition.added + composition.deleted > 1:
            self._fewest = (composition.added + composition.deleted) // 2
            return True
        if refusal.code == "must-rejoin":
            self._rejoin(self._ask())
            return True
        if refusal.code in (*refusals.BY_SPEC, "unknown-order"):
            answer = self._ask()
            self.store.drop_orders([one.order for one in answer.orders])
            made, due = (composition.spec.labels_digest, composition.kind), (self.store.spec.labels_digest, self.store.message)
            return refusal.code == "unknown-order" or made != due
        return refusal.code == "unknown-audit"

    def _may_have_taken_effect(self, composition: Composition, refusal: RefusedError) -> bool:
        """Whether an earlier attempt to offer a request may have succeeded, or yet succeed, though this one was refused."""
        outstanding = self.store.composed()
        if outstanding is None or not outstanding.doubtful or refusal.code in refusals.JUDGED:
            return False
        return refusal.code not in refusals.BY_SPEC or self._ask().sequence >= composition.sequence

    def _most(self) -> int:
        """How many samples a request may have so that its bytes stay within what the server takes."""
        spec = self.store.spec
        room = min(int(self.store.recall("largest_request") or _LARGEST), _LARGEST) // 2
        each = 64 + (8 * spec.dim + 8 * spec.columns if self.store.message == "rows" else 0)
        most = max(1, room // each)
        return most if self._fewest is None else min(most, self._fewest)

    def _largest(self) -> int:
        """How many bytes a request may have that cannot be divided."""
        known = int(self.store.recall("largest_request") or _LARGEST)
        return known if self._too_large is None else min(known, self._too_large - 1)

    def _compose(self) -> Composition | None:
        """The next request, if anything is pending; what is too large is measured by what the server takes now."""

        def compose() -> Composition | None:
            return self.store.compose(most=self._most(), largest=self._largest(), recompute=self._recompute)

        try:
            return compose()
        except ProtocolError:
            before = self._largest()
            limits = self._patiently(self._trust.federation)["limits"]
            self.store.remember({"largest_request": str(int(limits["largest_request"]))})
            if self._largest() <= before:
                raise
            return compose()

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

    # -- asking ---------------------------------------------------------------------------------------------------------

    def sync(self, *, accept_restored: bool = False) -> Synced:
        """Ask what is new, carry it out, bring what is pending, answer audits and fetch the newest head.

        `accept_restored` accepts that the log of a server that was restored from a backup has lost entries which this client has
        seen; what was seen is kept as evidence.
        """
        self._require_enrolled()
        before = self.store.spec
        answer = self._ask(accept_restored=accept_restored)
        if answer.status == "gone":
            self.store.release()
            return Synced("gone", orders=self._carry_out(answer)[0], amended=self.store.spec != before)
        self._require_in_step(answer)
        rejoined = answer.status == "must-rejoin"
        receipts = [self._rejoin(answer)] if rejoined else []
        orders, problem = self._carry_out(answer)
        receipts += self.push()
        audits = self._answer_audits(answer)
        head, is_new = self._fetch_head()
        if problem is not None:
            raise problem
        return Synced("active", tuple(receipts), orders, audits, self.store.spec != before, head, is_new, rejoined)

    def _ask(self, *, accept_restored: bool = False) -> Answer:
        """The server's answer, believed; spec, rotations and checkpoint are taken on."""
        store, nonce = self.store, secrets.token_hex(32)
        question = {
            "actor": store.name,
            "federation": store.federation,
            "nonce": nonce,
            "sequence": store.sequence,
            "size": store.checkpoint[0],
        }
        data = self._patiently(lambda: self._carrier.sync(speech.said("question", question, store.key)))
        answer = Answer.read(data)
        self._trust.learn(answer.rotations)
        self._trust.chain.verify(answer.envelope, claims)
        if (answer.federation, answer.actor, answer.nonce) != (store.federation, store.name, nonce):
            raise EvidenceError("the server answered another question than the one that was asked: its nonce or name differs")
        self._follow(answer, accept_restored=accept_restored)
        self._amend(answer)
        return answer

    def _follow(self, answer: Answer, *, accept_restored: bool) -> None:
        store, checkpoint = self.store, answer.checkpoint
        size, root = store.checkpoint
        try:
            if checkpoint.size < size:
                raise EvidenceError(f"the server's log has {checkpoint.size} entries, and had {size} before: entries are gone")
            newest = self._trust.follow(checkpoint, answer.consistency)
        except EvidenceError as problem:
            if answer.status != "must-rejoin":
                raise
            if not accept_restored:
                raise EvidenceError(
                    f"{problem}. The server says that it was restored from a backup; ask its operator whether that is so, then "
                    "accept it for this client (accept_restored=True). Receipts of what was lost stay valid evidence"
                ) from problem
            # Not the answer itself: it names the subjects of orders, and the head.
            signed = self._patiently(self._trust.checkpoint)
            store.keep("lost-log", canonical.encode({"root": root.hex(), "size": size}), signed)
            newest = checkpoint.size, checkpoint.root
        store.remember({"checkpoint": checkpoint_text(*newest)})

    def _amend(self, answer: Answer) -> None:
        """Take on the amendments that lead from this client's spec to the server's."""
        store = self.store
        if answer.spec == store.spec:
            return
        amendments = self._trust.amendments(answer.amendments)
        starts = [place for place, (_, content) in enumerate(amendments) if content["spec_before"] == store.spec.digest]
        spec = store.spec
        for _, content in amendments[starts[-1] :] if starts else ():
            after = Spec.from_dict(content["spec"])
            if content["spec_before"] != spec.digest:
                break
            spec = after
        if spec != answer.spec:
            raise EvidenceError("the server's spec is not this client's spec with signed amendments: it cannot be taken on")
        store.amend(spec, [data for data, _ in amendments[starts[-1] :]])
        if store.message not in spec.messages and "gram" in spec.messages:
            store.choose("gram")  # which shows the server no more than before

    def _require_in_step(self, answer: Answer) -> None:
        """A store that is an old copy must not go on: it would delete what is gone, and not know of what it has added."""
        if answer.status == "must-rejoin":
            if self.store.gone:  # restored to a time before it forgot this client, or before the client left
                self.store.remember({"gone": "", "left": ""})
            return
        if self.store.gone:
            raise EvidenceError(f"the server said that it knows {self.store.name} no longer, and now says that it does")
        store, outstanding = self.store, self.store.composed()
        known = store.sequence if outstanding is None else outstanding.sequence
        rejoining = outstanding is not None and outstanding.reset
        if answer.sequence > known or (store.recall("rejoin") == "1" and not rejoining):
            raise StoreError(
                f"the server has receipted {answer.sequence} requests of {store.name}, this store knows of {known}: it is an old "
                "copy, whose samples can be read, but which cannot go on. Put the newest copy back. If there is none: have the "
                f"operator forget this client (expunge server forget-client {store.name}), enrol a new one under another name, "
                "add the samples there again from where they came, and erase this copy (expunge client leave)"
            )
        if answer.sequence < store.sequence:
            raise EvidenceError(
                f"the server has forgotten requests that it receipted: it knows of {answer.sequence}, this client has receipts "
                f"up to {store.sequence}. Show the receipts to the operator"
            )

    def _rejoin(self, answer: Answer) -> Receipt:
        """Send everything that this client holds to a server that was restored without it.

        Such a server holds nothing of this client, whatever was applied before: what was on its way is taken back, but for a
        reset that may still arrive. If everything is too much for one request, the rest stays pending.
        """
        outstanding = self.store.composed()
        if outstanding is not None and (not outstanding.reset or outstanding.sequence <= answer.sequence):
            self.store.abandon(outstanding.sequence, "must-rejoin: the server was restored")
        number = max(self.store.sequence, answer.sequence) + 1
        mended = 0
        while True:
            composition = self.store.composed() or self.store.compose(
                reset=True, sequence=number, most=self._most(), largest=self._largest(), recompute=self._recompute
            )
            if composition is None:
                raise ProtocolError("a reset is a request, even of nothing")
            try:
                return self._bring(composition)
            except RefusedError as refusal:
                mended += 1
                if mended > _MOST_MENDED or not self._mend(composition, refusal):
                    raise

    # -- carrying out ---------------------------------------------------------------------------------------------------

    def _carry_out(self, answer: Answer) -> tuple[tuple[tuple[str, Preview], ...], ExpungeError | None]:
        """Erasure orders: forget, or note that nothing is held. One that cannot be carried out does not hold up the others."""
        self.store.drop_orders([one.order for one in answer.orders])
        done: list[tuple[str, Preview]] = []
        problem: ExpungeError | None = None
        for one in answer.orders:
            try:
                preview = self.store.forget(Selection(subject=one.subject), order=one.order, recompute=self._recompute)
            except (CommitmentError, InputError) as refused:  # a feature that cannot be computed again
                problem = problem or refused
            else:
                done.append((one.order, preview))
        return tuple(done), problem

    def _answer_audits(self, answer: Answer) -> tuple[str, ...]:
        """Recompute the statistics from the store, and say their salted digest for each audit."""
        if not answer.audits:
            return ()
        statistics = self.store.statistics(self._progress, recompute=self._recompute)
        answers = [
            AuditAnswer(audit, salted("audit", salt, statistics.digest), statistics.count) for audit, salt in answer.audits
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

    def _fetch_head(self) -> tuple[str, bool]:
        """The newest head: its digest, and whether it is new here."""
        known = self.store.recall("head") or ""
        try:
            data = self._patiently(lambda: self._carrier.head(known or None))
        except RefusedError as refusal:
            if refusal.code not in _HEADLESS:
                raise
            if known:
                self.store.drop_head()
            return "", False
        if data is None:
            return known, False
        after = int(self.store.recall("entry") or -1) if self.store.spec.publication == "immediately" else -1
        head, certificate = self._trust.head(data, after)
        if certificate.spec != self.store.spec:
            self._ask()
        if certificate.spec != self.store.spec:
            raise EvidenceError("the head is of another spec than the federation's: fetch it again")
        newest = self._patiently(lambda: self._trust.follow(certificate.checkpoint))
        self.store.put_head(data, head.digest)
        self.store.remember({"checkpoint": checkpoint_text(*newest)})
        return head.digest, True

    def _require_enrolled(self) -> None:
        if self.store.recall("enrolled") != "1":
            raise StoreError(f"the client in {self.store.path} was never enrolled: enrol it by its token first")
