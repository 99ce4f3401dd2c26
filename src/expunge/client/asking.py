"""Asking: a client's question to the server, and what it believes of the answer.

Law: what the answer brings (spec, rotations, checkpoint) is taken on only as far as `Trust` goes; otherwise the client stays
where it stood.
"""

from __future__ import annotations

from collections.abc import Callable

from expunge import canonical
from expunge.client.answer import Answer, claims
from expunge.client.standing import checkpoint_text
from expunge.client.store import ClientStore
from expunge.client.trust import Trust
from expunge.errors import EvidenceError
from expunge.protocol import speech
from expunge.protocol.carrier import Carrier
from expunge.spec import Spec


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
        store, checkpoint = self._store, answer.checkpoint
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
            store.remember({"entry": "-1"})  # this client's last request is not in that log
            newest = checkpoint.size, checkpoint.root
        store.remember({"checkpoint": checkpoint_text(*newest)})

    def _amend(self, answer: Answer) -> None:
        """Take on the amendments that lead from this client's spec to the server's."""
        store = self._store
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
