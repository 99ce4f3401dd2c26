"""What the operator and the arbiter do about false sums; and the law that it hits only liars."""

from __future__ import annotations

import base64
from typing import Any

from expunge.secagg.arbitration import Dispute, Verdict, examine
from expunge.secagg.roster import Roster
from expunge.testing.simulation.federation import SimulatedFederation
from expunge.testing.simulation.scenario import ARBITER
from expunge.testing.simulation.world import LawBrokenError
from expunge.wire.schema import time_text


def judge_disputes(federation: SimulatedFederation) -> None:
    """The arbiter examines what has been opened to it, and the operator acts on its verdicts: who
    was found false is forgotten.
    """
    office = federation.root.office
    for listed in office.ask("disputes", {}) or ():
        question = {"aggregation": listed["aggregation"]}
        shown = office.ask("show-dispute", question)
        if shown is not None:
            openings = {
                client: office.ask("show-opening", question | {"client": client})
                for client in shown["opened"]
            }
            if None not in openings.values():
                _judge(federation, shown["dispute"], openings)
    for client in office.ask("clients", {}) or ():
        if client["status"] == "barred":
            office.do("forget-client", {"client": client["name"]})


def _judge(federation: SimulatedFederation, dispute: Any, openings: dict[str, str]) -> None:
    given = Dispute.from_json(
        dispute, {client: base64.b64decode(text) for client, text in openings.items()}
    )
    examined = examine(given, ARBITER)
    known = [*federation.clients, *federation.gone]
    liars = {client.name for client in known if client.lies}
    if examined.false.keys() - liars:
        raise LawBrokenError("only liars are named", f"{examined.false}, of whom {liars} lie")
    if examined.false or (given.reason == "headless" and not examined.missing):
        roster = Roster.read(given.records.roster)
        verdict = Verdict(
            given.federation,
            roster.opening.round,
            roster.digest,
            given.parts,
            examined.false,
            time_text(int(federation.world.time)),
        )
        federation.world.count("law: only liars are named")
        federation.root.office.do("judge", {"verdict": ARBITER.sign(verdict).to_json()})
