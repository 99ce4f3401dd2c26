"""Masking: what an agent brings by rounds of secure aggregation, and how it takes part in audits and rebuilds.

Law: a client is in one round at a time, and stays in it until it knows how it ended; whatever else is due waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from expunge.client import refusals
from expunge.client.answer import Answer
from expunge.client.contributor import Contributor, Waiting
from expunge.client.outbox import Composition
from expunge.client.samples import Recompute
from expunge.client.store import ClientStore
from expunge.errors import ProtocolError, RefusedError
from expunge.evidence import Receipt
from expunge.exact.wide import Wide
from expunge.privacy.aggregation import Contribution
from expunge.statistics import Statistics

_AUDITING = "auditing"  # the setting that holds the ids of the audits that this client takes part in
_OF_ALL = ("audit", "rebuild")  # rounds that change nothing here, and need every client


class Waits(ProtocolError):  # noqa: N818 - not a mistake of anybody
    """A round of secure aggregation waits for other clients; everything can be tried again later."""


class Masking:
    """One client's rounds."""

    def __init__(self, store: ClientStore, contributor: Contributor) -> None:
        self._store = store
        self._contributor = contributor

    def outstanding(self, compose: Callable[[], Composition | None]) -> Composition | None:
        """The request to be brought now. One that waits for a round is composed anew, as long as it was never masked.

        So what is added or forgotten while a client waits for others goes into the same round.
        """
        store = self._store
        with store.participation.turn:
            composed = store.composed()
            if composed is not None and (composed.reset or not self.is_outdated(composed)):
                return composed
            if composed is not None:
                store.abandon(composed.sequence, "")
            return compose()

    def is_outdated(self, composed: Composition) -> bool:
        """Whether a request that waits for a round, and was never masked, would have other samples if it were composed now."""
        if composed.kind != "masked" or not composed.added + composed.deleted or self._contributor.is_bound(composed.sequence):
            return False
        return self._store.is_outdated()

    def bring(self, composition: Composition, recompute: Recompute | None) -> Receipt:
        """Bring a request by a round; Waits if that takes longer than there is patience, or if the round came to nothing.

        What has never been masked is put back then, so that it can still change; what has been stays as it is.
        """
        store, sequence = self._store, composition.sequence

        def vector() -> Wide:
            due = replace(composition, spec=store.spec)  # labels may have been appended since it was composed
            return store.contribution(due, recompute=recompute).vector()

        try:
            outcome = self._contributor.change(composition, vector)
        except RefusedError as refusal:
            if refusal.code in refusals.OUT_OF_STEP and store.sequence >= sequence:
                raise Waits("another agent on this store has brought the request meanwhile") from refusal
            raise
        if isinstance(outcome, Waiting):
            raise Waits(outcome.why)
        if outcome.receipt is not None:
            return outcome.receipt
        with store.participation.turn:
            composed = store.composed()
            if composed is not None and composed.sequence == sequence:  # or another agent has put it back meanwhile
                if self._contributor.is_bound(sequence):
                    store.remember({"refusal": outcome.why})
                else:
                    store.abandon(sequence, outcome.why)
        raise Waits(f"{outcome.why}. Nothing was changed: the next sync joins another round")

    def is_in_round_of_all(self) -> bool:
        """Whether this client takes part in an audit or a rebuild whose end it does not know yet."""
        return self._contributor.purpose() in _OF_ALL

    def join_in(self, answer: Answer, everything: Callable[[], Statistics]) -> tuple[tuple[str, ...], str]:
        """Take part in the round that rebuilds or audits the ledger, if one is wanted: the audits answered; what it waits for."""
        doing, outstanding = self._contributor.purpose(), self._store.composed()
        purpose = doing or ("rebuild" if answer.rebuild else "audit" if answer.audits else "")
        is_open = outstanding is not None and outstanding.doubtful  # then it is not known what the server counts
        if purpose not in _OF_ALL or answer.status != "active" or (is_open and not doing):
            return (), ""
        if answer.audits:  # when it is over, the server does not name them any more
            self._store.remember({_AUDITING: " ".join(audit for audit, _ in answer.audits)})
        outcome = self._contributor.join_in(purpose, lambda: Contribution.of(everything(), None, self._store.spec))
        if isinstance(outcome, Waiting) or outcome.why:
            return (), outcome.why
        return (tuple((self._store.recall(_AUDITING) or "").split()) if purpose == "audit" else ()), ""

    def begin_anew(self, sequence: int) -> int:
        """The server was restored, and knows of no round from before. The number that a reset may have, from this one on."""
        if self.is_in_round_of_all():
            self._store.participation.drop()
        return self._contributor.unbound(sequence)
