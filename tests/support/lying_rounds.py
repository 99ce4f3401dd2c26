"""A server that unmasks sums, calls their rounds aborted, and writes to its log what it likes: the
real one, with its restraint taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from expunge.client.round_policy import UnsafeRoundError
from expunge.errors import RefusedError
from expunge.exact import wide
from expunge.secagg import Contribution, Participant, parcels
from expunge.secagg.arbitration import parts_json, signed_json
from expunge.secagg.keys import Secrets
from expunge.secagg.messages import read_server_message
from expunge.secagg.roster import Roster
from expunge.secagg.unmasking import Part
from expunge.server.disputes import Disputes
from expunge.server.secagg import SecureAggregation
from expunge.server.secagg_outcomes import Outcomes
from expunge.wire import payloads
from support.masked_round import GATHER, PHASE, Circle


def retold(
    circle: Circle, kind: Any, change: Callable[[dict[str, Any]], None]
) -> Callable[[bytes], bytes]:
    """Answers that the server has altered, and signed again."""

    def altered(data: bytes) -> bytes:
        _, content = payloads.open_unverified(kind, data)
        change(content)
        return payloads.sign(kind, content, circle.service.state.folder.key)

    return altered


@dataclass
class LyingServer:
    """All that it has learnt: sums by their parts, and what it takes to speak of their rounds."""

    circle: Circle
    sums: list[tuple[frozenset[Part], wide.Wide]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    sent: list[dict[str, list[str]]] = field(default_factory=list)  # what clients signed to send

    def unmask(self, opening: Any, sum_of: Contribution, members: Any) -> None:
        """In place of applying a sum."""
        del members
        collector = self.circle.collector
        assert collector is not None
        parts = frozenset(collector.included)
        self.sums.append((parts, sum_of.vector().copy()))
        self.sent.append(signed_json(collector.records().masked))
        self.rounds.append(
            {
                "aggregation": opening.round,
                "roster": collector.roster_digest,
                "size": len(collector.clients),
                "agreed": {name: sig.hex() for name, sig in collector.agreed.items()},
            }
        )
        raise RefusedError("storage", "a server that keeps what it has seen, and applies nothing")

    def sum_of(self, *names: str, passes: int = 14) -> bool:
        """Have exactly these sync until another sum is unmasked; whether one was."""
        before = len(self.sums)
        self.circle.restart_server()  # so that nobody else has joined anything
        for _ in range(passes):
            for name in names:
                if len(self.sums) == before:
                    self.circle.sync(name)
            if len(self.sums) > before:
                self.circle.restart_server()
                return True
            if self.circle.phase == "joining":
                self.circle.wait(GATHER)
        return False

    def sum_over(self, roster: Sequence[str], signers: Sequence[str]) -> bool:
        """Have these join and mask, and ask only some to agree to the sum; whether it was
        unmasked.
        """
        circle, before = self.circle, len(self.sums)
        # Who masks last is asked to agree at once.
        roster = [*(name for name in roster if name not in signers), *signers]
        circle.restart_server()
        for name in [*roster, *roster]:
            circle.sync(name)  # it hears that the last round is over, and joins
        circle.wait(GATHER)
        for _ in range(8):
            phase = circle.phase
            for name in signers if phase in ("agreeing", "revealing") else roster:
                if phase and circle.phase == phase:
                    circle.sync(name)
            if len(self.sums) > before or not circle.phase:
                break
            if circle.phase == phase:
                circle.wait(PHASE)
        circle.restart_server()
        return len(self.sums) > before

    def log(self, kind: str, **fields: Any) -> None:
        state = self.circle.service.state
        with state.lock, state.changing() as now:
            state.append(kind, now, **fields)  # type: ignore[arg-type]

    def voided(self, parts: Collection[Part], **round_of: Any) -> None:
        listed = [member | {"request": "0" * 64} for member in parts_json(parts)]
        self.log("voided", clients=listed, **({"reason": "impossible"} | round_of))

    def excluded(self, parts: Collection[Part], *names: str) -> None:
        self.log(
            "excluded", aggregation="ab" * 16, clients=parts_json(parts), excluded=sorted(names)
        )

    def exposed(self) -> list[Part]:
        """The parts that are a combination of the sums that it has."""
        everybody = sorted({part for parts, _ in self.sums for part in parts})
        matrix = np.array([[float(part in parts) for part in everybody] for parts, _ in self.sums])
        found = []
        for place, part in enumerate(everybody):
            goal = np.eye(len(everybody))[place]
            weights, *_ = np.linalg.lstsq(matrix.T, goal, rcond=None)
            if np.abs(matrix.T @ weights - goal).max() < 1e-9:
                found.append(part)
        return found


@contextmanager
def bad_parcels(liar: str, *holders: str, answers: bool = False) -> Iterator[None]:
    """Meanwhile a client seals for these, or for all, what they cannot open; it says nothing to
    complaints, or answers them.
    """
    true, on_complaint = parcels.deal, Participant.on_complaint

    def deal(roster: Roster, secrets: Secrets, name: str) -> parcels.Dealt:
        dealt = true(roster, secrets, name)
        if name != liar:
            return dealt
        sealed = zip(roster.neighbours(name), dealt.parcels, strict=True)
        spoilt = (
            parcel if holders and holder not in holders else replace(parcel, sealed=bytes(82))
            for holder, parcel in sealed
        )
        return replace(dealt, parcels=tuple(spoilt))

    def silent(self: Participant, complaint: bytes, pins: Any) -> bytes:
        if self.name == liar and not answers:
            raise UnsafeRoundError("it says nothing")
        return on_complaint(self, complaint, pins)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("expunge.secagg.participant.deal", deal)
        patch.setattr("expunge.secagg.parcels.deal", deal)
        patch.setattr(Participant, "on_complaint", silent)
        yield


def complaint_of(circle: Circle, client: str, *dealers: str) -> bytes:
    """What a client says that cannot, or will not, use the parcels of others."""
    collector = circle.collector
    assert collector is not None
    told, body = read_server_message("deliveries", collector.say(client) or b"")
    sent = zip(told["senders"], parcels.parcels(body, len(told["senders"]), "parcels"), strict=True)
    bad = {dealer: parcel for dealer, parcel in sent if dealer in dealers}
    store = circle.stores[client]
    part = Participant.from_bytes(store.participation.read() or b"", store.key, collector.rules)
    return part.complaint(bad)


@contextmanager
def lying_server(circle: Circle) -> Iterator[LyingServer]:
    """The server of a circle, from now on."""
    server = LyingServer(circle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outcomes, "change", lambda _, *given: server.unmask(*given))
        patch.setattr(Outcomes, "attempted", lambda _: [])
        patch.setattr(Outcomes, "attempt", lambda *_: None)
        # What clients refuse by themselves, it asks for: it knows of nobody that hides nobody.
        patch.setattr(Disputes, "shown", lambda _: frozenset())
        patch.setattr(SecureAggregation, "odd", lambda *_: {})
        patch.setattr(SecureAggregation, "chosen", lambda self, current: self._joined(current))
        patch.setattr(SecureAggregation, "agreeable", lambda self, current: self._joined(current))
        patch.setattr(SecureAggregation, "require_agreeable", lambda *_: None)
        for name in ("exclude_unopened", "exclude_absent", "exclude_silent"):
            patch.setattr(Disputes, name, lambda *_: None)
        yield server
