"""Joins that say that their client's part hides nobody: all read it from the roster, nobody can
add or drop it, and the others must be a quorum without them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.crypto import canonical
from expunge.crypto.envelope import header_bytes
from expunge.errors import EvidenceError, FormatError
from expunge.secagg import Participant
from expunge.secagg.collector import Aborted
from expunge.secagg.messages import (
    read_client_message,
    read_server_message,
    sign,
    write_server_message,
)
from expunge.secagg.roster import Roster
from support.secagg import RULES, Room, draw_vectors, key_of, signed_joins

MARKED = ("client-00", "client-01")


def room(clients: int = 7) -> Room:
    return Room(draw_vectors(clients), exposed=MARKED)


def test_a_roster_says_whose_parts_are_exposed() -> None:
    here = room()
    here.until("sharing")
    roster = Roster.read(here.told("client-03"))
    assert {name for name, _ in roster.exposed} == set(MARKED)
    assert here.collector.exposed == roster.exposed
    for name, participant in here.participants.items():
        kept = Participant.from_bytes(participant.to_bytes(), key_of(name), RULES)
        assert kept.message == participant.message
        header = read_client_message(participant.message).header
        assert header.get("exposed", False) == (name in MARKED)


def test_nobody_is_marked_by_others_or_loses_its_mark() -> None:
    here = room()
    here.until("sharing")
    data = here.told("client-03")
    joins = signed_joins(data)
    opening, rules = here.opening, here.rules
    for name, problem in (("client-00", "not signed"), ("client-04", "not signed")):
        join, signature = joins[name]
        other = joins | {name: (replace(join, exposed=not join.exposed), signature)}
        roster = Roster.write(opening, rules, list(other.values()))
        with pytest.raises(EvidenceError, match=problem):
            here.participants["client-03"].on_roster(roster, here.pins)
        with pytest.raises(EvidenceError, match="is not in the roster as it was sent"):
            here.participants[name].on_roster(roster, here.pins)


def test_marks_have_one_form() -> None:
    here = room()
    here.until("sharing")
    header, body = read_server_message("roster", here.told("client-03"))
    for names in ([], ["client-01", "client-00"], ["nobody"], [1], "client-00"):
        told = {key: value for key, value in header.items() if key != "body"}
        with pytest.raises(FormatError):
            Roster.read(write_server_message(told | {"exposed": names}, bytes(body)))
    join = read_client_message(here.joining("client-00").message).header
    for value in (False, 1, "true"):
        said = {key: item for key, item in join.items() if key != "body"} | {"exposed": value}
        assert canonical.decode(header_bytes(said, b""))
        with pytest.raises(FormatError):
            read_client_message(sign(said, b"", key_of("client-00")))


def test_the_others_must_be_a_quorum_without_the_exposed() -> None:
    """Of seven that are 5: of the five that are not exposed 4, so that one may be silent."""
    here = room()
    here.until("agreeing")
    with pytest.raises(Aborted, match="3 of the clients among which others are hidden"):
        here.go(without=("client-02", "client-03"))
    here.hear("client-02", here.answer("client-02"))
    here.collector.advance()
    agreements = here.told("client-04")
    shown = frozenset({("client-05", 5)})
    before = here.participants["client-04"].to_bytes()
    with pytest.raises(EvidenceError, match="3 of the clients among which others are hidden"):
        here.participants["client-04"].on_agreements(agreements, here.pins, shown)
    assert here.participants["client-04"].to_bytes() == before
    assert here.participants["client-04"].on_agreements(agreements, here.pins)
